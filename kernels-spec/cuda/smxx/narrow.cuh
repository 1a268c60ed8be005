// The second and third pass of sampling.
//
// Rows without top-k and top-p draw from all ids at once. The others are narrowed: ids are counted and weighed in bins
// of their distance from the largest, which tells how far down the filters can reach at most; what lies in there is
// listed, and a single block sorts it.
#pragma once

#include "lockstep/pdl.cuh"
#include "shape.cuh"

namespace lockstep::spec {

constexpr float kBinsPerUnit = 8.0f;

// Of x > -inf. Never smaller for a smaller x, which is all that is asked of it.
__device__ __forceinline__ int bin_of(float x, float max) {
  const float distance = x == max ? 0.0f : __fadd_rn(max, -x);  // inf - inf is no distance
  return __float2int_rd(fminf(__fmul_rn(distance, kBinsPerUnit), float(LS_SPEC_BINS - 1)));
}

// Whether an id can be chosen at all.
__device__ __forceinline__ bool alive(float x, float max) { return max == kInfinity ? x == max : x > -kInfinity; }

// Exact sums of 64 bits from shared atomics of 32: the carry goes to the upper half, so that the order of the additions
// does not show.
__device__ __forceinline__ void add_to(uint32_t& low, uint32_t& high, uint64_t value) {
  const uint32_t part = uint32_t(value), before = atomicAdd(&low, part);
  const uint32_t rest = uint32_t(value >> 32) + (before + part < part ? 1u : 0u);
  if (rest != 0) atomicAdd(&high, rest);
}

struct Bins {
  uint32_t counts[LS_SPEC_BINS];
  uint32_t low[LS_SPEC_BINS], high[LS_SPEC_BINS];
};
static_assert(LS_SPEC_BINS == kThreads, "a thread has a bin");

// Grid: x = chunks, y = rows.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) narrow(const ls_spec_sample_params p, bool aligned) {
  __shared__ uint64_t warps[kWarps], more_warps[kWarps];
  __shared__ int32_t sequence;
  __shared__ Bins bins;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  const int chunks = gridDim.x;
  const Row at = row_of<kThreads>(p.rows, int32_t(row), p.positions, sequence);
  if (!at.live) return;
  const Rules rules = rules_of(p.rules, at.slot);
  if (rules.greedy()) return;
  const Source source = source_of(p, row, at, rules, aligned);
  Chunk<kVectors> chunk;
  chunk.load(source.row, blockIdx.x, p.valid, source.aligned);
  const uint64_t most = row_max<kThreads>(p.best + row * chunks, chunks, warps);
  if (most == 0) return;
  const float max = value_of(most);

  if (!rules.filtered(p.valid)) {
    Draw draw(rules, max, id_of(most), at.position, p.noise);
    uint32_t pending = 0;  // a bit for each of this thread's ids
    static_assert(kVectors * kGroup <= 32, "an id has a bit");
#pragma unroll
    for (int step = 0; step < kVectors; ++step) {
      pending |= draw.candidates(chunk.x[step], uint32_t(chunk.first(blockIdx.x, step))) << (kGroup * step);
    }
    // A few in a hundred where the distribution is flat, hardly any elsewhere: read again.
    for (; pending != 0; pending &= pending - 1) {
      const int bit = __ffs(pending) - 1;
      const int32_t id = chunk.first(blockIdx.x, bit / kGroup) + bit % kGroup;
      draw.take(source.row[id], uint32_t(id));
    }
    const uint64_t best = block_max<kThreads>(draw.best, more_warps);
    if (threadIdx.x == 0) p.drawn[row * chunks + blockIdx.x] = best;
    return;
  }

