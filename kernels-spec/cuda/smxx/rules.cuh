// How a row draws: its slot's numbers, the weight of a logit, and draws by Gumbel's trick.
#pragma once

#include "kernels_spec.h"
#include "lockstep/math.cuh"
#include "lockstep/philox.cuh"
#include "logits.cuh"

namespace lockstep::spec {

constexpr float kInfinity = __builtin_huge_valf();
constexpr float kGreedyBelow = 1e-5f;

// How top-k and top-p cut a row down, which says what passes look at it.
enum class Cut {
  None,
  Few,   // so few ids that the patches with the largest maxima hold them
  Wide,  // all others: counted or weighed in bins first
};

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
  __device__ __forceinline__ Cut cut(int32_t valid) const {
    constexpr int32_t kFew = 512;
    const int32_t most = min(kFew, patches(valid));
    if (by_count(valid) && top_k <= most && patches(valid) <= LS_SPEC_CANDIDATES) return Cut::Few;
    return by_count(valid) || by_mass() ? Cut::Wide : Cut::None;
  }
  // As a bound of weights, the largest of which is 1.
  __device__ __forceinline__ float least_weight() const { return min_p > 0.0f ? fminf(min_p, 1.0f) : 0.0f; }
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
  int64_t behind;  // rows of its sequence that come after it
};

struct RowShared {
  int32_t index;
  Numbers of;
};

// By all threads of a block. Where faulty offsets overlap, the last sequence has the row, as on the CPU.
template <int kBlock>
__device__ __forceinline__ Row row_of(const ls_rows& rows, int32_t row, int32_t positions, RowShared& shared) {
  if (threadIdx.x == 0) shared.index = -1;
  __syncthreads();
  int32_t mine = -1;
  Numbers n = {};
  for (int32_t i = threadIdx.x; i < rows.sequences; i += kBlock) {
    const Numbers one = numbers_at(rows, i);  // with the slot, which costs no way to memory of its own
    if (owns_rows(rows, one.first, one.end) && one.first <= row && row < one.end) mine = i, n = one;
  }
  if (mine >= 0) atomicMax(&shared.index, mine);
  __syncthreads();
  const int32_t index = shared.index;
  if (index < 0) return {};
  if (mine == index) shared.of = n;
  __syncthreads();
  n = shared.of;
  if (!n.live(rows, positions) || n.count() > positions) return {};
  return {true, n.slot, int64_t(n.start) + row - n.first, n.end - 1 - row};
}

// Whether a token is drawn in the row, and whether the mass that the filters leave is asked for.
__device__ __forceinline__ bool draws(const ls_spec_sample_params& p, const Row& at) {
  return p.kind != LS_SPEC_REJECTION || at.behind == 0;
}
__device__ __forceinline__ bool weighs(const ls_spec_sample_params& p, const Row& at) {
  return p.kind == LS_SPEC_DRAW_DRAFT || (p.kind == LS_SPEC_REJECTION && at.behind > 0);
}

__device__ __forceinline__ philox::Use use_of(const ls_spec_sample_params& p) {
  return p.kind == LS_SPEC_DRAW_DRAFT ? philox::Use::Draft : philox::Use::Draw;
}

// philox::philox4x32_10() in a loop, for what is run a few times only: its instructions would take longer to arrive.
__device__ __forceinline__ uint4 noise_of(uint32_t group, uint32_t position, philox::Use use, uint2 key) {
  uint4 c = make_uint4(group, position, uint32_t(use), 0);
#pragma unroll 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c.x, b = uint64_t(0xCD9E8D57u) * c.z;
    c = make_uint4(uint32_t(b >> 32) ^ c.y ^ key.x, uint32_t(b), uint32_t(a >> 32) ^ c.w ^ key.y, uint32_t(a));
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return c;
}

__device__ __forceinline__ uint32_t bits_of(uint32_t id, uint32_t position, philox::Use use, uint2 key) {
  const uint4 four = noise_of(id / kGroup, position, use, key);
  const uint32_t lane = id % kGroup;
  return lane == 0 ? four.x : lane == 1 ? four.y : lane == 2 ? four.z : four.w;
}

// Whether an id can be chosen at all. Where the largest is infinite, only what equals it is left.
__device__ __forceinline__ bool alive(float x, float max) {
  constexpr float kLargestFinite = 0x1.fffffep127f;
  return x > (max == kInfinity ? kLargestFinite : -kInfinity);
}

// (l - max) / temperature.
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

// Of an id that is alive.
__device__ __forceinline__ uint64_t weight_of(float x, float max, const Rules& rules) {
  return units(exp(tempered(x, max, rules.temperature)));
}

// What a row's ids are weighed with where there are many: the bits of weight_of() in half its instructions.
struct Scales {
  float max, temperature, reciprocal;

  __device__ __forceinline__ Scales(float max_, float temperature_) : max(max_), temperature(temperature_) {
    reciprocal = __fdiv_rn(1.0f, temperature);
  }

  // Above, a reciprocal may be denormal. Nobody's temperature is; for these rows there is weight_of().
  __device__ __forceinline__ bool fit() const { return temperature < 0x1p20f; }

