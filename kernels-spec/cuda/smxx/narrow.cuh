// The second and third pass of sampling, over rows whose filters may reach far, and over those whose mass is asked for.
//
// Ids are counted or weighed in bins of their distance from the largest. That tells in which bin the filter's border
// lies: what comes before it is kept, and only what lies in it has to be listed, for a single block to sort.
#pragma once

#include "lockstep/pdl.cuh"
#include "shape.cuh"

namespace lockstep::spec {

constexpr float kBinsPerUnit = 8.0f;

// Of x > -inf. Never smaller for a smaller x, which is all that is asked of it.
__device__ __forceinline__ int bin_of(float x, float max) {
  constexpr float kInteger = 0x1p23f;  // what is added to it rounds to whole numbers, in the low bits
  const float distance = x == max ? 0.0f : __fadd_rn(max, -x);  // inf - inf is no distance
  const float near = fminf(distance, float(LS_SPEC_BINS - 1) / kBinsPerUnit);
  return int(__float_as_uint(__fmaf_rn(near, kBinsPerUnit, kInteger)) & (LS_SPEC_BINS - 1));
}

// Exact sums of numbers of up to 2^40 from shared additions of 32 bits that nobody waits for: three parts of each, the
// sums of which cannot overflow in a chunk.
struct Bins {
  static constexpr int kBits = 19;
  static constexpr uint32_t kMask = (1u << kBits) - 1;
  static_assert(uint64_t(kMask) * chunk_ids(8) <= UINT32_MAX, "a chunk's sum of parts fits");

  uint32_t low[LS_SPEC_BINS], middle[LS_SPEC_BINS], high[LS_SPEC_BINS];

  __device__ __forceinline__ void clear(int bin) { low[bin] = middle[bin] = high[bin] = 0; }

  __device__ __forceinline__ void add(int bin, uint64_t value) {
    const uint32_t first = uint32_t(value) & kMask, second = uint32_t(value >> kBits) & kMask;
    const uint32_t third = uint32_t(value >> (2 * kBits));
    atomicAdd(&low[bin], first);
    if (second != 0) atomicAdd(&middle[bin], second);
    if (third != 0) atomicAdd(&high[bin], third);  // few ids: above a quarter of the largest
  }

  __device__ __forceinline__ uint64_t sum(int bin) const {
    return low[bin] + (uint64_t(middle[bin]) << kBits) + (uint64_t(high[bin]) << (2 * kBits));
  }
};
static_assert(LS_SPEC_BINS == kThreads, "a thread has a bin");

__device__ __forceinline__ void add_to(uint64_t& sum, uint64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&sum), value);
}

// Grid: x = chunks, y = rows.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) narrow(const ls_spec_sample_params p, bool aligned) {
  __shared__ uint64_t warps[kWarps], more_warps[kWarps];
  __shared__ int32_t sequence;
  __shared__ Bins bins;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  const int chunks = gridDim.x, index = blockIdx.x;
  const Row at = row_of<kThreads>(p.rows, int32_t(row), p.positions, sequence);
  if (!at.live) return;
  const Rules rules = rules_of(p.rules, at.slot);
  const Cut cut = rules.cut(p.valid);
  if (rules.greedy() || cut == Cut::Few || (cut == Cut::None && !weighs(p, at))) return;
  const Source source = source_of(p, row, at, rules, aligned);
  const uint64_t most = row_max<kThreads>(p.best + row * chunks, chunks, warps);
  if (most == 0) return;
  const float max = value_of(most);
  const bool by_count = rules.by_count(p.valid);
  Chunk<kVectors> chunk;
