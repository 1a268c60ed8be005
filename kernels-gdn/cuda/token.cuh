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

__device__ __forceinline__ Slice scaled(Slice x, float factor) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    x.at[j] = make_float4(__fmul_rn(x.at[j].x, factor), __fmul_rn(x.at[j].y, factor),
                          __fmul_rn(x.at[j].z, factor), __fmul_rn(x.at[j].w, factor));
  }
  return x;
}

// What a token's a and b become, in all lanes of its group: decay = exp(-(exp(a_log) softplus(a + dt_bias))) and
// beta = sigmoid(b). Three exponentials at once, one per lane: fewer instructions, though no time was seen to change.
__device__ __forceinline__ void gates_of(float a, float b, float a_log, float dt_bias, int lane, float& decay,
                                         float& beta) {
  const float x = __fadd_rn(a, dt_bias);
  const float e = exp(lane == 0 ? a_log : lane == 1 ? -fabsf(x) : fmaxf(-fabsf(b), -87.0f));
  const float rate = __shfl_sync(0xffffffffu, e, 0, kGroup);
  const float soft = detail::softplus_from(x, __shfl_sync(0xffffffffu, e, 1, kGroup));
  beta = detail::sigmoid_from(b, __shfl_sync(0xffffffffu, e, 2, kGroup));
  decay = exp(-__fmul_rn(rate, soft));
}

// 1 / |key| and query_scale / |query|, both in all lanes of the group; half of the lanes computes each.
__device__ __forceinline__ void length_factors(float key_squares, float query_squares, float query_scale, int lane,
                                               float& key, float& query) {
  const bool first = lane < kGroup / 2;
  const float squares = first ? key_squares : query_squares;
  const float factor = __fmul_rn(rsqrt(__fadd_rn(squares, kNormEps)), first ? 1.0f : query_scale);
  key = __shfl_sync(0xffffffffu, factor, 0, kGroup);
  query = __shfl_sync(0xffffffffu, factor, kGroup / 2, kGroup);
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

// How a group's rows are summed: in parts, so that one part's arithmetic fills the latency of another's shuffles.
template <int kRows>
struct Parts {
  static constexpr int kRowsOf = kRows > 4 ? 4 : kRows;
  static constexpr int kCount = kRows / kRowsOf;

  // The row of a part whose sums a lane ends up with.
  static __device__ __forceinline__ int row(int part, int lane) { return part * kRowsOf + row_of<kRowsOf>(lane); }
  // The part whose output a lane writes, and whether it is the lane that does.
  static __device__ __forceinline__ int spoken(int lane) { return kCount == 1 ? 0 : lane / kRowsOf; }
  static __device__ __forceinline__ bool speaks(int lane) {
    return kCount * kRowsOf == kGroup || lane_of<kRowsOf>(row_of<kRowsOf>(lane)) == lane;
  }
};

// The sums of every part over a vector.
template <int kRows>
__device__ __forceinline__ void sums(const Slice (&state)[kRows], const Slice& x, int lane,
                                     float (&sum)[Parts<kRows>::kCount]) {
  constexpr int kOf = Parts<kRows>::kRowsOf;
#pragma unroll
  for (int part = 0; part < Parts<kRows>::kCount; ++part) {
    float of_row[kOf];
#pragma unroll
    for (int r = 0; r < kOf; ++r) of_row[r] = lane_sum(state[part * kOf + r], x);
    sum[part] = scatter_sum(of_row, lane);
  }
}

// state = key u + decay state, each row with its correction from the lane that has it.
template <int kRows>
__device__ __forceinline__ void write_all(Slice (&state)[kRows], const Slice& key, float decay,
                                          const float (&u)[Parts<kRows>::kCount]) {
  constexpr int kOf = Parts<kRows>::kRowsOf;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    write(state[r], key, decay, __shfl_sync(0xffffffffu, u[r / kOf], lane_of<kOf>(r % kOf), kGroup));
  }
}

// A token that was accepted earlier: the state only. `value` holds those of the lane's row in every part.
template <int kRows>
__device__ __forceinline__ void replay(Slice (&state)[kRows], const Slice& key, const Gates& g,
                                       const float (&value)[Parts<kRows>::kCount], int lane) {
  float u[Parts<kRows>::kCount];
  sums(state, key, lane, u);
#pragma unroll
  for (int part = 0; part < Parts<kRows>::kCount; ++part) u[part] = correction(u[part], value[part], g);
  write_all(state, key, g.decay, u);
}

// A new token: the output that the lane speaks, and the state, unless nobody needs it afterwards.
template <int kRows>
__device__ __forceinline__ float step(Slice (&state)[kRows], const Slice& key, const Slice& query, const Gates& g,
                                      const float (&value)[Parts<kRows>::kCount], bool writes, int lane) {
  float u[Parts<kRows>::kCount], seen[Parts<kRows>::kCount];
  sums(state, key, lane, u);
  sums(state, query, lane, seen);
  float spoken = 0.0f;
#pragma unroll
  for (int part = 0; part < Parts<kRows>::kCount; ++part) {
    u[part] = correction(u[part], value[part], g);
    const float y = output(seen[part], u[part], g);
    spoken = Parts<kRows>::spoken(lane) == part ? y : spoken;
  }
  if (writes) write_all(state, key, g.decay, u);
  return spoken;
}

}  // namespace lockstep::gdn