  bins.counts[threadIdx.x] = bins.low[threadIdx.x] = bins.high[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kVectors; ++step) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float x = chunk.x[step][i];
      if (!alive(x, max)) continue;
      const int bin = bin_of(x, max);
      atomicAdd(&bins.counts[bin], 1u);
      if (!rules.by_mass()) continue;
      const uint64_t weight = units(exp(tempered(x, max, rules.temperature)));
      if (weight != 0) add_to(bins.low[bin], bins.high[bin], weight);
    }
  }
  __syncthreads();
  const int64_t mine = row * LS_SPEC_BINS + threadIdx.x;
  const uint32_t count = bins.counts[threadIdx.x];
  const uint64_t mass = uint64_t(bins.high[threadIdx.x]) << 32 | bins.low[threadIdx.x];
  if (count != 0) atomicAdd(&p.bin_counts[mine], count);
  if (mass != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&p.bin_masses[mine]), mass);
}

// How far down the filters reach at most.
struct Reach {
  int bin;         // the last one
  uint32_t count;  // ids up to there
  uint64_t mass;   // of all bins; 0 where top-p does not look
};

// The sums of all threads up to and with each, over kThreads of a block's threads (the first ones).
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
  uint64_t total;
  uint32_t count;
  int32_t bin;
};

// By all threads of a block of at least kThreads.
__device__ __forceinline__ Reach reach_of(const ls_spec_sample_params& p, int64_t row, const Rules& rules,
                                          ReachShared& shared) {
  const bool mine = threadIdx.x < kThreads;
  const int64_t at = row * LS_SPEC_BINS + threadIdx.x;
  const uint64_t counts = running_sum(mine ? p.bin_counts[at] : 0, shared.warps);
  const uint64_t masses = running_sum(mine ? p.bin_masses[at] : 0, shared.warps);
  if (threadIdx.x == kThreads - 1) shared.total = masses;
  if (threadIdx.x == 0) shared.bin = LS_SPEC_BINS - 1;
  __syncthreads();
  const bool by_count = rules.by_count(p.valid);
  // Behind top-k, top-p only takes more away.
  const uint64_t target = by_count ? uint64_t(rules.top_k) : share_of(rules.top_p, shared.total);
  const bool enough = mine && (by_count ? counts : masses) >= target;
  if (enough) atomicMin(&shared.bin, int32_t(threadIdx.x));
  __syncthreads();
  if (int32_t(threadIdx.x) == shared.bin) shared.count = uint32_t(counts);
  __syncthreads();
  return {shared.bin, shared.count, shared.total};
}

// In ascending order: descending by value, then ascending by id.
__device__ __forceinline__ uint64_t rank_of(float x, uint32_t id) { return uint64_t(~ordered(x)) << 32 | id; }
__device__ __forceinline__ float value_of_rank(uint64_t rank) { return unordered(~uint32_t(rank >> 32)); }

// Grid: x = chunks, y = rows. Lists the ids within reach where they fit.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) list(const ls_spec_sample_params p, bool aligned) {
  __shared__ uint64_t warps[kWarps];
  __shared__ int32_t sequence;
  __shared__ ReachShared shared;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  const int chunks = gridDim.x;
  const Row at = row_of<kThreads>(p.rows, int32_t(row), p.positions, sequence);
  if (!at.live) return;
  const Rules rules = rules_of(p.rules, at.slot);
  if (rules.greedy() || !rules.filtered(p.valid)) return;
  const Source source = source_of(p, row, at, rules, aligned);
  const uint64_t most = row_max<kThreads>(p.best + row * chunks, chunks, warps);
  if (most == 0) return;
  const float max = value_of(most);
  const Reach reach = reach_of(p, row, rules, shared);
  if (reach.count > LS_SPEC_CANDIDATES) return;
  Chunk<kVectors> chunk;  // not before: the registers are wanted for the sums above
  chunk.load(source.row, blockIdx.x, p.valid, source.aligned);
  uint64_t* const out = p.candidates + row * LS_SPEC_CANDIDATES;
#pragma unroll
  for (int step = 0; step < kVectors; ++step) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float x = chunk.x[step][i];
      if (!alive(x, max) || bin_of(x, max) > reach.bin) continue;
      // In any order: they are sorted.
      const uint32_t place = atomicAdd(&p.candidate_counts[row], 1u);
      if (place < LS_SPEC_CANDIDATES) out[place] = rank_of(x, uint32_t(chunk.first(blockIdx.x, step) + i));
    }
  }
}

}  // namespace lockstep::spec
