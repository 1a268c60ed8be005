// The last kernel of sampling: one block has one row and gives its token.
#pragma once

#include "lockstep/launch.cuh"
#include "narrow.cuh"

namespace lockstep::spec {

constexpr int kChooseThreads = 512;
constexpr int kChooseWarps = kChooseThreads / kLanes;
constexpr int kDigits = 256;  // of eight bits
static_assert(kDigits == kThreads, "running_sum() has a thread for each");

struct ChooseShared {
  uint64_t warps[kChooseWarps];
  uint64_t more_warps[kChooseWarps];
  uint64_t ranks[LS_SPEC_CANDIDATES];  // before there are any: the largest of each patch
  uint16_t places[LS_SPEC_CANDIDATES];
  ReachShared reach;
  Bins digits;
  uint64_t left;
  uint32_t digit, count, place_count;
  int32_t kept, sequence;
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
  int chunks;
  ChooseShared& s;
};

// The rank of the last id that is left, the mass up to there, and the best draw.
struct Outcome {
  uint64_t limit, kept, best;
};

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

// The mass of the first `count` sorted ranks, as it is or as min-p leaves it.
template <bool kKept>
__device__ __forceinline__ uint64_t mass_of(const Chooser& c, uint32_t count) {
  uint64_t sum = 0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < count; i += kChooseThreads) {
    const float x = value_of_rank(c.s.ranks[i]);
    sum += kKept ? kept_weight_of(x, c.max, c.rules) : weight_of(x, c.max, c.rules);
  }
  return block_sum<kChooseThreads>(sum, c.s.warps);
}

// How many of the first `count` sorted ranks it takes for their mass and `before` to reach `target`; all, if they do not.
__device__ __forceinline__ uint32_t reaching(const Chooser& c, uint32_t count, uint64_t before, uint64_t target) {
  ChooseShared& s = c.s;
  const uint32_t each = ceil_div(count, uint32_t(kChooseThreads)), first = threadIdx.x * each;
  const auto weight = [&](uint32_t i) {
    return i < count ? weight_of(value_of_rank(s.ranks[i]), c.max, c.rules) : 0;
  };
  uint64_t sum = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < each; ++i) sum += weight(first + i);
  // Sums of the threads before this one.
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  uint64_t until = sum;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const uint64_t other = __shfl_up_sync(kWholeWarp, until, distance);
    if (lane >= distance) until += other;
  }
  if (lane == kLanes - 1) s.more_warps[warp] = until;
  if (threadIdx.x == 0) s.kept = int32_t(count);
  __syncthreads();
  until += before;
  for (int i = 0; i < warp; ++i) until += s.more_warps[i];
  uint64_t so_far = until - sum;
  if (so_far < target && until >= target) {  // in one thread's part
    uint32_t i = first;
#pragma unroll 1
    for (; so_far < target; ++i) so_far += weight(i);
    s.kept = int32_t(i);
  }
  __syncthreads();
  return uint32_t(s.kept);
}

__device__ __forceinline__ Draw draw_of(const Chooser& c) {
  const philox::Use use = use_of(c.p);
  return Draw(c.rules, c.max, id_of(c.most), Draw::likeliest_score(c.rules, id_of(c.most), c.at, use), c.at, use);
}

// The best score in a row without filters, from the best scores of its chunks: off by so much at most, as scores that may
// win have |z| below 30, and some by ids that min-p takes away.
constexpr float kScoreSlack = 1e-3f;

__device__ __forceinline__ float chunk_score(const Chooser& c, const Draw& draw, int chunk) {
  const uint64_t best = c.p.best[c.row * c.chunks + chunk];
  if (best == 0) return -kInfinity;
  const float z = tempered(value_of(best), c.max, c.rules.temperature);
  if (ex2_approx(z * kLog2E) * 1.002f < draw.at_least) return -kInfinity;  // nothing heavy enough in it
  return z + value_of(c.p.drawn[c.row * c.chunks + chunk]);
}

__device__ __forceinline__ void take_chunk(const Chooser& c, Draw& draw, int chunk) {
  constexpr int kAtOnce = 2, kAround = kChooseThreads * kGroup;
  const int32_t ids = chunk_ids(c.p.vectors), begin = chunk * ids, end = min(begin + ids, c.p.valid);
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
      for (int32_t one = id; one < min(id + kGroup, end); ++one) draw.take(c.source.row[one], uint32_t(one));
    }
  }
}

__device__ __forceinline__ uint64_t draw_whole(const Chooser& c) {
  ChooseShared& s = c.s;
  Draw draw = draw_of(c);
  uint64_t top = 0;
  for (int chunk = threadIdx.x; chunk < c.chunks; chunk += kChooseThreads) {
    top = larger(top, packed(ordered(chunk_score(c, draw, chunk)), uint32_t(chunk)));
  }
  const int first = int(id_of(block_max<kChooseThreads>(top, s.more_warps)));
  take_chunk(c, draw, first);
  // Others that come as near as rounding reaches.
  draw.best = block_max<kChooseThreads>(draw.best, s.warps);
  draw.raise(value_of(draw.best));
  const float enough = draw.least - kScoreSlack;
#pragma unroll 1
  for (int base = 0; base < c.chunks; base += kChooseThreads) {
    __syncthreads();  // the list has been read
    if (threadIdx.x == 0) s.place_count = 0;
    __syncthreads();
    const int chunk = base + threadIdx.x;
    if (chunk < c.chunks && chunk != first && chunk_score(c, draw, chunk) >= enough) {
      s.places[atomicAdd(&s.place_count, 1u)] = uint16_t(threadIdx.x);
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = 0; i < s.place_count; ++i) take_chunk(c, draw, base + s.places[i]);
  }
  __syncthreads();
  return block_max<kChooseThreads>(draw.best, s.warps);
}

