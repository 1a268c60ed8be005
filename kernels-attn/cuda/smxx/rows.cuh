// Numbers that belong to rows. A matrix tile's thread has rows 2 t and 2 t + 1 of every eight (t = lane % 4);
// statistics of row r are kept once in each warp, by lane r % 32.
#pragma once

#include "softmax.cuh"

namespace lockstep::attn {

constexpr uint32_t kAllLanes = 0xffffffffu;

// The number that lane-wise `x` has of row 8 tile + offset.
template <typename T, int kLaneRows>
__device__ __forceinline__ T of_row(const T (&x)[kLaneRows], int tile, int offset) {
  return __shfl_sync(kAllLanes, x[tile / 4], 8 * (tile % 4) + offset);
}

template <int kCount, int kDistance>
constexpr int kept_of() {
  if constexpr (kDistance > 16) {
    return kCount;
  } else {
    return kept_of<kCount % 2 == 0 ? kCount / 2 : kCount, 2 * kDistance>();
  }
}

// How many of a thread's kCount numbers are left to it by join_lanes().
template <int kCount>
constexpr int kKept = kept_of<kCount, 4>();

// Joins the numbers of the eight lanes that have the same rows: lanes 4 apart, then 8, then 16. Two lanes halve the
// work where they can: x[0 .. kKept] become the results of numbers `first` and up. Of lanes with the same results one
// speaks.
template <int kCount, int kDistance = 4, int kAll, typename Join>
__device__ __forceinline__ void join_lanes(float (&x)[kAll], int lane, int& first, bool& speaks, Join join) {
  if constexpr (kDistance <= 16) {
    const bool upper = (lane & kDistance) != 0;
    constexpr int kHalf = kCount / 2;
    if constexpr (kCount % 2 == 0) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float own = upper ? x[i + kHalf] : x[i], other = upper ? x[i] : x[i + kHalf];
        x[i] = join(own, __shfl_xor_sync(kAllLanes, other, kDistance));
      }
      if (upper) first += kHalf;
      join_lanes<kHalf, 2 * kDistance>(x, lane, first, speaks, join);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = join(x[i], __shfl_xor_sync(kAllLanes, x[i], kDistance));
      if (upper) speaks = false;
      join_lanes<kCount, 2 * kDistance>(x, lane, first, speaks, join);
    }
  }
}

// Joins and writes to [row][warp]; number i of a thread belongs to row 8 (i / 2) + 2 t + i % 2.
template <int kCount, int kRows, int kOf, typename Join>
__device__ __forceinline__ void join_to(float (&to)[kRows][kOf], int warp, int lane, float (&x)[kCount],
                                        Join join) {
  int first = 0;
  bool speaks = true;
  join_lanes<kCount>(x, lane, first, speaks, join);
#pragma unroll
  for (int i = 0; i < kKept<kCount>; ++i) {
    const int number = first + i, row = 8 * (number / 2) + 2 * (lane % 4) + number % 2;
    if (speaks) to[row][warp] = x[i];
  }
}

// The eight numbers of a row.
__device__ __forceinline__ void load_8(float (&x)[8], const float (&from)[8]) {
  const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

}  // namespace lockstep::attn
