// What the block that has a row in the last pass shares, and its draws.
#pragma once

#include "narrow.cuh"

namespace lockstep::spec {

constexpr int kChooseThreads = 512;
constexpr int kChooseWarps = kChooseThreads / kLanes;
constexpr int kDigits = 256;  // of eight bits
static_assert(kDigits == kThreads, "running_sum() has a thread for each");

// Exact sums of 64 bits from shared additions of 32: with the carry.
struct Digits {
  uint32_t low[kDigits], high[kDigits], ids[kDigits];

  __device__ __forceinline__ void clear(int digit) { low[digit] = high[digit] = ids[digit] = 0; }

  __device__ __forceinline__ void add(int digit, uint64_t value) {
    const uint32_t part = uint32_t(value), before = atomicAdd(&low[digit], part);
    const uint32_t rest = uint32_t(value >> 32) + (before + part < part ? 1u : 0u);
    if (rest != 0) atomicAdd(&high[digit], rest);
  }

  __device__ __forceinline__ uint64_t sum(int digit) const { return uint64_t(high[digit]) << 32 | low[digit]; }
};

struct ChooseShared {
  uint64_t warps[kChooseWarps];
  uint64_t more_warps[kChooseWarps];
  uint64_t ranks[LS_SPEC_CANDIDATES];  // before there are any: the largest of each patch
  uint16_t places[LS_SPEC_CANDIDATES];
  ReachShared reach;
  Digits digits;
  uint64_t weights[kChooseThreads];
  uint64_t left, limit;
  uint32_t digit, count, place_count;
  int32_t kept;
  RowShared sequence;
  bool all;
};

// What a row's block knows.
struct Chooser {
  const ls_spec_sample_params& p;
  int64_t row;
  Row at;
  Rules rules;
  Source source;
  uint64_t most;
  float max;
  int parts;  // of the row, in the first pass
  ChooseShared& s;
};

// The rank of the last id that is left, the mass up to there, and the best draw.
struct Outcome {
  uint64_t limit, kept, best;
};

__device__ __forceinline__ Draw draw_of(const Chooser& c) {
  const philox::Use use = use_of(c.p);
  return Draw(c.rules, c.max, id_of(c.most), Draw::likeliest_score(c.rules, id_of(c.most), c.at, use), c.at, use);
}

// The score of an id and the id itself; 0 where min-p leaves it out.
__device__ __forceinline__ uint64_t score_of_id(const Chooser& c, float x, uint32_t id) {
  const uint32_t bits = bits_of(id, uint32_t(c.at.position) + 1, use_of(c.p), c.rules.seed);
  const float z = tempered(x, c.max, c.rules.temperature), score = __fadd_rn(z, philox::gumbel(bits));
  return !(z > -kInfinity) || exp(z) < c.rules.least_weight() ? 0 : packed(ordered(score), id);
}

// All ids of a part of the row for which `left(x)`.
template <typename Left>
__device__ __forceinline__ void take_part(const Chooser& c, Draw& draw, int part, const Left& left) {
  constexpr int kAtOnce = 2, kAround = kChooseThreads * kGroup;
  const int32_t ids = chunk_ids(c.p.vectors), begin = part * ids, end = min(begin + ids, c.p.valid);
#pragma unroll 1
  for (int32_t at = begin + int32_t(threadIdx.x) * kGroup; at < end; at += kAtOnce * kAround) {
    float x[kAtOnce][kGroup];  // all on their way before the first is looked at
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t id = at + i * kAround;
      load_group(c.source.row, id, id < end ? c.p.valid : 0, c.source.aligned, x[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t id = at + i * kAround;
      if (!draw.group_may_win(x[i], uint32_t(id))) continue;
#pragma unroll 1
      for (int32_t one = id; one < min(id + kGroup, end); ++one) {
        const float l = c.source.row[one];
        if (left(l)) draw.take(l, uint32_t(one));
      }
    }
  }
}

// Of the ids for which `left(x)`, the best one: what the parts name as possible winners, and all of those parts that could
// not say. `first_drawn`: what the thread's first part says.
template <typename Left>
__device__ __forceinline__ uint64_t draw_whole(const Chooser& c, uint64_t first_drawn, const Left& left) {
  ChooseShared& s = c.s;
  const float scale = kLog2E / c.rules.temperature;
  const int64_t first = c.row * c.parts;
  if (threadIdx.x == 0) s.count = s.place_count = 0, s.all = c.max == kInfinity;
  const auto base_of = [&](uint64_t best) { return __fmul_rn(__fadd_rn(value_of(best), -c.max), scale); };
  uint64_t top = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < c.parts; i += kChooseThreads) {
    const uint64_t best = c.p.best[first + i];
    if (best == 0) continue;
    const uint64_t drawn = i < kChooseThreads ? first_drawn : c.p.drawn[first + i];
    const float known = base_of(best) + score_of(drawn);
    if (known > -kInfinity) top = larger(top, packed(ordered(known), 0));
  }
  top = block_max<kChooseThreads>(top, s.more_warps);
  const float enough = top == 0 ? -kInfinity : value_of(top) - kSlack;
  uint32_t* const groups = reinterpret_cast<uint32_t*>(s.ranks);
  constexpr uint32_t kGroups = LS_SPEC_CANDIDATES;
#pragma unroll 1
  for (int i = threadIdx.x; i < c.parts; i += kChooseThreads) {
    const uint64_t best = c.p.best[first + i];
    if (best == 0) continue;
    const uint64_t drawn = i < kChooseThreads ? first_drawn : c.p.drawn[first + i];
    const float base = base_of(best);
    const uint32_t found = group_of(drawn);
    if (!(base + kMostNoise >= enough)) continue;
    if (found > kFound) {
      const uint32_t place = atomicAdd(&s.place_count, 1u);
      if (place < LS_SPEC_CANDIDATES) s.places[place] = uint16_t(i);
      continue;
    }
#pragma unroll 1
    for (uint32_t j = 0; j < found; ++j) {
      const uint64_t one = c.p.found[(first + i) * kFound + j];
      if (!(base + score_of(one) >= enough)) continue;
      const uint32_t place = atomicAdd(&s.count, 1u);
      if (place < kGroups) groups[place] = group_of(one);
    }
  }
  __syncthreads();
  const bool all = s.all || s.count > kGroups || s.place_count > LS_SPEC_CANDIDATES;
  uint64_t choice = 0;
  if (!all) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < s.count * kGroup; i += kChooseThreads) {
      const uint32_t id = groups[i / kGroup] * kGroup + i % kGroup;
      if (id >= uint32_t(c.p.valid)) continue;
      const float x = c.source.row[id];
      if (left(x)) choice = larger(choice, score_of_id(c, x, id));  // a neighbour may have been cut off
    }
  }
  const uint32_t again = all ? c.parts : s.place_count;
  if (again > 0) {
    Draw draw = draw_of(c);
#pragma unroll 1
    for (uint32_t i = 0; i < again; ++i) {
      const int part = all ? int(i) : int(s.places[i]);
      const uint64_t best = c.p.best[first + part];
      if (best != 0 && (c.max != kInfinity || value_of(best) == c.max)) take_part(c, draw, part, left);
    }
    if (left(c.max)) choice = larger(choice, draw.best);
  }
  __syncthreads();  // s.warps is free
  return block_max<kChooseThreads>(choice, s.warps);
}

