// A draw from all ids of a part of a row, without its logarithms: which groups of four neighbours may hold the winner.
//
// As -ln(1 - u) >= u, no score z + g of a group is above that of its largest logit with its least u. So a group is judged
// by one logarithm, which may be approximate, against the best score that is known to be there. What may still win in the
// end is listed, for `choose` to compute exactly: two or three groups, as a rule.
#pragma once

#include "rules.cuh"

namespace lockstep::spec {

// Scores are in units of ln 2 here, relative to some logit. What rounding, the approximate logarithm and what the exact
// scores are off add up to is far less.
constexpr float kSlack = 0.01f;
constexpr float kMostNoise = 33.1f;    // -log2 of the least u, and a little
constexpr float kFar = 4096.0f;        // distances of logits whose rounding kSlack covers
constexpr int kFound = LS_SPEC_FOUND;  // groups that a part may name
constexpr int kListed = 256;           // that a block remembers until it knows its best

// An upper bound of a group's scores and its place.
__device__ __forceinline__ uint64_t leader(float score, uint32_t group) {
  return uint64_t(__float_as_uint(score)) << 32 | group;
}
__device__ __forceinline__ float score_of(uint64_t leader) { return __uint_as_float(uint32_t(leader >> 32)); }
__device__ __forceinline__ uint32_t group_of(uint64_t leader) { return uint32_t(leader); }

__device__ __forceinline__ float lg2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// -log2 of (bits + 1/2) 2^-32, or a little more.
__device__ __forceinline__ float noise_bound(uint32_t bits) {
  return 32.0f - lg2_approx(__fadd_rn(__uint2float_rz(bits), 0.5f));
}

struct LeadersShared {
  uint64_t list[kListed];
  uint32_t count, found;
  uint32_t best;  // ordered

  __device__ __forceinline__ void clear() { count = found = 0, best = ordered(-0x1p100f); }
};

// Philox with its ten keys in registers, for many blocks of one row.
struct RowNoise {
  uint2 keys[10];
  uint32_t position, use;

  __device__ __forceinline__ RowNoise(uint2 seed, uint32_t position_, philox::Use use_)
      : position(position_), use(uint32_t(use_)) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      keys[round] = make_uint2(seed.x + 0x9E3779B9u * round, seed.y + 0xBB67AE85u * round);
      // Else they are added up again for each block: as many instructions as half of the rest.
      asm volatile("" : "+r"(keys[round].x), "+r"(keys[round].y));
    }
  }

  __device__ __forceinline__ uint4 block(uint32_t group) const {
    uint4 c = make_uint4(group, position, use, 0);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t(0xD2511F53u) * c.x, b = uint64_t(0xCD9E8D57u) * c.z;
      c = make_uint4(uint32_t(b >> 32) ^ c.y ^ keys[round].x, uint32_t(b), uint32_t(a >> 32) ^ c.w ^ keys[round].y,
                     uint32_t(a));
    }
    return c;
  }
};

// A warp's view of its block's draw.
struct Leaders {
  float reference;  // any logit that is not far from the others
  float scale;      // log2(e) / temperature
  uint2 seed;
  uint32_t position;
  philox::Use use;
  float floor = -kInfinity;  // what is lighter is left out, in units of ln 2 from the reference

  // The best score of a group is at least `low` and at most `high`.
  __device__ __forceinline__ void bounds(const float (&x)[kGroup], uint32_t group, float& low, float& high) const {
    const uint4 noise = noise_of(group, position, use, seed);
    const uint32_t bits[kGroup] = {noise.x, noise.y, noise.z, noise.w};
    low = high = -kInfinity;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      // -ln(1 - u) <= u / (1 - u), and nowhere more than 22.2. Near 1, u is too coarse.
      const float u = __fmul_rn(__uint2float_rn(bits[i]), 0x1p-32f), most = noise_bound(bits[i]);
      const float odds = u < 0.999f ? lg2_approx(1.0f - u) + most : -kInfinity, z = __fadd_rn(x[i], -reference);
      const float surely = __fmaf_rn(z, scale, fmaxf(odds, -4.5f));
      low = fmaxf(low, __fmul_rn(z, scale) >= floor ? surely : -kInfinity);  // both drop NaN
      high = fmaxf(high, __fmaf_rn(z, scale, most));
    }
    low -= kSlack / 4;
  }
};

