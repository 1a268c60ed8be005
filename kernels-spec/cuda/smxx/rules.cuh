// How a row draws: its slot's numbers, the weight of a logit, and draws by Gumbel's trick.
#pragma once

#include "kernels_spec.h"
#include "lockstep/math.cuh"
#include "lockstep/philox.cuh"
#include "logits.cuh"

namespace lockstep::spec {

constexpr float kInfinity = __builtin_huge_valf();
constexpr float kGreedyBelow = 1e-5f;

struct Rules {
  float repetition, presence, frequency, temperature, top_p, min_p;
  int32_t top_k;
  uint2 seed;

  __device__ __forceinline__ bool penalise() const {
    return repetition != 1.0f || presence != 0.0f || frequency != 0.0f;
  }
  __device__ __forceinline__ bool greedy() const { return !(temperature >= kGreedyBelow); }
  // Top-k and top-p, where they do anything.
  __device__ __forceinline__ bool by_count(int32_t valid) const { return 1 <= top_k && top_k < valid; }
  __device__ __forceinline__ bool by_mass() const { return top_p < 1.0f; }
  __device__ __forceinline__ bool filtered(int32_t valid) const { return by_count(valid) || by_mass(); }
};

__device__ __forceinline__ Rules rules_of(const ls_spec_rules& r, int64_t slot) {
  return {r.repetition[slot],  r.presence[slot], r.frequency[slot], r.temperature[slot],
          r.top_p[slot],       r.min_p[slot],    r.top_k[slot],     make_uint2(r.seed_lo[slot], r.seed_hi[slot])};
}

// A row's slot and position; not live: padding, faulty or nobody's.
struct Row {
  bool live;
  int64_t slot;
  int64_t position;
};

// By all threads of a block. Where faulty offsets overlap, the last sequence has the row, as on the CPU.
template <int kBlock>
__device__ __forceinline__ Row row_of(const ls_rows& rows, int32_t row, int32_t positions, int32_t& shared) {
  if (threadIdx.x == 0) shared = -1;
  __syncthreads();
  for (int32_t i = threadIdx.x; i < rows.sequences; i += kBlock) {
    const int32_t first = rows.row_offsets[i], end = rows.row_offsets[i + 1];
    if (owns_rows(rows, first, end) && first <= row && row < end) atomicMax(&shared, i);
  }
  __syncthreads();
  const int32_t index = shared;
  if (index < 0) return {};
  const Sequence s = sequence_at(rows, index, positions, false);
  return {s.live, s.slot, s.start + row - s.first};
}

// (l - max) / temperature. Where the largest is infinite, only what equals it is left.
__device__ __forceinline__ float tempered(float x, float max, float temperature) {
  if (max == kInfinity) return x == max ? 0.0f : -kInfinity;
  return __fdiv_rn(__fadd_rn(x, -max), temperature);
}

// A weight of at most 1 in units of 2^-40, cut off.
__device__ __forceinline__ uint64_t units(float weight) {
  constexpr int kUnits = 40, kMantissa = 23, kBias = 127;
  const uint32_t bits = __float_as_uint(weight);
  const int exponent = int(bits >> kMantissa);  // not negative
  const int shift = exponent - kBias + kUnits - kMantissa;
  const uint64_t mantissa = exponent == 0 ? 0 : (bits & 0x7fffffu) | 0x800000u;
  return shift >= 0 ? mantissa << shift : shift > -32 ? mantissa >> -shift : 0;
}

// The share top_p < 1 of a mass, rounded up, and at least one unit: the likeliest id is always kept.
__device__ __forceinline__ uint64_t share_of(float top_p, uint64_t mass) {
  const double wanted = __dmul_rn(double(fmaxf(top_p, 0.0f)), __ull2double_rn(mass));
  const uint64_t whole = __double2ull_ru(wanted);
  return whole > 1 ? whole : 1;
}

__device__ __forceinline__ float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLeastUniform = 0x1p-34f;  // no u is smaller

// The largest z + g of the ids a thread is shown.
//
// Most ids are passed over without their logarithms, which changes nothing: e^(z + g) <= e^z / u, as -ln(1 - u) >= u.
// So an id cannot win whose e^z, taken a little too large, is below u, taken a little too small, times e^best. The
// approximations below serve that question only.
struct Draw {
  float max, temperature, min_p;
  uint2 seed;
  uint32_t position;
  philox::Use use;
  float scale;    // log2(e) / temperature
  float least;    // no score below has to be looked at
  float floor;    // a little less than e^least
  uint64_t best;  // packed score and id