#pragma unroll
  for (int step = 0; step < kVectors; ++step) {
    // Patches whose heaviest id is far below a unit add nothing.
    constexpr float kNothing = -28.5f;  // e^-28.5 < 2^-41
    bool counts = true;
    if (cut == Cut::Wide && !by_count) {
      const int32_t patch = chunk.first(index, step) / kPatch;
      const uint32_t order = patch < patches(p.valid) ? p.patch_most[row * patches(p.valid) + patch] : 0;
      counts = order != 0 && !(tempered(unordered(order), max, rules.temperature) < kNothing);
    }
    load_group(source.row, chunk.first(index, step), counts ? p.valid : 0, source.aligned, chunk.x[step]);
  }

  const Scales scales(max, rules.temperature);
  const int32_t first_id = index * chunk_ids(kVectors), end_id = min(first_id + chunk_ids(kVectors), p.valid);
  if (cut == Cut::None) {
    uint64_t sum = 0;
    if (scales.fit() && rules.least_weight() == 0.0f) {
#pragma unroll
      for (int step = 0; step < kVectors; ++step) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          const float x = chunk.x[step][i];
          if (alive(x, max)) sum += scales.weight(x);
        }
      }
    } else {
#pragma unroll 1
      for (int32_t id = first_id + int32_t(threadIdx.x); id < end_id; id += kThreads) {
        const float x = source.row[id];
        if (alive(x, max)) sum += kept_weight_of(x, max, rules);
      }
    }
    sum = block_sum<kThreads>(sum, more_warps);
    if (threadIdx.x == 0) add_to(p.kept[row], sum);
    return;
  }

  bins.clear(threadIdx.x);
  __syncthreads();
  // Behind top-k, top-p works on a list: its ids are only counted here.
  if (by_count) {
#pragma unroll
    for (int step = 0; step < kVectors; ++step) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float x = chunk.x[step][i];
        if (alive(x, max)) atomicAdd(&bins.low[bin_of(x, max)], 1u);
      }
    }
  } else if (scales.fit()) {
#pragma unroll
    for (int step = 0; step < kVectors; ++step) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float x = chunk.x[step][i];
        if (alive(x, max)) bins.add(bin_of(x, max), scales.weight(x));
      }
    }
  } else {
#pragma unroll 1
    for (int32_t id = first_id + int32_t(threadIdx.x); id < end_id; id += kThreads) {
      const float x = source.row[id];
      if (alive(x, max)) bins.add(bin_of(x, max), weight_of(x, max, rules));
    }
  }
  __syncthreads();
  add_to(p.bins[row * LS_SPEC_BINS + threadIdx.x], bins.sum(threadIdx.x));
}

// Where the border of the first filter lies: the bin in which top-k, or top-p without it, has enough.
struct Reach {
  int bin;
  uint64_t before;  // number or mass of what comes before the bin
  uint64_t until;   // and up to its end
  uint64_t total;   // of all bins
};

// The sums of all threads up to and with each, over the first kThreads of a block's threads.
__device__ __forceinline__ uint64_t running_sum(uint64_t value, uint64_t (&warps)[kWarps]) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const uint64_t other = __shfl_up_sync(kWholeWarp, value, distance);
    if (lane >= distance) value += other;
  }
  __syncthreads();  // the last one's sums have been read
  if (lane == kLanes - 1 && warp < kWarps) warps[warp] = value;
  __syncthreads();
  for (int i = 0; i < warp && i < kWarps; ++i) value += warps[i];
  return value;
}

struct ReachShared {
  uint64_t warps[kWarps];
  Reach reach;
};

// By all threads of a block of at least kThreads.
__device__ __forceinline__ Reach reach_of(const ls_spec_sample_params& p, int64_t row, const Rules& rules,
                                          ReachShared& shared) {
  const bool mine = threadIdx.x < kThreads;
  const uint64_t here = mine ? p.bins[row * LS_SPEC_BINS + threadIdx.x] : 0;
  const uint64_t until = running_sum(here, shared.warps);
  // Fewer ids than top-k wants: all of them, with the last bin.
  if (threadIdx.x == kThreads - 1) shared.reach = {kThreads - 1, until - here, until, until};
  __syncthreads();
  const uint64_t total = shared.reach.total;
  const uint64_t target = rules.by_count(p.valid) ? uint64_t(rules.top_k) : share_of(rules.top_p, total);
  __syncthreads();
  if (mine && until >= target && until - here < target) shared.reach = {int(threadIdx.x), until - here, until, total};
  __syncthreads();
  return shared.reach;
}

// What is listed of a row.
enum class Listed {
  All,     // what top-k may reach, as it is little
  Border,  // what lies in the border's bin
  None,    // too much
};

__device__ __forceinline__ Listed listed_of(const Rules& rules, const Reach& reach, int32_t valid) {
  if (!rules.by_count(valid)) return Listed::Border;
  if (reach.until <= LS_SPEC_CANDIDATES) return Listed::All;
  return rules.by_mass() ? Listed::None : Listed::Border;
}

// In ascending order: descending by value, then ascending by id.
__device__ __forceinline__ uint64_t rank_of(float x, uint32_t id) { return uint64_t(~ordered(x)) << 32 | id; }
__device__ __forceinline__ float value_of_rank(uint64_t rank) { return unordered(~uint32_t(rank >> 32)); }