  // Of an id that is alive. The quotient is the rounded one wherever it matters: a product with the rounded reciprocal,
  // corrected twice, is what a division does. What differs are quotients so small that their weight is 1, and so large
  // that it is nothing, and the clamp keeps those from infinity.
  __device__ __forceinline__ uint64_t weight(float x) const {
    const float difference = max == kInfinity ? 0.0f : fmaxf(__fadd_rn(x, -max), -0x1p60f);
    float z = __fmul_rn(difference, reciprocal);
    z = __fmaf_rn(__fmaf_rn(-z, temperature, difference), reciprocal, z);
    z = __fmaf_rn(__fmaf_rn(-z, temperature, difference), reciprocal, z);
    // As exp(), without multiplying by the power of two: it says how far the mantissa is from units.
    constexpr int kUnits = 40, kMantissa = 23, kBias = 127;
    const detail::Reduced e = detail::reduce_exp(fmaxf(z, -104.0f));
    const uint32_t bits = __float_as_uint(e.power);
    const int n = int(__float_as_uint(e.shifted) - __float_as_uint(detail::kRound));
    const int below_one = kBias - int(bits >> kMantissa) - n;  // 0 for the weight 1, the largest there is
    const uint64_t at_one = uint64_t((bits & 0x7fffffu) | 0x800000u) << (kUnits - kMantissa);
    return at_one >> min(below_one, 63);
  }
};

// What min-p leaves of it.
__device__ __forceinline__ uint64_t kept_weight_of(float x, float max, const Rules& rules) {
  const float weight = exp(tempered(x, max, rules.temperature));
  return weight < rules.least_weight() ? 0 : units(weight);
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

constexpr float kLog2E = 1.44269504f;
constexpr float kLeastUniform = 0x1p-34f;  // no u is smaller

// The largest z + g of the ids a thread is shown.
//
// Most ids are passed over without their logarithms, which changes nothing: e^(z + g) <= e^z / u, as -ln(1 - u) >= u.
// So an id cannot win whose e^z, taken a little too large, is below u, taken a little too small, times e^best. The
// approximations below serve that question only.
struct Draw {
  float max, temperature;
  float min_p;     // no lighter id is left
  float at_least;  // a little less: what is surely below is passed over at once
  uint2 seed;
  uint32_t position;
  philox::Use use;
  float scale;     // log2(e) / temperature
  float offset;    // a little more than -log2(e^least)
  float least;     // no score below has to be looked at
  float floor;     // a little less than e^least
  uint64_t best;   // packed score and id

  // The score of an id whose z is 0.
  __device__ __forceinline__ static float likeliest_score(const Rules& r, uint32_t likeliest, const Row& at,
                                                          philox::Use use) {
    return philox::gumbel(bits_of(likeliest, uint32_t(at.position) + 1, use, r.seed));
  }

  // `score` is that of `likeliest`, which is always left: a bound for all.
  __device__ __forceinline__ Draw(const Rules& r, float max_, uint32_t likeliest, float score, const Row& at,
                                  philox::Use use_)
      : max(max_), temperature(r.temperature), min_p(r.least_weight()), at_least(0.999f * r.least_weight()),
        seed(r.seed), position(uint32_t(at.position) + 1), use(use_) {
    scale = kLog2E / temperature;
    best = packed(ordered(score), likeliest);
    raise(score);
  }

  __device__ __forceinline__ void raise(float score) {
    least = score;
    floor = exp(score) * 0.999f;  // its error is below a thousandth: scores are below 23 and have 2^-19 of error
    offset = 0.004f - score * kLog2E;
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

  // Whether one of four neighbours from `id` on, a multiple of four, may win: the least noise against the largest logit,
  // about three instructions an id beside the noise itself. NaN and minus infinity never do.
  __device__ __forceinline__ bool group_may_win(const float (&x)[kGroup], uint32_t id) const {
    const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));  // drops NaN
    if (max == kInfinity) return most == max;
    // u <= e^(z - least), with two thousandths to spare; the exponent's error is below 1e-5 where it is above -40.
    const float bound = ex2_approx(__fmaf_rn(__fadd_rn(most, -max), scale, offset));
    if (!(bound >= kLeastUniform)) return false;
    const uint4 noise = philox::philox4x32_10(make_uint4(id >> 2, position, uint32_t(use), 0), seed);
    const uint32_t bits = min(min(noise.x, noise.y), min(noise.z, noise.w));
    // 1 + u with 23 bits of u, cut off, in one shift. The sum rounds, but not below a number of 23 bits.
    return __uint_as_float(__funnelshift_r(bits, 0x3f800000u >> 23, 9)) <= __fadd_rn(1.0f, bound);
  }

  // One id, with the bound that the ones before have raised.
  __device__ __forceinline__ void take(float x, uint32_t id) {
    const float bound = weight_bound(x);
    if (!(bound >= floor * kLeastUniform) || bound < at_least) return;
    const uint32_t bits = bits_of(id, position, use, seed);
    if (may_win(bound, bits)) look_at(x, id, bits);
  }
};

}  // namespace lockstep::spec