// Looks at kBatch groups of each thread, those of a step side by side, the first of which begins at `first`. By whole
// warps. `most`: the largest logit of each. `left(x)` says whether an id takes part.
template <int kBatch, typename Left>
__device__ __forceinline__ void find_leaders(const Leaders& l, const RowNoise& noise, const float (&most)[kBatch],
                                             float batch_most, int32_t first, const float* row, int32_t valid,
                                             bool aligned, LeadersShared& s, const Left& left) {
  // What the block's warps know by now: never less than before, and any of it will do.
  const bool leads = threadIdx.x % kLanes == 0;
  const auto known = [&](uint32_t more) {
    const uint32_t best = leads ? max(atomicMax(&s.best, more), more) : 0;
    return unordered(__shfl_sync(kWholeWarp, best, 0)) - kSlack;
  };
  float enough = known(0);
  // Most are out of reach of any noise where a distribution has a peak.
  const float reach = __fmaf_rn(__fadd_rn(batch_most, -l.reference), l.scale, kMostNoise);
  if (!__any_sync(kWholeWarp, reach >= enough)) return;
  float score[kBatch], top = -kInfinity;
#pragma unroll
  for (int step = 0; step < kBatch; ++step) {
    const uint4 bits = noise.block(uint32_t(first + step * kStep) / kGroup);
    const float g = noise_bound(min(min(bits.x, bits.y), min(bits.z, bits.w)));
    score[step] = __fmaf_rn(__fadd_rn(most[step], -l.reference), l.scale, g);
    top = fmaxf(top, score[step]);  // drops NaN
  }
  if (!__any_sync(kWholeWarp, top >= enough)) return;
  // Three of four groups that look good have their largest logit and their least noise at different ids. So each thread
  // takes a closer look at its best one, which also says what is surely there.
  float low = -kInfinity;
  if (top >= enough) {
    int32_t id = first;
#pragma unroll
    for (int step = 1; step < kBatch; ++step) {
      if (score[step] == top) id = first + step * kStep;
    }
    float x[kGroup], high;
    load_group(row, id, valid, aligned, x);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = left(x[i]) ? x[i] : __uint_as_float(0x7fffffffu);
    l.bounds(x, uint32_t(id) / kGroup, low, high);
#pragma unroll
    for (int step = 0; step < kBatch; ++step) {
      if (id == first + step * kStep) score[step] = high;
    }
  }
  enough = known(__reduce_max_sync(kWholeWarp, ordered(low)));
#pragma unroll
  for (int step = 0; step < kBatch; ++step) {
    if (!(score[step] >= enough)) continue;
    const uint32_t place = atomicAdd(&s.count, 1u);
    if (place < kListed) s.list[place] = leader(score[step], uint32_t(first + step * kStep) / kGroup);
  }
}

// Names what may win in a part of a row, behind a barrier and by one warp, relative to the part's largest logit `best`:
// with that `choose` compares parts.
__device__ __forceinline__ void name_leaders(const Leaders& l, uint64_t best, uint64_t* drawn, uint64_t* found,
                                             LeadersShared& s) {
  const bool leader_lane = threadIdx.x == 0;
  const float shift = __fmul_rn(__fadd_rn(l.reference, -value_of(best)), l.scale), known = unordered(s.best);
  const uint32_t count = s.count;
  if (count > kListed || (count > 0 && (!(fabsf(shift) < kFar) || !(fabsf(known) < kFar)))) {
    if (leader_lane) *drawn = leader(-kInfinity, kFound + 1);  // `choose` has to look again at all of the part
    return;
  }
  for (uint32_t i = threadIdx.x; i < count; i += kLanes) {
    const uint64_t one = s.list[i];
    if (!(score_of(one) >= known - kSlack)) continue;
    const uint32_t place = atomicAdd(&s.found, 1u);
    if (place < kFound) found[place] = leader(score_of(one) + shift, group_of(one));
  }
  __syncwarp();
  if (!leader_lane) return;
  const uint32_t all = atomicAdd(&s.found, 0u);
  *drawn = leader(all > kFound || all == 0 ? -kInfinity : known + shift, all);
}

}  // namespace lockstep::spec
