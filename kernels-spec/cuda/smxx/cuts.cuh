// How the block that has a row in the last pass lists what a filter may leave, and cuts it.
#pragma once

#include "draws.cuh"

namespace lockstep::spec {

// The first thread up to which the numbers `here` of the first 256 threads reach `target`, as s.digit, and what its own
// has to give to that, as s.left.
__device__ __forceinline__ void find_digit(uint64_t here, uint64_t target, ChooseShared& s) {
  if (threadIdx.x == 0) s.digit = kDigits - 1, s.left = target;
  const uint64_t until = running_sum(here, s.reach.warps);  // with barriers in it
  if (threadIdx.x < kDigits && until >= target && until - here < target) {
    s.digit = threadIdx.x;
    s.left = target - (until - here);
  }
  __syncthreads();
}

// The bin up to which the numbers of all 256 bins reach `target`; the last one, if they do not. `until`: the number up to
// its end. By every warp for itself.
__device__ __forceinline__ int border_of(const uint32_t* bins, uint32_t target, uint32_t& until) {
  constexpr int kEach = kDigits / kLanes;
  const int lane = threadIdx.x % kLanes;
  uint32_t here[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += here[i] = bins[lane * kEach + i];
  uint32_t before = sum;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kWholeWarp, before, distance);
    if (lane >= distance) before += other;
  }
  const uint32_t reaching = __ballot_sync(kWholeWarp, before >= target);
  before -= sum;
  int bin = lane * kEach + kEach - 1;
  uint32_t end = before + sum;
  if (reaching != 0) {
    uint32_t so_far = end;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {  // the first that reaches it stays
      if (so_far >= target) bin = lane * kEach + i, end = so_far;
      so_far -= here[i];
    }
  }
  const int owner = reaching != 0 ? __ffs(reaching) - 1 : kLanes - 1;
  until = __shfl_sync(kWholeWarp, end, owner);
  return __shfl_sync(kWholeWarp, bin, owner);
}

// The k-th largest of the patches' maxima, in order.
__device__ __forceinline__ uint32_t kth_of(const Chooser& c, const uint32_t* maxima, int count) {
  ChooseShared& s = c.s;
  uint32_t least = 0;
  uint64_t target = uint64_t(c.rules.top_k);
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < kDigits) s.digits.low[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kChooseThreads) {
      const uint32_t order = maxima[i];
      if (shift == 24 || order >> (shift + 8) == least) atomicAdd(&s.digits.low[order >> shift & (kDigits - 1)], 1u);
    }
    __syncthreads();
    // The largest digit first.
    find_digit(threadIdx.x < kDigits ? s.digits.low[kDigits - 1 - threadIdx.x] : 0, target, s);
    least = least << 8 | (kDigits - 1 - s.digit);
    target = s.left;
    __syncthreads();  // all have read it
  }
  return least;
}

constexpr float kFewBins = 8.0f;  // in a unit of logits

// Lists the ids that are at least as large as a number that k of the patches' maxima reach, and hardly more: k ids at
// least, and hardly more. s.count says how many.
__device__ __forceinline__ void list_few(const Chooser& c) {
  ChooseShared& s = c.s;
  const int count = patches(c.p.valid);
  const uint32_t k = uint32_t(c.rules.top_k);
  uint32_t* const maxima = reinterpret_cast<uint32_t*>(s.ranks);
  const Ruler ruler(c.max, kFewBins, kDigits);
  if (threadIdx.x < kDigits) s.digits.low[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.count = s.place_count = 0;
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += kChooseThreads) {
    const uint32_t order = c.p.patch_most[c.row * count + i];
    maxima[i] = order;
    if (order != 0) atomicAdd(&s.digits.low[ruler.bin(unordered(order))], 1u);
  }
  __syncthreads();
  uint32_t until;
  const int border = border_of(s.digits.low, k, until);
  uint32_t least = 1;  // 0 is a patch with nothing in it
  int last = border;
  // Where a bin holds too many, the number itself.
  if (until > k + max(k, 64u)) {
    __syncthreads();
    least = max(kth_of(c, maxima, count), 1u);
    last = kDigits;
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += kChooseThreads) {
    const uint32_t order = maxima[i];
    if (order >= least && ruler.bin(unordered(order)) <= last) {
      s.places[atomicAdd(&s.place_count, 1u)] = uint16_t(i);
    }
  }
  __syncthreads();  // ranks take the place of the maxima
#pragma unroll 1
  for (uint32_t i = threadIdx.x / kLanes; i < s.place_count; i += kChooseWarps) {
    const int32_t id = s.places[i] * kPatch + int32_t(threadIdx.x % kLanes) * kGroup;
    float x[kGroup];
    load_group(c.source.row, id, c.p.valid, c.source.aligned, x);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (!alive(x[j], c.max) || ordered(x[j]) < least || ruler.bin(x[j]) > last) continue;
      const uint32_t place = atomicAdd(&s.count, 1u);
      if (place < LS_SPEC_CANDIDATES) s.ranks[place] = rank_of(x[j], uint32_t(id + j));
    }
  }
  __syncthreads();
}

