// The last kernel of sampling: one block has one row and gives its token.
#pragma once

#include "lockstep/launch.cuh"
#include "narrow.cuh"

namespace lockstep::spec {

constexpr int kChooseThreads = 512;
constexpr int kChooseWarps = kChooseThreads / kLanes;
constexpr int kDigits = 256;  // of eight bits of a rank
static_assert(LS_SPEC_CANDIDATES % kChooseThreads == 0, "a thread has as many neighbours in the sorted list");

struct ChooseShared {
  uint64_t warps[kChooseWarps];
  uint64_t more_warps[kChooseWarps];
  uint64_t ranks[LS_SPEC_CANDIDATES];
  ReachShared reach;
  uint32_t low[kDigits], high[kDigits];
  uint64_t prefix, left;
  int32_t kept, sequence;
};

__device__ __forceinline__ uint64_t block_sum(uint64_t value, uint64_t (&shared)[kChooseWarps]) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  __syncthreads();  // an earlier sum has been read
  if (threadIdx.x % kLanes == 0) shared[threadIdx.x / kLanes] = value;
  __syncthreads();
  uint64_t sum = 0;
  for (int warp = 0; warp < kChooseWarps; ++warp) sum += shared[warp];
  return sum;
}

// Sorts the first `count` ranks, in a bitonic network over a power of two.
__device__ __forceinline__ void sort(uint64_t* ranks, uint32_t count) {
  uint32_t size = 1;
  while (size < count) size *= 2;
  for (uint32_t i = count + threadIdx.x; i < size; i += kChooseThreads) ranks[i] = UINT64_MAX;
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (uint32_t pair = threadIdx.x; pair < size / 2; pair += kChooseThreads) {
        const uint32_t i = pair / distance * 2 * distance + pair % distance, j = i + distance;
        const uint64_t a = ranks[i], b = ranks[j];
        if ((a > b) == ((i & run) == 0)) ranks[i] = b, ranks[j] = a;
      }
    }
  }
  __syncthreads();
}

__device__ __forceinline__ uint64_t weight_of(float x, float max, const Rules& rules) {
  return units(exp(tempered(x, max, rules.temperature)));
}

// How many of the sorted ranks the filters leave.
__device__ __forceinline__ int32_t keep_sorted(const ls_spec_sample_params& p, const Rules& rules, float max,
                                               uint32_t count, uint64_t all, ChooseShared& s) {
  constexpr int kEach = LS_SPEC_CANDIDATES / kChooseThreads;
  const bool by_count = rules.by_count(p.valid);
  const uint32_t left = by_count ? min(uint32_t(rules.top_k), count) : count;
  if (!rules.by_mass()) return int32_t(left);
  const auto weight = [&](uint32_t at) {
    return at < left ? weight_of(value_of_rank(s.ranks[at]), max, rules) : 0;
  };
  const uint32_t first = threadIdx.x * kEach;
  uint64_t sum = 0;
#pragma unroll 1
  for (int i = 0; i < kEach; ++i) sum += weight(first + i);
  const uint64_t mass = block_sum(sum, s.warps);
  const uint64_t target = share_of(rules.top_p, by_count ? mass : all);
  // Sums of the threads before this one.
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  uint64_t until = sum;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const uint64_t other = __shfl_up_sync(kWholeWarp, until, distance);
    if (lane >= distance) until += other;
  }
  if (lane == kLanes - 1) s.more_warps[warp] = until;
  if (threadIdx.x == 0) s.kept = int32_t(left);
  __syncthreads();
  for (int i = 0; i < warp; ++i) until += s.more_warps[i];
  uint64_t so_far = until - sum;
  if (so_far < target && until >= target) {  // in one thread's part
    uint32_t at = first;
#pragma unroll 1
    for (; so_far < target; ++at) so_far += weight(at);
    s.kept = int32_t(at);
  }
  __syncthreads();
  return s.kept;
}