// Lists the ids that are at least as large as the k-th largest of the patches' maxima: k of them at least, and hardly
// more. s.count says how many.
__device__ __forceinline__ void list_few(const Chooser& c) {
  ChooseShared& s = c.s;
  const int count = patches(c.p.valid);
  uint32_t* const maxima = reinterpret_cast<uint32_t*>(s.ranks);
  for (int i = threadIdx.x; i < count; i += kChooseThreads) maxima[i] = c.p.patch_most[c.row * count + i];
  if (threadIdx.x == 0) s.count = s.place_count = 0;
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
  least = max(least, 1u);  // 0 is a patch with nothing in it
  for (int i = threadIdx.x; i < count; i += kChooseThreads) {
    if (maxima[i] >= least) s.places[atomicAdd(&s.place_count, 1u)] = uint16_t(i);
  }
  __syncthreads();  // ranks take the place of the maxima
#pragma unroll 1
  for (uint32_t i = threadIdx.x / kLanes; i < s.place_count; i += kChooseWarps) {
    const int32_t id = s.places[i] * kPatch + int32_t(threadIdx.x % kLanes) * kGroup;
    float x[kGroup];
    load_group(c.source.row, id, c.p.valid, c.source.aligned, x);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (!alive(x[j], c.max) || ordered(x[j]) < least) continue;
      const uint32_t place = atomicAdd(&s.count, 1u);
      if (place < LS_SPEC_CANDIDATES) s.ranks[place] = rank_of(x[j], uint32_t(id + j));
    }
  }
  __syncthreads();
}

// The long way, where too many ids are within reach to be sorted: the least rank up to which the ids of the row that
// are not behind `limit` number `target` (or weigh it), eight bits of it in each pass over the row. One block reads the
// row eight times: a distribution this flat is not what filters are for.
__device__ __forceinline__ uint64_t select(const Chooser& c, bool by_mass, uint64_t target, uint64_t limit) {
  ChooseShared& s = c.s;
  uint64_t prefix = 0;
#pragma unroll 1
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    // Of a whole row, whose parts' sums are not those of a chunk: twice 32 bits, with the carry.
    if (threadIdx.x < kDigits) s.digits.clear(threadIdx.x);
    __syncthreads();
    for (int32_t id = threadIdx.x; id < c.p.valid; id += kChooseThreads) {
      const float x = c.source.row[id];
      if (!alive(x, c.max)) continue;
      const uint64_t rank = rank_of(x, uint32_t(id));
      if (rank > limit || (shift < 56 && rank >> (shift + 8) != prefix)) continue;
      const int digit = int(rank >> shift & (kDigits - 1));
      const uint64_t value = by_mass ? weight_of(x, c.max, c.rules) : 1;
      const uint32_t part = uint32_t(value), before = atomicAdd(&s.digits.low[digit], part);
      const uint32_t rest = uint32_t(value >> 32) + (before + part < part ? 1u : 0u);
      if (rest != 0) atomicAdd(&s.digits.high[digit], rest);
    }
    __syncthreads();
    const int digit = threadIdx.x;
    find_digit(digit < kDigits ? uint64_t(s.digits.high[digit]) << 32 | s.digits.low[digit] : 0, target, s);
    prefix = prefix << 8 | s.digit;
    target = s.left;
  }
  __syncthreads();
  return prefix;
}

__device__ __forceinline__ Outcome choose_slowly(const Chooser& c, bool drawn) {
  const auto sum_to = [&](uint64_t limit, int what) {  // 0: a number, 1: a mass, 2: what min-p leaves of it
    uint64_t here = 0;
    for (int32_t id = threadIdx.x; id < c.p.valid; id += kChooseThreads) {
      const float x = c.source.row[id];
      if (!alive(x, c.max) || rank_of(x, uint32_t(id)) > limit) continue;
      here += what == 0 ? 1 : what == 1 ? weight_of(x, c.max, c.rules) : kept_weight_of(x, c.max, c.rules);
    }
    return block_sum<kChooseThreads>(here, c.s.warps);
  };
  // First top-k, then top-p on what it left.
  uint64_t limit = UINT64_MAX;
#pragma unroll 1
  for (int filter = 0; filter < 2; ++filter) {
    const bool by_mass = filter == 1;
    if (by_mass ? !c.rules.by_mass() : !c.rules.by_count(c.p.valid)) continue;
    const uint64_t all = sum_to(limit, filter);
    const uint64_t target = by_mass ? share_of(c.rules.top_p, all) : uint64_t(c.rules.top_k);
    if (target <= all) limit = select(c, by_mass, target, limit);
  }
  Outcome out = {limit, 0, 0};
  if (weighs(c.p, c.at)) out.kept = sum_to(limit, 2);
  if (!drawn) return out;
  Draw draw = draw_of(c);
#pragma unroll 1
  for (int32_t id = threadIdx.x; id < c.p.valid; id += kChooseThreads) {
    const float x = c.source.row[id];
    if (alive(x, c.max) && rank_of(x, uint32_t(id)) <= limit) draw.take(x, uint32_t(id));
  }
  out.best = draw.best;  // of this thread
  return out;
}

