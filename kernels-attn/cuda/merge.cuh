// The fold of pieces: leaves into groups, groups into the total, by absolute tile numbers.
//
// An accumulator's maximum is the largest so far, so that the factors of all folds are worked out side by side from
// maxima of prefixes. What remains in order is one fused multiply-add for each piece, level and column.
#pragma once

#include "finish.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "softmax.cuh"

namespace lockstep::attn {

constexpr int kMergeThreads = 128;
constexpr int kMergePieces = 128;   // of which factors are in shared memory at a time: one for each thread
constexpr int kMergeBatch = 16;     // loads of a thread in flight
constexpr int kMergeBlocks = 5;    // of a multiprocessor
constexpr int kMergeWarps = kMergeThreads / 32;

struct MergeShared {
  Factors factors[2][kMergePieces];  // of leaves into groups, of groups into the total
  float sums[kMergePieces];
  float maxima[kMergeWarps];
};

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

// The factors of kMergePieces pieces, this thread's having these statistics. `total`: the total's maximum before them,
// and then behind them. kOfGroup: leaves of a group, or 1 where pieces are groups.
template <int kOfGroup>
__device__ __forceinline__ void prepare(MergeShared& shared, const Stats& piece, float& total) {
  const int number = threadIdx.x;
  float max = piece.max;
  if constexpr (kOfGroup > 1) {
    shared.factors[0][number] = factors_of(largest_before<1, kOfGroup>(max), max);
    max = largest_of<kOfGroup>(max);
  }
  const float of_warp = largest_of<32>(max);
  if (number % 32 == 0) shared.maxima[number / 32] = of_warp;
  shared.sums[number] = piece.sum;
  __syncthreads();
  float before = fmaxf(total, largest_before<kOfGroup, 32>(max));
#pragma unroll
  for (int i = 0; i < kMergeWarps; ++i) {
    if (i < number / 32) before = fmaxf(before, shared.maxima[i]);
    total = fmaxf(total, shared.maxima[i]);
  }
  if (number % kOfGroup == 0) shared.factors[1][number / kOfGroup] = factors_of(before, max);
  __syncthreads();
}

// Some columns and the sum of one accumulator.
template <int kColumns>
struct Accumulator {
  float out[kColumns] = {}, sum = 0.0f;

  __device__ __forceinline__ void fold(const Factors& factors, const Accumulator& later) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) out[i] = factors.apply(out[i], later.out[i]);
    sum = factors.apply(sum, later.sum);
  }
};

// Pieces `first` to `end` of a row, numbered from a multiple of kMergePieces below the first.
template <int kD, int kOfGroup>
__device__ __forceinline__ Accumulator<kD / kMergeThreads> merge_row(MergeShared& shared, const float* partials,
                                                                    const float2* stats, int64_t piece_stride,
                                                                    int first, int end) {
  constexpr int kColumns = kD / kMergeThreads;
  using Sums = Accumulator<kColumns>;
  Sums group, total;
  float max = -INFINITY;
  for (int from = 0; from < end; from += kMergePieces) {
    const int own = from + threadIdx.x;
    Stats piece;
    if (own >= first && own < end) {
      const float2 read = stats[(own - first) * piece_stride];
      piece = {read.x, read.y};
    }
    prepare<kOfGroup>(shared, piece, max);
    const int here = min(end - from, kMergePieces);
#pragma unroll 1
    for (int i = 0; i < here; i += kMergeBatch) {
      Sums parts[kMergeBatch];
#pragma unroll
      for (int j = 0; j < kMergeBatch; ++j) {
        const int number = from + i + j;
        const float* const at = partials + (number - first) * piece_stride * kD;
        const bool there = number >= first && number < end;
        if constexpr (kColumns == 2) {
          const float2 both = there ? *reinterpret_cast<const float2*>(at) : float2{};
          parts[j].out[0] = both.x, parts[j].out[1] = both.y;
        } else {
          parts[j].out[0] = there ? *at : 0.0f;
        }
      }
#pragma unroll
      for (int j = 0; j < kMergeBatch; ++j) {
        const int number = i + j;
        parts[j].sum = shared.sums[number];
        if constexpr (kOfGroup == 1) {
          total.fold(shared.factors[1][number], parts[j]);
        } else {
          group.fold(shared.factors[0][number], parts[j]);
          if ((j + 1) % kOfGroup != 0) continue;
          total.fold(shared.factors[1][number / kOfGroup], group);
          group = {};
        }
      }
    }
    __syncthreads();  // before the next factors
  }
  return total;
}

// Rows of query heads, in turn with the other blocks. kOfGroup: pieces of a group.
template <int kD, int kOfGroup>
__device__ __forceinline__ void merge_all(const Params& p, MergeShared& shared) {
  constexpr int kColumns = kD / kMergeThreads, kTiles = kGroupTiles / kOfGroup;
  const int column = threadIdx.x * kColumns;
  const uint32_t per_sequence = uint32_t(p.rows.max_rows) * p.q_heads, all = p.rows.sequences * per_sequence;
  for (uint32_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
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
    const auto total = merge_row<kD, kOfGroup>(shared, p.partials + at * kD + column, stats, p.block_rows, first,
                                              first + entry.pieces);
    const Divisor by(total.sum);
    if constexpr (kColumns == 2) {
      write_out(p, int64_t(first_row) + row, head, column, make_float2(total.out[0], total.out[1]), by);
    } else {
      const float next = __shfl_down_sync(0xffffffffu, total.out[0], 1);
      if (column % 2 == 0) write_out(p, int64_t(first_row) + row, head, column, make_float2(total.out[0], next), by);
    }
  }
}

template <int kD>
__global__ void __launch_bounds__(kMergeThreads, kMergeBlocks) merge(const __grid_constant__ Params p) {
  __shared__ MergeShared shared;
  pdl::wait();
  pdl::launch_dependents();
  const int32_t pieces = p.work[1], share = p.work[2];
  if (pieces == 0) return;
  if (share != LS_ATTN_SHARE_LEAF) {
    merge_all<kD, 1>(p, shared);
  } else if (p.leaf_tiles == 4) {
    merge_all<kD, 4>(p, shared);
  } else if (p.leaf_tiles == 2) {
    merge_all<kD, 8>(p, shared);
  } else {
    merge_all<kD, 16>(p, shared);
  }
}

template <int kD>
int32_t launch_merge(const ls_attn_params& p, ls_stream_t stream) {
  const int64_t units = int64_t(p.rows.sequences) * p.rows.max_rows * p.q_heads;
  const int64_t blocks = int64_t(p.blocks) * kMergeBlocks;
  if (units >= int64_t(1) << 31) return LS_ERR_UNSUPPORTED;
  return launch(merge<kD>, unsigned(units < blocks ? units : blocks), kMergeThreads, 0, stream, true, Params(p));
}

}  // namespace lockstep::attn
