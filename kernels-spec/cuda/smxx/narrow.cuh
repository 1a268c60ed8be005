// The second and third pass of sampling, over rows whose filters may reach far, and over those whose mass is asked for.
//
// Ids are counted in bins of their distance from the largest. That tells, for top-k exactly and for top-p by what ids of a
// bin weigh at least and at most, between which bins the filter's border lies. The third pass weighs all ids, draws from
// those before the border and lists those around it, for a single block to cut.
#pragma once

#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "shape.cuh"

namespace lockstep::spec {

// Bins of distances from the largest logit: never a smaller one for a smaller logit, which is all that is asked of them,
// and the weights in a bin are alike.
struct Ruler {
  float max, per_unit, reach;
  uint32_t last;

  __device__ __forceinline__ Ruler(float max_, float per_unit_, int bins)
      : max(max_), per_unit(per_unit_), reach(fminf(float(bins - 1) / per_unit_, 0x1p126f)), last(bins - 1) {}

  // Of x > -inf.
  __device__ __forceinline__ int bin(float x) const {
    constexpr float kInteger = 0x1p23f;  // what is added to it rounds to whole numbers, in the low bits
    const float distance = x == max ? 0.0f : __fadd_rn(max, -x);  // inf - inf is no distance
    return int(__float_as_uint(__fmaf_rn(fminf(distance, reach), per_unit, kInteger)) & last);
  }
};

constexpr float kBinsOfWeight = 32.0f;  // in a factor e of weight, at least
constexpr float kBinsOfLogits = 16.0f;  // in a unit of logits, at least

__device__ __forceinline__ Ruler ruler_of(const ls_spec_sample_params& p, const Rules& rules, float max) {
  const float per_unit = rules.by_count(p.valid) ? 0.0f : kBinsOfWeight / rules.temperature;
  return Ruler(max, fmaxf(per_unit, kBinsOfLogits), LS_SPEC_BINS);
}

__device__ __forceinline__ void add_to(uint64_t& sum, uint64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&sum), value);
}

// By all threads of a block.
__device__ __forceinline__ bool any_bins(const ls_spec_sample_params& p) {
  bool any = false;
  for (int32_t row = threadIdx.x; row < p.rows.row_count; row += kThreads) any |= p.tasks[row] != uint32_t(Task::None);
  return __syncthreads_or(any) != 0;
}

// False only where e^z is less than half a unit of 2^-40. `scale`: log2(e) / temperature.
__device__ __forceinline__ bool weighs_anything(float x, float max, float scale) {
  return !(__fmul_rn(__fadd_rn(x, -max), scale) < -41.1f);
}

// Groups of a thread in a piece of the second pass, of which blocks may have several.
__host__ __device__ constexpr int narrow_vectors(int vectors) { return vectors < 16 ? vectors : 16; }

struct NarrowShared {
  uint64_t warps[kWarps], more_warps[kWarps];
  RowShared sequence;
  uint32_t bins[LS_SPEC_BINS];
};

