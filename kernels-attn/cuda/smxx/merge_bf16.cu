// The fold of pieces: leaves into groups, groups into the total, by absolute tile numbers.
//
// An accumulator's maximum is the largest so far, so that the factors of all folds are worked out side by side from
// maxima of prefixes, a piece in each lane. What remains in order is one fused multiply-add for each piece, level and
// column. Warps have nothing to do with each other: rows with two pieces are many, rows with hundreds are few.
#include "finish.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "merge.cuh"
#include "softmax.cuh"

namespace lockstep::attn {

constexpr int kMergeThreads = 128;
constexpr int kMergeBlocks = 8;   // of a multiprocessor
constexpr int kMergeColumns = 64;  // of a warp: two of a lane
constexpr int kMergeBatch = 8;     // loads of a thread in flight

// What an accumulator of this maximum and the part that follows are multiplied by. It is empty at -inf: a part that
// has seen keys has a maximum.
__device__ __forceinline__ Factors factors_of(float before, float part) {
  Stats accumulator = {before, before == -INFINITY ? 0.0f : 1.0f};
  return accumulator.fold({part, 1.0f});
}

// The largest of the lanes below this one in its group of kGroup, each unit of kUnit lanes having one number.
template <int kUnit, int kGroup>
__device__ __forceinline__ float largest_before(float x) {
  const int lane = threadIdx.x % kGroup;
#pragma unroll
  for (int distance = kUnit; distance < kGroup; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, x, distance, kGroup);
    if (lane >= distance) x = fmaxf(x, other);
  }
  const float before = __shfl_up_sync(0xffffffffu, x, kUnit, kGroup);
  return lane >= kUnit ? before : -INFINITY;
}

// Of kLanes neighbours.
template <int kLanes>
__device__ __forceinline__ float largest_of(float x) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  }
  return x;
}

// Two columns and the sum of an accumulator.
struct Merged {
  float2 out = {};
  float sum = 0.0f;

  __device__ __forceinline__ void fold(const Factors& factors, const Merged& later) {
    out = {factors.apply(out.x, later.out.x), factors.apply(out.y, later.out.y)};
    sum = factors.apply(sum, later.sum);
  }
};

// Two columns of pieces `first` to `end` of a row, numbered from where a group begins. kOfGroup: pieces of a group.
template <int kD, int kOfGroup>
__device__ __forceinline__ Merged merge_row(const float* partials, const float2* stats, int64_t piece_stride, int first,
                                            int end) {
  const auto from_lane = [](const Factors& factors, int lane) {
    return Factors{__shfl_sync(0xffffffffu, factors.before, lane), __shfl_sync(0xffffffffu, factors.part, lane)};
  };
  Merged group, total;
  float max = -INFINITY;  // the total's
  for (int from = 0; from < end; from += 32) {
    const int own = from + int(threadIdx.x % 32);
    float2 piece = {-INFINITY, 0.0f};
    if (own >= first && own < end) piece = stats[(own - first) * piece_stride];
    if (piece.y == 0.0f) piece.x = -INFINITY;
    const Factors into_group = factors_of(largest_before<1, kOfGroup>(piece.x), piece.x);
    const float of_group = largest_of<kOfGroup>(piece.x);
    const Factors into_total = factors_of(fmaxf(max, largest_before<kOfGroup, 32>(of_group)), of_group);
    max = fmaxf(max, largest_of<32>(piece.x));
#pragma unroll 1
    for (int i = 0; i < min(end - from, 32); i += kMergeBatch) {
      float2 read[kMergeBatch];
#pragma unroll
      for (int j = 0; j < kMergeBatch; ++j) {
        const int number = from + i + j;
        const bool there = number >= first && number < end;
        const float* const at = partials + (number - first) * piece_stride * kD;
        read[j] = there ? *reinterpret_cast<const float2*>(at) : float2{};
      }
#pragma unroll
      for (int j = 0; j < kMergeBatch; ++j) {
        const Merged part = {read[j], __shfl_sync(0xffffffffu, piece.y, i + j)};
        if constexpr (kOfGroup == 1) {
          total.fold(from_lane(into_total, i + j), part);
        } else {
          group.fold(from_lane(into_group, i + j), part);
          if ((i + j + 1) % kOfGroup != 0) continue;
          total.fold(from_lane(into_total, i + j), group);
          group = {};
        }
      }
    }
    // The last group may end early.
    if (kOfGroup > kMergeBatch && end - from < 32 && ceil_div(end - from, kMergeBatch) * kMergeBatch % kOfGroup != 0) {
      total.fold(from_lane(into_total, end - from - 1), group);
    }
  }
  return total;
}

