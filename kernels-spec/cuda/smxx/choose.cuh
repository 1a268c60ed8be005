// The last kernel of sampling: one block has one row and gives its token.
#pragma once

#include "cuts.cuh"
#include "lockstep/launch.cuh"

namespace lockstep::spec {

// The long way, where too many ids are within reach to be listed: the least rank up to which the ids of the row that
// are not behind `limit` number `target` (or weigh it), eight bits of it in each pass over the row. One block reads the
// row eight times: a distribution this flat is not what filters are for.
__device__ __forceinline__ uint64_t select(const Chooser& c, bool by_mass, uint64_t target, uint64_t limit) {
  ChooseShared& s = c.s;
  uint64_t prefix = 0;
#pragma unroll 1
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < kDigits) s.digits.clear(threadIdx.x);
    __syncthreads();
    for (int32_t id = threadIdx.x; id < c.p.valid; id += kChooseThreads) {
      const float x = c.source.row[id];
      if (!alive(x, c.max)) continue;
      const uint64_t rank = rank_of(x, uint32_t(id));
      if (rank > limit || (shift < 56 && rank >> (shift + 8) != prefix)) continue;
      const int digit = int(rank >> shift & (kDigits - 1));
      const uint64_t value = by_mass ? weight_of(x, c.max, c.rules) : 1;
      s.digits.add(digit, value);
    }
    __syncthreads();
    const int digit = threadIdx.x;
    find_digit(digit < kDigits ? s.digits.sum(digit) : 0, target, s);
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
__device__ __forceinline__ Outcome choose_filtered(const Chooser& c, bool drawn, uint64_t first_drawn) {
  ChooseShared& s = c.s;
  CutBy by = {c.rules.by_count(c.p.valid), c.rules.by_mass(), false, uint64_t(c.rules.top_k), 0, 0};
  const bool by_count = by.by_count;
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
    __syncthreads();
  }
  const bool border = listed == Listed::Border;
  if (border && by_count) {
    by.count -= reach.before, by.by_mass = false;
  } else if (border) {
    by.has_target = true;
    by.before = c.p.sums[c.row * 2 + 1];
    by.target = share_of(c.rules.top_p, c.p.sums[c.row * 2]);
  }
  Outcome out = {0, 0, 0};
  uint64_t best = 0;
  bool sound = listed != Listed::None && count <= LS_SPEC_CANDIDATES && (!by.has_target || by.before < by.target);
  if (sound) {
    bool reached = true;
    if (count <= kChooseThreads) {
      out.limit = cut_short(c, by, count, reached, best, drawn);
    } else {
      uint64_t limit = UINT64_MAX;
      if (by_count) limit = limit_of(c, count, limit, false, by.count, reached);
      if (by.by_mass) {
        uint64_t target = by.target - by.before;
        if (!by.has_target) {
          uint64_t mass = 0;
          for (uint32_t i = threadIdx.x; i < count; i += kChooseThreads) {
            if (s.ranks[i] <= limit) mass += weight_of(value_of_rank(s.ranks[i]), c.max, c.rules);
          }
          target = share_of(c.rules.top_p, block_sum<kChooseThreads>(mass, s.warps));
        }
        limit = limit_of(c, count, limit, true, target, reached);
      }
      out.limit = limit;
    }
    // The bins' masses are taken for what they are about, and where they mislead, the border is not in the list.
    sound = reached || !by.has_target;
  }
  if (!sound) {
    out = choose_slowly(c, drawn);
    __syncthreads();  // s.warps is free
    out.best = block_max<kChooseThreads>(out.best, s.warps);
    return out;
  }
  if (weighs(c.p, c.at)) {
    uint64_t mass = 0;
    for (uint32_t i = threadIdx.x; i < count; i += kChooseThreads) {
      if (s.ranks[i] <= out.limit) mass += kept_weight_of(value_of_rank(s.ranks[i]), c.max, c.rules);
    }
    out.kept = block_sum<kChooseThreads>(mass, s.warps);
    if (border) out.kept += by_count || c.rules.least_weight() > 0.0f ? c.p.kept[c.row] : by.before;
  }
  if (!drawn) return out;
  if (count > kChooseThreads) {
    Draw draw = draw_of(c);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count; i += kChooseThreads) {
      if (s.ranks[i] <= out.limit) draw.take(value_of_rank(s.ranks[i]), uint32_t(s.ranks[i]));
    }
    best = draw.best;
  }
  __syncthreads();  // s.warps is free, and the list
  out.best = block_max<kChooseThreads>(best, s.warps);
  if (border && reach.first > 0) {
    const Ruler ruler = ruler_of(c.p, c.rules, c.max);
    __syncthreads();
    out.best = larger(out.best, draw_whole(c, first_drawn, [&](float x) {
      return alive(x, c.max) && ruler.bin(x) < reach.first;
    }));
  }
  return out;
}

// Grid: x = rows.
__global__ void __launch_bounds__(kChooseThreads, 1) choose(const ls_spec_sample_params p, bool aligned, int parts) {
  __shared__ ChooseShared s;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.x;
  // On their way while the row's slot and its numbers are looked up.
  uint64_t part_most = 0, drawn = 0;
  if (threadIdx.x < parts) part_most = p.best[row * parts + threadIdx.x], drawn = p.drawn[row * parts + threadIdx.x];
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
    for (int i = threadIdx.x + kChooseThreads; i < parts; i += kChooseThreads) {
      part_most = larger(part_most, p.best[row * parts + i]);
    }
    most = block_max<kChooseThreads>(part_most, s.warps);
    if (most == 0 || rules.greedy()) {
      out.best = most;
    } else {
      const Source source = source_of(p, row, at, rules, aligned);
      const Chooser chooser = {p, row, at, rules, source, most, value_of(most), parts, s};
      filtered = rules.cut(p.valid) != Cut::None;
      if (filtered) {
        out = choose_filtered(chooser, draws(p, at), drawn);
      } else if (draws(p, at)) {
        const auto every = [](float) { return true; };
        out.best = rules.least_weight() > 0.0f ? draw_near(chooser) : draw_whole(chooser, drawn, every);
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
