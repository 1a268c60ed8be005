// The fold of pieces: leaves into groups, groups into the total, by absolute tile numbers. The same steps that a thread
// block takes that owns all of them.
//
// Rows with two pieces are many, rows with a hundred are few: both are latency. So each thread folds the statistics for
// itself, without a barrier, and the next pieces are on their way meanwhile.
#include "finish.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "merge.cuh"
#include "softmax.cuh"

namespace lockstep::attn {

constexpr int kMergeBlocks = 16;  // of a multiprocessor
constexpr int kMergeBatch = 4;    // pieces on their way

// Two columns of an accumulator.
struct Merged {
  Stats stats;
  float2 out = {};

  __device__ __forceinline__ void fold(const Merged& later) {
    const Factors factors = stats.fold(later.stats);
    out = {factors.apply(out.x, later.out.x), factors.apply(out.y, later.out.y)};
  }
};

// The next pieces of a row, or fewer.
struct Pieces {
  Merged parts[kMergeBatch];

  __device__ __forceinline__ void load(const float* partials, const float2* stats, int64_t stride, int64_t columns,
                                       int first, int end) {
#pragma unroll
    for (int i = 0; i < kMergeBatch; ++i) {
      parts[i] = {};
      if (first + i >= end) continue;
      const float2 of = stats[(first + i) * stride];
      parts[i].stats = {of.x, of.y};
      parts[i].out = *reinterpret_cast<const float2*>(partials + (first + i) * stride * columns);
    }
  }
};

// A block has one row of one query head at a time.
template <int kD>
__global__ void __launch_bounds__(kD / 2) merge(const __grid_constant__ Params p) {
  pdl::wait();
  pdl::launch_dependents();
  const int column = threadIdx.x * 2;
  const uint32_t per_sequence = uint32_t(p.rows.max_rows) * p.q_heads, all = p.rows.sequences * per_sequence;
  for (uint32_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
    const int32_t sequence = unit / per_sequence, head = unit % per_sequence % p.q_heads;
    const int32_t row = unit % per_sequence / p.q_heads;
    const Entry entry = Entry::load(p.work, sequence);
    const int32_t first_row = p.rows.row_offsets[sequence], count = p.rows.row_offsets[sequence + 1] - first_row;
    const int32_t share = p.work[2];
    if (entry.pieces == 0 || row >= count) continue;
    uint32_t of_group;
    const uint32_t kv_head = p.group.divide(head, of_group);
    const int32_t row_blocks = ceil_div(count, p.block_positions), block = row / p.block_positions;
    const int64_t piece = entry.first_piece + (int64_t(kv_head) * row_blocks + block) * entry.pieces;
    const int64_t at = piece * p.block_rows + row % p.block_positions * int32_t(p.group.divisor) + of_group;
    const float* const partials = p.partials + at * kD + column;
    const auto* const stats = reinterpret_cast<const float2*>(p.stats) + at;

    const int32_t pieces_of_group = kGroupTiles / tiles_of_share(share, p.leaf_tiles);
    // The first piece's place in its group.
    int32_t place = entry.tiles.first / (kGroupTiles / pieces_of_group) % pieces_of_group;
    Merged group, total;
    Pieces next;
    next.load(partials, stats, p.block_rows, kD, 0, entry.pieces);
    for (int32_t i = 0; i < entry.pieces; i += kMergeBatch) {
      const Pieces now = next;
      next.load(partials, stats, p.block_rows, kD, i + kMergeBatch, entry.pieces);
#pragma unroll
      for (int j = 0; j < kMergeBatch; ++j) {
        if (i + j >= entry.pieces) break;
        group.fold(now.parts[j]);
        if (++place < pieces_of_group && i + j + 1 < entry.pieces) continue;
        total.fold(group);
        group = {};
        place = 0;
      }
    }
    write_out(p, int64_t(first_row) + row, head, column, total.out, Divisor(total.stats.sum));
  }
}

int32_t launch_merge(const ls_attn_params& p, ls_stream_t stream) {
  const int64_t units = int64_t(p.rows.sequences) * p.rows.max_rows * p.q_heads;
  const int64_t blocks = int64_t(p.blocks) * kMergeBlocks;
  if (units >= int64_t(1) << 31 || (p.head_dim != 128 && p.head_dim != 256)) return LS_ERR_UNSUPPORTED;
  return launch(p.head_dim == 128 ? merge<128> : merge<256>, unsigned(units < blocks ? units : blocks), p.head_dim / 2, 0,
                stream, true, Params(p));
}

}  // namespace lockstep::attn