// Rows of query heads, in turn with the other blocks.
template <int kD, int kOfGroup>
__device__ __forceinline__ void merge_all(const Params& p) {
  constexpr int kTiles = kGroupTiles / kOfGroup, kWarps = kD / kMergeColumns;  // tiles of a piece, warps of a row
  constexpr int kRows = kMergeThreads / 32 / kWarps;                           // of a block
  const int column = threadIdx.x / 32 % kWarps * kMergeColumns + threadIdx.x % 32 * 2;
  const uint32_t per_sequence = uint32_t(p.rows.max_rows) * p.q_heads, all = p.rows.sequences * per_sequence;
  const uint32_t own = threadIdx.x / 32 / kWarps;
  for (uint32_t unit = blockIdx.x * kRows + own; unit < all; unit += gridDim.x * kRows) {
    const int32_t sequence = unit / per_sequence, head = unit % per_sequence % p.q_heads;
    const int32_t row = unit % per_sequence / p.q_heads;
    const Entry entry = Entry::load(p.work, sequence);
    const int32_t first_row = p.rows.row_offsets[sequence], count = p.rows.row_offsets[sequence + 1] - first_row;
    if (entry.pieces == 0 || row >= count) continue;
    uint32_t of_group;
    const uint32_t kv_head = p.group.divide(head, of_group);
    const int32_t row_blocks = ceil_div(count, p.block_positions), block = row / p.block_positions;
    const int64_t piece = entry.first_piece + (int64_t(kv_head) * row_blocks + block) * entry.pieces;
    const int64_t at = piece * p.block_rows + row % p.block_positions * int32_t(p.group.divisor) + of_group;
    const auto* const stats = reinterpret_cast<const float2*>(p.stats) + at;
    // The first piece's place in its group.
    const int32_t first = entry.tiles.first / kTiles % kOfGroup;
    const Merged total =
        merge_row<kD, kOfGroup>(p.partials + at * kD + column, stats, p.block_rows, first, first + entry.pieces);
    write_out(p, int64_t(first_row) + row, head, column, total.out, Divisor(total.sum));
  }
}

template <int kD>
__global__ void __launch_bounds__(kMergeThreads, kMergeBlocks) merge(const __grid_constant__ Params p) {
  pdl::wait();
  pdl::launch_dependents();
  const int32_t pieces = p.work[1], share = p.work[2];
  if (pieces == 0) return;
  if (share != LS_ATTN_SHARE_LEAF) {
    merge_all<kD, 1>(p);
  } else if (p.leaf_tiles == 4) {
    merge_all<kD, 4>(p);
  } else if (p.leaf_tiles == 2) {
    merge_all<kD, 8>(p);
  } else {
    merge_all<kD, 16>(p);
  }
}

int32_t launch_merge(const ls_attn_params& p, ls_stream_t stream) {
  const int64_t units = int64_t(p.rows.sequences) * p.rows.max_rows * p.q_heads;
  const int64_t blocks = int64_t(p.blocks) * kMergeBlocks;
  if (units >= int64_t(1) << 31 || (p.head_dim != 128 && p.head_dim != 256)) return LS_ERR_UNSUPPORTED;
  return launch(p.head_dim == 128 ? merge<128> : merge<256>, unsigned(units < blocks ? units : blocks), kMergeThreads, 0,
                stream, true, Params(p));
}

}  // namespace lockstep::attn