// The long way, where too many ids are within reach to be sorted: the least rank up to which the ids of the row that
// are not behind `limit` number `target` (or weigh it), eight bits of it in each pass over the row. One block reads the
// row eight times: a distribution this flat is not what filters are for.
__device__ __forceinline__ uint64_t select(const ls_spec_sample_params& p, const float* row, float max, const Rules& rules,
                                        bool by_mass, uint64_t target, uint64_t limit, ChooseShared& s) {
  uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < kDigits) s.low[threadIdx.x] = s.high[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t id = threadIdx.x; id < p.valid; id += kChooseThreads) {
      const float x = row[id];
      if (!alive(x, max)) continue;
      const uint64_t rank = rank_of(x, uint32_t(id));
      if (rank > limit || (shift < 56 && rank >> (shift + 8) != prefix)) continue;
      const int digit = int(rank >> shift & (kDigits - 1));
      add_to(s.low[digit], s.high[digit], by_mass ? weight_of(x, max, rules) : 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 0;
      uint64_t left = target;
      for (; digit < kDigits - 1; ++digit) {
        const uint64_t here = uint64_t(s.high[digit]) << 32 | s.low[digit];
        if (here >= left) break;
        left -= here;
      }
      s.prefix = prefix << 8 | uint64_t(digit);
      s.left = left;
    }
    __syncthreads();
    prefix = s.prefix;
    target = s.left;
  }
  return prefix;
}

// The token of a row whose ids top-k or top-p cut down.
__device__ __forceinline__ uint64_t choose_filtered(const ls_spec_sample_params& p, int64_t row, const Source& source,
                                                    const Row& at, const Rules& rules, uint64_t most,
                                                    ChooseShared& s) {
  const float max = value_of(most);
  const Reach reach = reach_of(p, row, rules, s.reach);
  Draw draw(rules, max, id_of(most), at.position, p.noise);
  if (reach.count <= LS_SPEC_CANDIDATES) {
    const uint32_t count = min(p.candidate_counts[row], uint32_t(LS_SPEC_CANDIDATES));
    for (uint32_t i = threadIdx.x; i < count; i += kChooseThreads) {
      s.ranks[i] = p.candidates[row * LS_SPEC_CANDIDATES + i];
    }
    sort(s.ranks, count);
    const int32_t kept = keep_sorted(p, rules, max, count, reach.mass, s);
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < kept; i += kChooseThreads) {
      const uint32_t id = uint32_t(s.ranks[i]);
      draw.look_at(value_of_rank(s.ranks[i]), id, philox::bits(draw.seed, draw.position, id, draw.use));
    }
    return draw.best;
  }
  // First top-k, then top-p on what it left.
  uint64_t limit = UINT64_MAX;
#pragma unroll 1
  for (int filter = 0; filter < 2; ++filter) {
    const bool by_mass = filter == 1;
    if (by_mass ? !rules.by_mass() : !rules.by_count(p.valid)) continue;
    uint64_t here = 0;
    for (int32_t id = threadIdx.x; id < p.valid; id += kChooseThreads) {
      const float x = source.row[id];
      if (!alive(x, max) || rank_of(x, uint32_t(id)) > limit) continue;
      here += by_mass ? weight_of(x, max, rules) : 1;
    }
    const uint64_t all = block_sum(here, s.warps);
    const uint64_t target = by_mass ? share_of(rules.top_p, all) : uint64_t(rules.top_k);
    if (target <= all) limit = select(p, source.row, max, rules, by_mass, target, limit, s);
  }
#pragma unroll 1
  for (int32_t id = threadIdx.x; id < p.valid; id += kChooseThreads) {
    const float x = source.row[id];
    if (alive(x, max) && rank_of(x, uint32_t(id)) <= limit) draw.take(x, uint32_t(id));
  }
  return draw.best;
}

// Grid: x = rows.
__global__ void __launch_bounds__(kChooseThreads) choose(const ls_spec_sample_params p, bool aligned, int chunks) {
  __shared__ ChooseShared s;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.x;
  if (row == 0) {
    // Every sequence's faults, once; the passes before have looked at single rows.
    for (int32_t i = threadIdx.x; i < p.rows.sequences; i += kChooseThreads) {
      sequence_at(p.rows, i, p.positions, true);
    }
  }
  const Row at = row_of<kChooseThreads>(p.rows, int32_t(row), p.positions, s.sequence);
  uint64_t best = 0;
  if (at.live) {  // the whole block, as all that follows
    const Rules rules = rules_of(p.rules, at.slot);
    const uint64_t most = row_max<kChooseThreads>(p.best + row * chunks, chunks, s.warps);
    if (most == 0 || rules.greedy()) {
      best = most;
    } else if (!rules.filtered(p.valid)) {
      best = row_max<kChooseThreads>(p.drawn + row * chunks, chunks, s.more_warps);
    } else {
      const Source source = source_of(p, row, at, rules, aligned);
      best = choose_filtered(p, row, source, at, rules, most, s);
      __syncthreads();  // s.warps is free
      best = block_max<kChooseThreads>(best, s.warps);
    }
  }
  if (threadIdx.x == 0) p.choice[row] = best == 0 ? -1 : int32_t(id_of(best));
}

}  // namespace lockstep::spec