template <int kVectors>
struct ListShared {
  uint64_t warps[kWarps];
  ReachShared reach;
  uint16_t found[chunk_ids(kVectors)];  // places in the chunk; any order, as they are sorted later
  uint16_t groups[chunk_ids(kVectors) / kGroup];
  uint32_t found_count, group_count, place;
  int32_t sequence;
  float first_score;
};

// Grid: x = chunks, y = rows. Lists what has to be sorted, and draws from what is kept without.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) list(const ls_spec_sample_params p, bool aligned) {
  __shared__ ListShared<kVectors> s;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  const int chunks = gridDim.x, index = blockIdx.x;
  const Row at = row_of<kThreads>(p.rows, int32_t(row), p.positions, s.sequence);
  if (!at.live) return;
  const Rules rules = rules_of(p.rules, at.slot);
  if (rules.greedy() || rules.cut(p.valid) != Cut::Wide) return;
  const Source source = source_of(p, row, at, rules, aligned);
  const uint64_t most = row_max<kThreads>(p.best + row * chunks, chunks, s.warps);
  if (most == 0) return;
  const float max = value_of(most);
  const Reach reach = reach_of(p, row, rules, s.reach);
  const Listed listed = listed_of(rules, reach, p.valid);
  if (listed == Listed::None) return;
  if (threadIdx.x == 0) s.found_count = s.group_count = 0;
  // Where probability is with few ids, most patches are left alone: nothing in them reaches the border.
  Chunk<kVectors> chunk;
#pragma unroll
  for (int step = 0; step < kVectors; ++step) {
    const int32_t patch = chunk.first(index, step) / kPatch;
    const uint32_t order = patch < patches(p.valid) ? p.patch_most[row * patches(p.valid) + patch] : 0;
    const bool reaches = order != 0 && bin_of(unordered(order), max) <= reach.bin;
    load_group(source.row, chunk.first(index, step), reaches ? p.valid : 0, source.aligned, chunk.x[step]);
  }
  __syncthreads();
  const bool all = listed == Listed::All;
  const bool sums = !all && weighs(p, at) && (rules.by_count(p.valid) || rules.least_weight() > 0.0f);
  uint64_t sum = 0;
#pragma unroll
  for (int step = 0; step < kVectors; ++step) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      float& x = chunk.x[step][i];
      const int bin = alive(x, max) ? bin_of(x, max) : LS_SPEC_BINS;
      if (bin == reach.bin || (all && bin < reach.bin)) {
        s.found[atomicAdd(&s.found_count, 1u)] = uint16_t((step * kThreads + threadIdx.x) * kGroup + i);
      }
      if (bin >= reach.bin) {
        x = __uint_as_float(0x7fffffffu);  // not kept for sure
      } else if (sums) {
        sum += kept_weight_of(x, max, rules);
      }
    }
  }
  __syncthreads();
  const uint32_t found = s.found_count;
  if (threadIdx.x == 0 && found != 0) s.place = atomicAdd(&p.candidate_counts[row], found);
  __syncthreads();
  uint64_t* const out = p.candidates + row * LS_SPEC_CANDIDATES;
  const uint32_t place = s.place;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < found && place + i < LS_SPEC_CANDIDATES; i += kThreads) {
    const int32_t id = index * chunk_ids(kVectors) + int32_t(s.found[i]);
    out[place + i] = rank_of(source.row[id], uint32_t(id));
  }
  if (all) return;
  if (sums) {
    sum = block_sum<kThreads>(sum, s.warps);
    if (threadIdx.x == 0) add_to(p.kept[row], sum);
  }
  if (!draws(p, at)) return;
  if (threadIdx.x < kLanes) {
    const float score = Draw::likeliest_score(rules, id_of(most), at, use_of(p));
    if (threadIdx.x == 0) s.first_score = score;
  }
  __syncthreads();
  Draw draw(rules, max, id_of(most), s.first_score, at, use_of(p));
  const auto kept = [&](float x) { return alive(x, max) && bin_of(x, max) < reach.bin; };
  const uint64_t best = draw_chunk(draw, chunk, index, source.row, p.valid, s.groups, s.group_count, s.warps, kept);
  if (threadIdx.x == 0) p.drawn[row * chunks + index] = best;
}

}  // namespace lockstep::spec