// Piece `index` of a row, which had `parts` in the first pass.
template <int kBatch>
__device__ __forceinline__ void narrow_part(const ls_spec_sample_params& p, bool aligned, int64_t row, int index,
                                            int parts, NarrowShared& s) {
  const Row at = row_of<kThreads>(p.rows, int32_t(row), p.positions, s.sequence);
  if (!at.live) return;
  const Rules rules = rules_of(p.rules, at.slot);
  const Source source = source_of(p, row, at, rules, aligned);
  const uint64_t most = row_max<kThreads>(p.best + row * parts, parts, s.warps);
  if (most == 0) return;
  const float max = value_of(most);
  const int32_t ids = chunk_ids(narrow_vectors(p.vectors));
  const int32_t first_id = index * ids, end_id = min(first_id + ids, p.valid);
  float x[kBatch][kGroup];
  load_groups<kBatch>(source.row, first_id, p.valid, source.aligned, x);
  if (rules.cut(p.valid) == Cut::None) {
    const Scales scales(max, rules.temperature);
    const bool fit = scales.fit() && rules.least_weight() == 0.0f;
    uint64_t sum = 0;
    stream<kBatch>(source, first_id, end_id, p.valid, x, [&](int32_t) {
#pragma unroll
      for (int step = 0; step < kBatch; ++step) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          if (alive(x[step][i], max)) sum += fit ? scales.weight(x[step][i]) : kept_weight_of(x[step][i], max, rules);
        }
      }
    });
    sum = block_sum<kThreads>(sum, s.more_warps);
    if (threadIdx.x == 0) add_to(p.kept[row], sum);
    return;
  }
  const bool by_count = rules.by_count(p.valid);
  const Ruler ruler = ruler_of(p, rules, max);
  for (int i = threadIdx.x; i < LS_SPEC_BINS; i += kThreads) s.bins[i] = 0;
  __syncthreads();
  // Of what weighs nothing there may be much, and all in one place.
  const bool skips = !by_count && ruler.per_unit > kBinsOfLogits;
  const int end_bin = skips ? LS_SPEC_BINS - 1 : LS_SPEC_BINS;
  stream<kBatch>(source, first_id, end_id, p.valid, x, [&](int32_t) {
#pragma unroll
    for (int step = 0; step < kBatch; ++step) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (!alive(x[step][i], max)) continue;
        const int bin = ruler.bin(x[step][i]);
        if (bin < end_bin) atomicAdd(&s.bins[bin], 1u);
      }
    }
  });
  __syncthreads();
  for (int i = threadIdx.x; i < LS_SPEC_BINS; i += kThreads) {
    if (s.bins[i] != 0) atomicAdd(&p.bins[row * LS_SPEC_BINS + i], s.bins[i]);
  }
}

// Grid: as many blocks as run at once. Where no row has bins, they end here.
template <int kBatch>
__global__ void __launch_bounds__(kThreads, 3) narrow(const ls_spec_sample_params p, bool aligned, int parts) {
  __shared__ NarrowShared s;
  pdl::wait();
  pdl::launch_dependents();
  if (!any_bins(p)) return;
  const int pieces = ceil_div(p.valid, chunk_ids(narrow_vectors(p.vectors)));
#pragma unroll 1
  for (int64_t i = blockIdx.x; i < int64_t(pieces) * p.rows.row_count; i += gridDim.x) {
    const int64_t row = i / pieces;
    if (p.tasks[row] == uint32_t(Task::None)) continue;
    __syncthreads();  // the last piece's numbers have been read
    narrow_part<kBatch>(p, aligned, row, int(i - row * pieces), parts, s);
  }
}

// Where the border of the first filter lies, top-k's or without it top-p's.
struct Reach {
  int first, last;        // bins: what comes before the first is kept, what comes after the last is not
  uint32_t before, until; // ids before the first, and up to the end of the last
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
  uint64_t warps[kWarps], more_warps[kWarps];
  uint64_t total;
  Reach reach;
};

// By all threads of a block of at least kThreads; all blocks find the same.
__device__ __forceinline__ Reach reach_of(const ls_spec_sample_params& p, int64_t row, const Rules& rules,
                                          ReachShared& shared) {
  constexpr int kEach = LS_SPEC_BINS / kThreads;
  const bool mine = threadIdx.x < kThreads, by_count = rules.by_count(p.valid);
  const float decay = kLog2E / (ruler_of(p, rules, 0.0f).per_unit * rules.temperature);  // of weight, from bin to bin
  uint32_t here[kEach], count = 0;
  uint64_t mass[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int bin = int(threadIdx.x) * kEach + i;
    count += here[i] = mine ? p.bins[row * LS_SPEC_BINS + bin] : 0;
    // As if all were in the middle of the bin: sums of integers, which have no order.
    const float weight = ex2_approx(40.0f - float(bin) * decay);
    sum += mass[i] = by_count ? here[i] : here[i] * __float2ull_rz(weight);
  }
  uint64_t until = running_sum(sum, shared.warps);
  const uint32_t ids = uint32_t(running_sum(count, shared.more_warps));
  if (threadIdx.x == kThreads - 1) {
    shared.total = until;
    // Fewer ids than top-k wants: all of them, with the last bin.
    shared.reach = {LS_SPEC_BINS - 1, LS_SPEC_BINS - 1, ids - here[kEach - 1], ids};
  }
  __syncthreads();
  // Up to a bin whose ids weigh C, followed by others that weigh R: top-p has enough if (1 - p) C >= p R. Weights are off
  // by half a bin at most, so the ratio of the two is by one.
  constexpr double kOff = 1.034;  // e^(1/32) = 1.0318
  const double p_kept = double(fmaxf(rules.top_p, 0.0f)), p_left = 1.0 - p_kept, total = double(shared.total);
  const auto enough = [&](uint64_t c, double off) {
    if (by_count) return c >= uint64_t(rules.top_k);
    return p_left * double(c) * off >= p_kept * (total - double(c));
  };
  if (mine) {
    uint64_t c = until - sum;
    uint32_t n = ids - count;
    // Nothing is before the first bin, which may be enough all the same.
    bool before_first = threadIdx.x > 0 && enough(c, kOff), before_last = threadIdx.x > 0 && enough(c, 1.0 / kOff);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      c += mass[i];
      n += here[i];
      const bool first = enough(c, kOff), last = enough(c, 1.0 / kOff);
      const int bin = int(threadIdx.x) * kEach + i;
      if (first && !before_first) shared.reach.first = bin, shared.reach.before = n - here[i];
      if (last && !before_last) shared.reach.last = bin, shared.reach.until = n;
      before_first = first, before_last = last;
    }
  }
  __syncthreads();
  return shared.reach;
}