// What a list has to be cut by.
struct CutBy {
  bool by_count, by_mass, has_target;
  uint64_t count;   // ids that top-k leaves of it
  uint64_t before;  // mass of what is kept and not in it
  uint64_t target;  // mass with that; where there is none, a share of what top-k leaves
};

// Cuts a list of no more ids than threads: each is compared with all. Gives the last rank that is left; `reached`: that
// the mass is enough.
__device__ __forceinline__ uint64_t cut_short(const Chooser& c, const CutBy& by, uint32_t count, bool& reached,
                                              uint64_t& score, bool drawn) {
  ChooseShared& s = c.s;
  const bool mine = threadIdx.x < count;
  const uint64_t rank = mine ? s.ranks[threadIdx.x] : UINT64_MAX;
  const float x = value_of_rank(rank);
  uint64_t weight = 0;
  if (mine) {
    if (by.by_mass) s.weights[threadIdx.x] = weight = weight_of(x, c.max, c.rules);
    if (drawn) score = score_of_id(c, x, uint32_t(rank));
  }
  __syncthreads();
  uint32_t before = 0;
  uint64_t mass = by.before;
  if (threadIdx.x / kLanes * kLanes < count) {
#pragma unroll 4
    for (uint32_t i = 0; i < count; ++i) {
      const bool less = s.ranks[i] < rank;
      before += less ? 1 : 0;
      if (by.by_mass) mass += less ? s.weights[i] : 0;
    }
  }
  const uint32_t most = by.by_count ? uint32_t(min(by.count, uint64_t(count))) : count;
  bool kept = mine && before < most;
  if (by.by_mass) {
    uint64_t target = by.target;
    if (!by.has_target) {
      if (mine && before + 1 == most) s.left = share_of(c.rules.top_p, mass + weight);
      __syncthreads();
      target = s.left;
    }
    reached = __syncthreads_or(kept && mass + weight >= target) != 0;
    kept = kept && mass < target;
  }
  if (!kept) score = 0;
  return block_max<kChooseThreads>(kept ? rank : 0, s.more_warps);
}

// The rank up to which the ids of a list that are not behind `limit` number `target`, or weigh it. `reached`: that there is
// one.
__device__ __forceinline__ uint64_t limit_of(const Chooser& c, uint32_t count, uint64_t limit, bool by_mass,
                                             uint64_t target, bool& reached) {
  ChooseShared& s = c.s;
  const auto value = [&](uint64_t rank) { return by_mass ? weight_of(value_of_rank(rank), c.max, c.rules) : 1; };
  uint64_t low = 0, high = 0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count; i += kChooseThreads) {
    const uint64_t rank = s.ranks[i];
    low = larger(low, ~rank);
    if (rank <= limit) high = larger(high, rank);
  }
  __syncthreads();
  low = ~block_max<kChooseThreads>(low, s.warps);
  high = block_max<kChooseThreads>(high, s.more_warps);
#pragma unroll 1
  for (;;) {
    // 256 parts of what is in question.
    const uint64_t span = high - low;
    const int shift = span < kDigits ? 0 : 64 - __clzll(int64_t(span)) - 8;
    if (threadIdx.x < kDigits) s.digits.clear(threadIdx.x);
    if (threadIdx.x == 0) s.place_count = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count; i += kChooseThreads) {
      const uint64_t rank = s.ranks[i];
      if (rank < low || rank > high) continue;
      const int digit = int((rank - low) >> shift);
      atomicAdd(&s.digits.ids[digit], 1u);
      s.digits.add(digit, value(rank));
    }
    __syncthreads();
    find_digit(threadIdx.x < kDigits ? s.digits.sum(threadIdx.x) : 0, target, s);
    const uint32_t digit = s.digit, ids = s.digits.ids[digit];
    reached = s.left <= s.digits.sum(digit);
    target = s.left;
    __syncthreads();  // all have read it
    if (!reached) return high;
    low += uint64_t(digit) << shift;
    high = min(high, low + (uint64_t(1) << shift) - 1);
    if (ids <= kChooseThreads) break;
  }
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count; i += kChooseThreads) {
    const uint64_t rank = s.ranks[i];
    if (rank >= low && rank <= high) s.places[atomicAdd(&s.place_count, 1u)] = uint16_t(i);
  }
  __syncthreads();
  const uint32_t few = s.place_count;
  const bool mine = threadIdx.x < few;
  const uint64_t rank = mine ? s.ranks[s.places[threadIdx.x]] : 0, here = mine ? value(rank) : 0;
  if (mine) s.weights[threadIdx.x] = here;
  __syncthreads();
  if (mine) {
    uint64_t before = 0;
    for (uint32_t i = 0; i < few; ++i) before += s.ranks[s.places[i]] < rank ? s.weights[i] : 0;
    if (before < target && before + here >= target) s.limit = rank;
  }
  __syncthreads();
  return s.limit;
}

}  // namespace lockstep::spec