// A row whose ids top-k or top-p cut down.
__device__ __forceinline__ Outcome choose_filtered(const Chooser& c, bool drawn) {
  ChooseShared& s = c.s;
  const bool by_count = c.rules.by_count(c.p.valid);
  Listed listed = Listed::All;
  Reach reach = {};
  uint32_t count = 0;
  if (c.rules.cut(c.p.valid) == Cut::Few) {
    list_few(c);
    count = s.count;
  } else {
    reach = reach_of(c.p, c.row, c.rules, s.reach);
    listed = listed_of(c.rules, reach, c.p.valid);
    count = c.p.candidate_counts[c.row];
    for (uint32_t i = threadIdx.x; i < min(count, uint32_t(LS_SPEC_CANDIDATES)); i += kChooseThreads) {
      s.ranks[i] = c.p.candidates[c.row * LS_SPEC_CANDIDATES + i];
    }
  }
  if (listed == Listed::None || count > LS_SPEC_CANDIDATES) {
    Outcome out = choose_slowly(c, drawn);
    __syncthreads();  // s.warps is free
    out.best = block_max<kChooseThreads>(out.best, s.warps);
    return out;
  }
  sort(s.ranks, count);
  uint32_t left = count;
  if (listed == Listed::All) {
    if (by_count) left = min(uint32_t(c.rules.top_k), count);
    if (c.rules.by_mass()) left = reaching(c, left, 0, share_of(c.rules.top_p, mass_of<false>(c, left)));
  } else if (by_count) {
    left = uint32_t(min(uint64_t(c.rules.top_k) - reach.before, uint64_t(count)));
  } else {
    left = reaching(c, count, reach.before, share_of(c.rules.top_p, reach.total));
  }
  Outcome out = {left > 0 ? s.ranks[left - 1] : 0, 0, 0};
  if (weighs(c.p, c.at)) {
    out.kept = mass_of<true>(c, left);
    if (listed == Listed::Border) {
      out.kept += by_count || c.rules.least_weight() > 0.0f ? c.p.kept[c.row] : reach.before;
    }
  }
  if (!drawn) return out;
  Draw draw = draw_of(c);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < left; i += kChooseThreads) {
    draw.take(value_of_rank(s.ranks[i]), uint32_t(s.ranks[i]));
  }
  if (listed == Listed::Border) {
    for (int i = threadIdx.x; i < c.chunks; i += kChooseThreads) {
      draw.best = larger(draw.best, c.p.drawn[c.row * c.chunks + i]);
    }
  }
  __syncthreads();  // s.warps is free
  out.best = block_max<kChooseThreads>(draw.best, s.warps);
  return out;
}

// Grid: x = rows.
__global__ void __launch_bounds__(kChooseThreads) choose(const ls_spec_sample_params p, bool aligned, int chunks) {
  __shared__ ChooseShared s;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.x;
  if (row == 0 && p.kind != LS_SPEC_REJECTION) {
    // Every sequence's faults, once; the passes before have looked at single rows. The chain's are found where it ends.
    for (int32_t i = threadIdx.x; i < p.rows.sequences; i += kChooseThreads) {
      sequence_at(p.rows, i, p.positions, true);
    }
  }
  const Row at = row_of<kChooseThreads>(p.rows, int32_t(row), p.positions, s.sequence);
  Outcome out = {UINT64_MAX, 0, 0};
  uint64_t most = 0;
  bool filtered = false;
  if (at.live) {  // the whole block, as all that follows
    const Rules rules = rules_of(p.rules, at.slot);
    most = row_max<kChooseThreads>(p.best + row * chunks, chunks, s.warps);
    if (most == 0 || rules.greedy()) {
      out.best = most;
    } else {
      const Source source = source_of(p, row, at, rules, aligned);
      const Chooser chooser = {p, row, at, rules, source, most, value_of(most), chunks, s};
      filtered = rules.cut(p.valid) != Cut::None;
      if (filtered) {
        out = choose_filtered(chooser, draws(p, at));
      } else if (draws(p, at)) {
        out.best = draw_whole(chooser);
      }
    }
  }
  if (threadIdx.x != 0) return;
  p.choice[row] = out.best == 0 ? -1 : int32_t(id_of(out.best));
  if (p.kind == LS_SPEC_SAMPLE) return;
  p.most[row] = most;
  p.limits[row] = out.limit;
  if (filtered) p.kept[row] = out.kept;  // without filters it is there already
}

}  // namespace lockstep::spec