// What is listed of a row.
enum class Listed {
  All,     // what top-k may reach, as it is little
  Border,  // what lies in the border's bins
  None,    // too much
};

__device__ __forceinline__ Listed listed_of(const Rules& rules, const Reach& reach, int32_t valid) {
  if (!rules.by_count(valid)) {
    return reach.until - reach.before <= LS_SPEC_CANDIDATES ? Listed::Border : Listed::None;
  }
  if (reach.until <= LS_SPEC_CANDIDATES) return Listed::All;
  return rules.by_mass() || reach.until - reach.before > LS_SPEC_CANDIDATES ? Listed::None : Listed::Border;
}

// In ascending order: descending by value, then ascending by id.
__device__ __forceinline__ uint64_t rank_of(float x, uint32_t id) { return uint64_t(~ordered(x)) << 32 | id; }
__device__ __forceinline__ float value_of_rank(uint64_t rank) { return unordered(~uint32_t(rank >> 32)); }

struct ListShared {
  uint64_t warps[kWarps];
  ReachShared reach;
  LeadersShared leaders;
  int32_t found[LS_SPEC_CANDIDATES];  // in any order
  uint32_t found_count, place;
  RowShared sequence;
};

// Of a part of a row: lists what has to be cut, and draws from what is kept without.
template <int kBatch>
__device__ __forceinline__ void list_part(const ls_spec_sample_params& p, bool aligned, int64_t row, int index,
                                          int parts, ListShared& s) {
  const Row at = row_of<kThreads>(p.rows, int32_t(row), p.positions, s.sequence);
  if (!at.live) return;
  const Rules rules = rules_of(p.rules, at.slot);
  if (rules.cut(p.valid) != Cut::Wide) return;
  const Source source = source_of(p, row, at, rules, aligned);
  const uint64_t most = row_max<kThreads>(p.best + row * parts, parts, s.warps);
  if (most == 0) return;
  const float max = value_of(most);
  const Reach reach = reach_of(p, row, rules, s.reach);
  const Listed listed = listed_of(rules, reach, p.valid);
  if (listed == Listed::None) return;
  if (threadIdx.x == 0) {
    s.found_count = 0;
    s.leaders.clear();
    s.leaders.best = ordered(-4.6f);  // the row's largest logit, which is kept, is never below -ln 22.2
  }
  __syncthreads();
  const bool all = listed == Listed::All, by_count = rules.by_count(p.valid), drawn = !all && draws(p, at);
  const bool sums = !all && weighs(p, at) && (by_count || rules.least_weight() > 0.0f);
  const int32_t ids = chunk_ids(p.vectors), first_id = index * ids, end_id = min(first_id + ids, p.valid);
  const Ruler ruler = ruler_of(p, rules, max);
  const Scales scales(max, rules.temperature);
  const bool fit = scales.fit();
  const philox::Use use = use_of(p);
  Leaders leaders = {max, kLog2E / rules.temperature, rules.seed, uint32_t(at.position) + 1, use};
  if (rules.least_weight() > 0.0f) leaders.floor = lg2_approx(rules.least_weight()) + kSlack;
  const RowNoise noise(rules.seed, leaders.position, leaders.use);
  const auto kept = [&](float x) { return alive(x, max) && ruler.bin(x) < reach.first; };
  uint64_t total = 0, before = 0, left = 0;
  float x[kBatch][kGroup];
  load_groups<kBatch>(source.row, first_id, p.valid, source.aligned, x);
  stream<kBatch>(source, first_id, end_id, p.valid, x, [&](int32_t begin) {
    const int32_t mine = begin + int32_t(threadIdx.x) * kGroup;
    float step_most[kBatch], batch_most = -kInfinity;
#pragma unroll
    for (int step = 0; step < kBatch; ++step) {
      step_most[step] = -kInfinity;
      const float most_here = fmaxf(fmaxf(x[step][0], x[step][1]), fmaxf(x[step][2], x[step][3]));  // drops NaN
      const bool matters = alive(most_here, max) && (by_count ? ruler.bin(most_here) <= reach.last
                                                              : weighs_anything(most_here, max, leaders.scale));
      if (!__any_sync(kWholeWarp, matters)) continue;  // most patches, where a distribution has a peak
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float one = x[step][i];
        if (!alive(one, max)) continue;
        const int bin = ruler.bin(one);
        uint64_t weight = 0;
        if (!by_count) total += weight = fit ? scales.weight(one) : weight_of(one, max, rules);
        if (bin < reach.first) {
          before += weight;
          step_most[step] = fmaxf(step_most[step], one);
          if (sums) left += kept_weight_of(one, max, rules);
        }
        if (bin <= reach.last && (all || bin >= reach.first)) {
          const uint32_t place = atomicAdd(&s.found_count, 1u);
          if (place < LS_SPEC_CANDIDATES) s.found[place] = mine + step * kStep + i;
        }
      }
      batch_most = fmaxf(batch_most, step_most[step]);
    }
    if (drawn) {
      find_leaders<kBatch>(leaders, noise, step_most, batch_most, mine, source.row, p.valid, source.aligned, s.leaders,
                           kept);
    }
  });
  if (!by_count) {
    total = block_sum<kThreads>(total, s.warps);
    before = block_sum<kThreads>(before, s.warps);
    if (threadIdx.x == 0) {
      add_to(p.sums[row * 2], total);
      add_to(p.sums[row * 2 + 1], before);
    }
  }
  if (sums) {
    left = block_sum<kThreads>(left, s.warps);
    if (threadIdx.x == 0) add_to(p.kept[row], left);
  }
  __syncthreads();
  const uint32_t found = s.found_count;
  if (threadIdx.x == 0 && found != 0) s.place = atomicAdd(&p.candidate_counts[row], found);
  __syncthreads();
  uint64_t* const out = p.candidates + row * LS_SPEC_CANDIDATES;
  const uint32_t place = s.place;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < found && place + i < LS_SPEC_CANDIDATES; i += kThreads) {
    const int32_t id = s.found[i];
    out[place + i] = rank_of(source.row[id], uint32_t(id));
  }
  const int64_t part = row * parts + index;
  const uint64_t best = p.best[part];
  if (!drawn || threadIdx.x >= kLanes || best == 0) return;
  name_leaders(leaders, best, p.drawn + part, p.found + part * kFound, s.leaders);
}

// Grid: as for narrow().
template <int kBatch>
__global__ void __launch_bounds__(kThreads, 2) list(const ls_spec_sample_params p, bool aligned, int parts) {
  __shared__ ListShared s;
  pdl::wait();
  pdl::launch_dependents();
  if (!any_bins(p)) return;
#pragma unroll 1
  for (int64_t i = blockIdx.x; i < int64_t(parts) * p.rows.row_count; i += gridDim.x) {
    const int64_t row = i / parts;
    if (p.tasks[row] == uint32_t(Task::None)) continue;
    __syncthreads();
    list_part<kBatch>(p, aligned, row, int(i - row * parts), parts, s);
  }
}

}  // namespace lockstep::spec
