// The token function of src/token.rs: what one token does to rows of a head's state, and what it reads.
//
// Eight lanes share a row of the state; lane l holds elements 32 j + 4 l .. + 3 for j = 0..3. That is the sum
// tree of the contract: element k goes to accumulator k % 32 in ascending order, neighbours are added inside
// the lane, then over lanes of distance 1, 2, 4. Every kernel of the family goes through these functions, so
// that how rows are dealt to threads cannot change a bit.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "lockstep/math.cuh"

namespace lockstep::gdn {

constexpr int kHead = 128;              // elements of a head
constexpr int kGroup = 8;               // lanes of a row
constexpr int kVectors = kHead / 4 / kGroup;  // float4 of a lane: 4
constexpr int kGroupsOfWarp = 32 / kGroup;
constexpr float kNormEps = 1e-6f;

// A lane's part of a vector of 128.
struct Slice {
  float4 at[kVectors];
};

__device__ __forceinline__ float4 fma4(float4 x, float4 y, float4 sum) {
  return make_float4(__fmaf_rn(x.x, y.x, sum.x), __fmaf_rn(x.y, y.y, sum.y), __fmaf_rn(x.z, y.z, sum.z),
                     __fmaf_rn(x.w, y.w, sum.w));
}

// The four accumulators of a lane, added.
__device__ __forceinline__ float lane_sum(const Slice& x, const Slice& y) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) sum = fma4(x.at[j], y.at[j], sum);
  return __fadd_rn(__fadd_rn(sum.x, sum.y), __fadd_rn(sum.z, sum.w));
}

// The sum over the eight lanes, in all of them.
__device__ __forceinline__ float group_sum(float x) {
#pragma unroll
  for (int distance = 1; distance < kGroup; distance *= 2) {
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, distance));
  }
  return x;
}

// The same sums of kRows values at once, each ending in the lanes of its row: where a lane gives half of its
// values away and gets the other lane's part of the half it keeps, a step costs half the shuffles of the last.
// Additions pair the same lanes in the same order, so the bits are group_sum's.
template <int kRows>
__device__ __forceinline__ float scatter_sum(float (&x)[kRows], int lane) {
  int values = kRows;
#pragma unroll
  for (int distance = 1; distance < kGroup; distance *= 2) {
    if (values == 1) {
      x[0] = __fadd_rn(x[0], __shfl_xor_sync(0xffffffffu, x[0], distance));
      continue;
    }
    values /= 2;
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < values; ++i) {
      const float given = upper ? x[i] : x[i + values], kept = upper ? x[i + values] : x[i];
      x[i] = __fadd_rn(kept, __shfl_xor_sync(0xffffffffu, given, distance));
    }
  }
  return x[0];
}

// The row whose sums scatter_sum leaves in a lane: distance 1 decides its highest bit.
template <int kRows>
__device__ __forceinline__ int row_of(int lane) {
  int row = 0;
#pragma unroll
  for (int values = kRows / 2, distance = 1; values > 0; values /= 2, distance *= 2) {
    row += (lane & distance) != 0 ? values : 0;
  }
  return row;
}

// The first lane of a row.
template <int kRows>
constexpr __device__ int lane_of(int row) {
  int lane = 0;
  for (int values = kRows / 2, distance = 1; values > 0; values /= 2, distance *= 2) {
    lane += row / values % 2 * distance;
  }
  return lane;
}

__device__ __forceinline__ float dot(const Slice& x, const Slice& y) { return group_sum(lane_sum(x, y)); }

__device__ __forceinline__ void scale_by(Slice& x, float factor) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    x.at[j] = make_float4(__fmul_rn(x.at[j].x, factor), __fmul_rn(x.at[j].y, factor),
                          __fmul_rn(x.at[j].z, factor), __fmul_rn(x.at[j].w, factor));
  }
}

// What a vector of these squares is scaled by to have length `scale`.
__device__ __forceinline__ float length_factor(float squares, float scale) {
  return __fmul_rn(rsqrt(__fadd_rn(squares, kNormEps)), scale);
}

// exp(-(exp(a_log) softplus(a + dt_bias)))
__device__ __forceinline__ float decay_of(float a, float a_log, float dt_bias) {
  return exp(-__fmul_rn(exp(a_log), softplus(__fadd_rn(a, dt_bias))));
}

// What a token is to the rows of one value head, but for its key, query and values.
struct Gates {
  float decay;
  float beta;
  float qk;  // query . key
};

// state = key u + decay state
__device__ __forceinline__ void write(Slice& state, const Slice& key, float decay, float u) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    float4& s = state.at[j];
    const float4 k = key.at[j];
    s = make_float4(__fmaf_rn(k.x, u, __fmul_rn(decay, s.x)), __fmaf_rn(k.y, u, __fmul_rn(decay, s.y)),
                    __fmaf_rn(k.z, u, __fmul_rn(decay, s.z)), __fmaf_rn(k.w, u, __fmul_rn(decay, s.w)));
  }
}

__device__ __forceinline__ float correction(float read, float value, const Gates& g) {
  return __fmul_rn(g.beta, __fmaf_rn(-g.decay, read, value));
}

__device__ __forceinline__ float output(float read, float u, const Gates& g) {
  return __fmaf_rn(g.decay, read, __fmul_rn(g.qk, u));
}

// A token that was accepted earlier: the state only. `value` belongs to the lane's row.
template <int kRows>
__device__ __forceinline__ void replay(Slice (&state)[kRows], const Slice& key, const Gates& g, float value,
                                       int lane) {
  float read[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) read[r] = lane_sum(state[r], key);
  const float u = correction(scatter_sum(read, lane), value, g);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    write(state[r], key, g.decay, __shfl_sync(0xffffffffu, u, lane_of<kRows>(r), kGroup));
  }
}

// A new token: the output of the lane's row, and the state, unless nobody needs it afterwards.
template <int kRows>
__device__ __forceinline__ float step(Slice (&state)[kRows], const Slice& key, const Slice& query, const Gates& g,
                                      float value, bool writes, int lane) {
  float read[kRows], seen[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) read[r] = lane_sum(state[r], key);
  const float u = correction(scatter_sum(read, lane), value, g);
  // Behind the shuffles, so that these sums fill their latency.
#pragma unroll
  for (int r = 0; r < kRows; ++r) seen[r] = lane_sum(state[r], query);
  const float y = output(scatter_sum(seen, lane), u, g);
  if (writes) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      write(state[r], key, g.decay, __shfl_sync(0xffffffffu, u, lane_of<kRows>(r), kGroup));
    }
  }
  return y;
}

}  // namespace lockstep::gdn
