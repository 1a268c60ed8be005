// The fold of pieces: leaves into groups, groups into the total, by absolute tile numbers. The same steps that a thread
// block takes that owns all of them.
//
// A warp has a fragment's eight rows and sixteen columns. Rows with two pieces are many, rows with a hundred are few:
// both are latency. So each thread folds the statistics for itself, without a barrier; eight pieces are on their way
// while eight are folded, straight through; and what the list says is read before the kernel that works it off is done.
#include "finish.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "merge.cuh"
#include "softmax.cuh"

namespace lockstep::attn {

constexpr int kMergeWarps = 4;    // of a thread block: 64 columns
constexpr int kMergeBlocks = 16;  // of a multiprocessor
constexpr int kRun = 4;           // pieces of one group, or of groups of their own, that are folded without a branch
constexpr int kMergeBatch = 2 * kRun;

// A fragment of a part, and its rows' statistics. By itself, a part without a key: to fold it changes nothing.
struct Part {
  Stats rows[2];
  float4 out = {};

  __device__ __forceinline__ void fold(const Part& later) {
    out = folded(out, later.out, {rows[0].fold(later.rows[0]), rows[1].fold(later.rows[1])});
  }
};

// Where eight rows of a row block stand in the list.
struct Eight {
  Entry entry;
  int32_t kv_head, eight, pairs, sixteen, share;
  int64_t first_row, first_piece;

  __device__ __forceinline__ bool empty() const { return entry.pieces == 0 || 8 * eight >= pairs; }
};

template <int kD>
struct Units {
  const Params& p;
  const uint32_t eights, row_blocks;  // of a row block, of a K/V head

  explicit __host__ __device__ __forceinline__ Units(const Params& p)
      : p(p), eights(p.block_rows / 8), row_blocks(ceil_div(p.rows.max_rows, p.block_positions)) {}

  // Of thread blocks.
  __host__ __device__ __forceinline__ int64_t count() const {
    return int64_t(p.rows.sequences) * p.kv_heads * row_blocks * eights * (kD / 16 / kMergeWarps);
  }

  __device__ __forceinline__ Eight at(uint32_t unit) const {
    const auto next = [&](uint32_t of) {
      const uint32_t number = unit % of;
      unit /= of;
      return int32_t(number);
    };
    Eight e;
    e.sixteen = next(kD / 16 / kMergeWarps) * kMergeWarps + threadIdx.x / 32;
    e.eight = next(eights);
    const int32_t block = next(row_blocks);
    e.kv_head = next(p.kv_heads);
    e.entry = Entry::load(p.work, unit);
    e.share = p.work[2];
    const int32_t begin = p.rows.row_offsets[unit], count = p.rows.row_offsets[unit + 1] - begin;
    const int32_t before = block * p.block_positions;
    e.first_row = int64_t(begin) + before;
    e.pairs = min(count - before, p.block_positions) * int32_t(p.group.divisor);
    const int32_t own_blocks = ceil_div(count, p.block_positions);
    e.first_piece = e.entry.first_piece + (int64_t(e.kv_head) * own_blocks + block) * e.entry.pieces;
    return e;
  }
};

template <int kD>
__global__ void __launch_bounds__(32 * kMergeWarps) merge(const __grid_constant__ Params p) {
  const Units<kD> units(p);
  const int lane = threadIdx.x % 32;
  const uint32_t all = uint32_t(units.count());
  // The kernel before has waited for the list's before it let this one begin.
  Eight e = units.at(blockIdx.x);
  pdl::wait();
  pdl::launch_dependents();
  for (uint32_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
    if (unit != blockIdx.x) e = units.at(unit);
    if (e.empty()) continue;
    const Finisher rows(p, e.first_row, e.pairs, e.kv_head, e.eight);
    const uint2 gates = rows.gates(e.sixteen);
    const int64_t stride = int64_t(p.block_rows) * kD;
    const float4* const outs = fragment_at<kD>(p.partials + e.first_piece * stride, e.eight, e.sixteen, lane);
    const float* const stats = p.stats + (e.first_piece * p.block_rows + e.eight * 8 + lane % 4 * 2) * 2;
    // Pieces count from a run's first place in the group that the first one belongs to.
    const int32_t unit_tiles = tiles_of_share(e.share, p.leaf_tiles), of_group = kGroupTiles / unit_tiles;
    const int32_t before = e.entry.tiles.first / unit_tiles % of_group % kRun, end = before + e.entry.pieces;
    const int32_t group_end = of_group - e.entry.tiles.first / unit_tiles % of_group + before;
    const auto load = [&](Part(&parts)[kMergeBatch], int32_t first) {
#pragma unroll
      for (int i = 0; i < kMergeBatch; ++i) {
        parts[i] = {};
        if (first + i < before || first + i >= end) continue;
        const int64_t piece = first + i - before;
        const float4 of = *reinterpret_cast<const float4*>(stats + piece * p.block_rows * 2);
        parts[i].rows[0] = {of.x, of.y}, parts[i].rows[1] = {of.z, of.w};
        parts[i].out = outs[piece * (stride / 4)];
      }
    };

    Part group, total, next[kMergeBatch];
    load(next, 0);
    for (int32_t i = 0; i < end; i += kMergeBatch) {
      Part now[kMergeBatch];
#pragma unroll
      for (int j = 0; j < kMergeBatch; ++j) now[j] = next[j];
      load(next, i + kMergeBatch);
      if (of_group == 1) {
#pragma unroll
        for (int j = 0; j < kMergeBatch; ++j) total.fold(now[j]);
        continue;
      }
#pragma unroll
      for (int run = 0; run < kMergeBatch; run += kRun) {
#pragma unroll
        for (int j = 0; j < kRun; ++j) group.fold(now[run + j]);
        const int32_t behind = i + run + kRun;
        if (behind < end && (behind - group_end) % of_group != 0) continue;
        total.fold(group);
        group = {};
      }
    }
    const Divisor by[2] = {Divisor(total.rows[0].sum), Divisor(total.rows[1].sum)};
    rows.write(e.sixteen, total.out, gates, by);
  }
}

template <int kD>
int32_t launch_merge(const ls_attn_params& of, ls_stream_t stream) {
  const Params p(of);
  const int64_t units = Units<kD>(p).count(), blocks = int64_t(p.blocks) * kMergeBlocks;
  if (units >= int64_t(1) << 31) return LS_ERR_UNSUPPORTED;
  return launch(merge<kD>, unsigned(units < blocks ? units : blocks), 32 * kMergeWarps, 0, stream, true, p);
}

int32_t launch_merge(const ls_attn_params& p, ls_stream_t stream) {
  return p.head_dim == 128 ? launch_merge<128>(p, stream)
                           : p.head_dim == 256 ? launch_merge<256>(p, stream) : LS_ERR_UNSUPPORTED;
}

}  // namespace lockstep::attn