// A row whose only filter is min-p: the patches that reach so far down.
__device__ __forceinline__ uint64_t draw_near(const Chooser& c) {
  ChooseShared& s = c.s;
  const int count = patches(c.p.valid);
  Draw draw = draw_of(c);
#pragma unroll 1
  for (int base = 0; base < count; base += LS_SPEC_CANDIDATES) {
    __syncthreads();  // the list has been read
    if (threadIdx.x == 0) s.place_count = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < LS_SPEC_CANDIDATES; i += kChooseThreads) {
      const uint32_t order = base + i < count ? c.p.patch_most[c.row * count + base + i] : 0;
      if (order != 0 && !(draw.weight_bound(unordered(order)) < draw.at_least)) {
        s.places[atomicAdd(&s.place_count, 1u)] = uint16_t(i);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x / kLanes; i < s.place_count; i += kChooseWarps) {
      const int32_t id = (base + s.places[i]) * kPatch + int32_t(threadIdx.x % kLanes) * kGroup;
      float x[kGroup];
      load_group(c.source.row, id, c.p.valid, c.source.aligned, x);
      if (!draw.group_may_win(x, uint32_t(id))) continue;
#pragma unroll 1
      for (int32_t one = id; one < min(id + kGroup, c.p.valid); ++one) draw.take(c.source.row[one], uint32_t(one));
    }
  }
  return block_max<kChooseThreads>(draw.best, s.warps);
}

}  // namespace lockstep::spec
