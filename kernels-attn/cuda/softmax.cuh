// The arithmetic of the tree over keys: weights, sums, and the fold of one part into those before it.
//
// src/softmax.rs has the same steps in the same order. Both paths and the merge call these functions, so a row's bits
// do not depend on which of them worked on it.
#pragma once

#include <cstdint>

namespace lockstep::attn {

constexpr int kTileKeys = 128;   // one step of the online softmax
constexpr int kGroupTiles = 16;  // 2048 keys
constexpr int kBlockRows = 64;    // of a row block: (position, head) pairs

// 2^x to two units in the last place; exact for 0, 0 for -inf and for what would be subnormal.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The maximum as an exponent may use it: -inf (nothing seen) must not meet -inf.
__device__ __forceinline__ float reference(float max) { return max == -INFINITY ? 0.0f : max; }

// What an accumulator and the part that follows are multiplied by.
struct Factors {
  float before, part;

  // An empty accumulator holds zeros.
  __device__ __forceinline__ float apply(float out, float later) const {
    return __fmaf_rn(out, before, __fmul_rn(later, part));
  }
};

// Maximum and sum of a part: relative to 2^max.
struct Stats {
  float max = -INFINITY, sum = 0.0f;

  __device__ __forceinline__ Factors fold(const Stats& later) {
    // A part without a weight counts as one without a key, as it does for who tells the two by the maximum. Nothing
    // before it: -inf, so the factors come out as 0 and 1.
    const float part_max = later.sum == 0.0f ? -INFINITY : later.max;
    const float top = fmaxf(max, part_max), r = reference(top);
    const Factors factors = {exp2_approx(__fadd_rn(max, -r)), exp2_approx(__fadd_rn(part_max, -r))};
    max = top;
    sum = factors.apply(sum, later.sum);
    return factors;
  }
};

// The sum of a tile's weights from those of its eight blocks of 16 keys.
__device__ __forceinline__ float sum_of_blocks(const float (&b)[8]) {
  return __fadd_rn(__fadd_rn(__fadd_rn(b[0], b[1]), __fadd_rn(b[2], b[3])),
                   __fadd_rn(__fadd_rn(b[4], b[5]), __fadd_rn(b[6], b[7])));
}

}  // namespace lockstep::attn