  // `likeliest` is always left, so that its score is a bound for all.
  __device__ __forceinline__ Draw(const Rules& r, float max_, uint32_t likeliest, int64_t position_, int32_t use_)
      : max(max_), temperature(r.temperature), min_p(r.min_p > 0.0f ? fminf(r.min_p, 1.0f) : 0.0f), seed(r.seed),
        position(uint32_t(position_) + 1), use(static_cast<philox::Use>(use_)) {
    scale = 1.44269504f / temperature;
    const float score = philox::gumbel(philox::bits(seed, position, likeliest, use));  // its z is 0
    best = packed(ordered(score), likeliest);
    raise(score);
  }

  __device__ __forceinline__ void raise(float score) {
    least = score;
    floor = exp(score) * 0.999f;  // its error is below a thousandth: scores are below 23 and have 2^-19 of error
  }

  // More than e^z: ex2.approx and the product are off by 1e-5 at most where it matters, above 2^-40.
  __device__ __forceinline__ float weight_bound(float x) const {
    const float difference = max == kInfinity ? (x == max ? 0.0f : -kInfinity) : __fadd_rn(x, -max);
    return ex2_approx(difference * scale) * 1.002f;
  }

  // Whether an id that this much noise belongs to is worth its logarithms.
  __device__ __forceinline__ bool may_win(float bound, uint32_t bits) const {
    // 23 bits of u, cut off: in [1, 2), less 1.
    const float below = __uint_as_float(bits >> 9 | 0x3f800000u) - 1.0f;
    return bound >= below * floor;  // false for NaN
  }

  __device__ __forceinline__ void look_at(float x, uint32_t id, uint32_t bits) {
    const float z = tempered(x, max, temperature);
    if (!(z > -kInfinity) || exp(z) < min_p) return;
    const float score = __fadd_rn(z, philox::gumbel(bits));
    best = larger(best, packed(ordered(score), id));
    if (score > least) raise(score);
  }

  // Which of four neighbours from `id` on, a multiple of four, may win: a bit each. NaN and minus infinity never do.
  __device__ __forceinline__ uint32_t candidates(const float (&x)[kGroup], uint32_t id) const {
    float bounds[kGroup];
    bool any = false;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      bounds[i] = weight_bound(x[i]);
      any |= bounds[i] >= floor * kLeastUniform;
    }
    if (!any) return 0;
    const uint4 noise = philox::philox4x32_10(make_uint4(id >> 2, position, uint32_t(use), 0), seed);
    const uint32_t bits[kGroup] = {noise.x, noise.y, noise.z, noise.w};
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      // A bound of zero is no bound: nothing that small wins.
      mask |= bounds[i] >= floor * kLeastUniform && may_win(bounds[i], bits[i]) ? 1u << i : 0u;
    }
    return mask;
  }

  // One id, with the bound that the ones before have raised.
  __device__ __forceinline__ void take(float x, uint32_t id) {
    const float bound = weight_bound(x);
    if (!(bound >= floor * kLeastUniform)) return;
    const uint32_t bits = philox::bits(seed, position, id, use);
    if (may_win(bound, bits)) look_at(x, id, bits);
  }
};

}  // namespace lockstep::spec
