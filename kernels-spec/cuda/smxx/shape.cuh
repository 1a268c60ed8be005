// The first pass of sampling: penalties and bias, the largest logit of each chunk, and what the rows' rules want to know
// besides: the largest of each patch where there are filters, the best score of the chunk where there are none.
#pragma once

#include "lockstep/pdl.cuh"
#include "leaders.cuh"

namespace lockstep::spec {

// Whether any id of the vocabulary is biased for the slot. By all threads of a block.
__device__ __forceinline__ bool biased(const ls_spec_sample_params& p, int64_t slot) {
  if (p.rules.max_bias == 0) return false;
  bool any = false;
  for (int32_t i = threadIdx.x; i < p.rules.max_bias; i += blockDim.x) {
    const int32_t id = p.rules.bias_ids[slot * p.rules.bias_ids_stride + i];
    any |= 0 <= id && id < p.valid;
  }
  return __syncthreads_or(any) != 0;
}

// Where the later passes find the row: changed, or as it came.
struct Source {
  const float* row;
  bool aligned;
};

__device__ __forceinline__ Source source_of(const ls_spec_sample_params& p, int64_t row, bool changed, bool aligned) {
  if (changed) return {p.shaped + row * p.shaped_stride, true};
  return {p.logits + row * p.logits_stride, aligned};
}

// Goes through the ids from `begin` on, kBatch groups of each thread at a time, with the next ones on their way. The
// first are in `x` already, and the last are left there. `look(begin of a batch)` looks at x.
template <int kBatch, typename Look>
__device__ __forceinline__ void stream(const Source& source, int32_t begin, int32_t end, int32_t valid,
                                       float (&x)[kBatch][kGroup], const Look& look) {
#pragma unroll 1
  for (;;) {
    const int32_t next_begin = begin + chunk_ids(kBatch);
    float next[kBatch][kGroup];
    if (next_begin < end) load_groups<kBatch>(source.row, next_begin, valid, source.aligned, next);
    look(begin);
    if (next_begin >= end) return;
    begin = next_begin;
#pragma unroll
    for (int step = 0; step < kBatch; ++step) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[step][i] = next[step][i];
    }
  }
}

// By all threads of a block.
__device__ __forceinline__ Source source_of(const ls_spec_sample_params& p, int64_t row, const Row& at,
                                            const Rules& rules, bool aligned) {
  return source_of(p, row, biased(p, at.slot) || rules.penalise(), aligned);
}

constexpr uint32_t kSeen = 1u << 31;  // an id of the prefix; the bits below count it in the answer

// Counts, for the ids of this chunk, the tokens up to and with the row's own.
__device__ __forceinline__ void count_history(uint32_t* counts, int ids, int32_t first_id, const int32_t* tokens,
                                              int64_t prompt, int64_t position) {
  for (int i = threadIdx.x; i < ids; i += kThreads) counts[i] = 0;
  __syncthreads();
#pragma unroll 4
  for (int64_t at = threadIdx.x; at <= position; at += kThreads) {
    const uint32_t id = uint32_t(tokens[at]) - uint32_t(first_id);
    if (id < uint32_t(ids)) {
      atomicOr(&counts[id], kSeen);
      if (at >= prompt) atomicAdd(&counts[id], 1u);
    }
  }
  __syncthreads();
}

__device__ __forceinline__ float penalised(float l, const Rules& r, uint32_t seen) {
  if (seen == 0) return l;
  if (r.repetition != 1.0f) l = l > 0.0f ? __fdiv_rn(l, r.repetition) : __fmul_rn(l, r.repetition);
  const uint32_t count = seen & ~kSeen;
  if (count > 0) l = __fmaf_rn(-r.frequency, __uint2float_rn(count), __fadd_rn(l, -r.presence));
  return l;
}

// Adds the biases of this chunk's ids to `shaped`, those of one id in their order. One thread has all of an id's.
__device__ __forceinline__ void add_bias(const ls_spec_sample_params& p, int64_t slot, float* shaped, int32_t first_id,
                                         int32_t end_id) {
  const int32_t* const ids = p.rules.bias_ids + slot * p.rules.bias_ids_stride;
  const float* const values = p.rules.bias_values + slot * p.rules.bias_values_stride;
  for (int32_t i = threadIdx.x; i < p.rules.max_bias; i += kThreads) {
    const int32_t id = ids[i];
    if (id < first_id || id >= end_id) continue;
    bool first = true;
    for (int32_t j = 0; j < i; ++j) first &= ids[j] != id;
    if (!first) continue;
    float l = shaped[id];
    for (int32_t j = i; j < p.rules.max_bias; ++j) {
      if (ids[j] != id) continue;
      const float sum = __fadd_rn(l, values[j]);
      l = sum == sum ? sum : -kInfinity;
    }
    shaped[id] = l;
  }
}

// What the first pass leaves of a row.
enum class Task : uint32_t {
  None,   // nothing more, or a choice by one block
  Bins,   // top-p, or a top-k too large for patches
};

// The largest of every 128 neighbours, in order; 0 where all are masked.
__device__ __forceinline__ void store_patch(float most, int32_t id, int32_t valid, uint32_t* out) {
  const uint32_t order = __reduce_max_sync(kWholeWarp, most > -kInfinity ? ordered(most) : 0u);
  if (threadIdx.x % kLanes == 0 && id < valid) out[id / kPatch] = order;
}

// Groups of a thread whose ids are looked for in the prefix at once.
template <int kBatch>
constexpr int kCounted = kBatch < 4 ? kBatch : 2 * kBatch;

template <int kBatch>
struct ShapeShared {
  uint64_t warps[kWarps];
  uint32_t counts[chunk_ids(kCounted<kBatch>)];  // of ids in the prefix
  LeadersShared leaders;
  RowShared sequence;
};

// Applies penalties and bias to a part of a row.
template <int kBatch>
__device__ __forceinline__ void change(const ls_spec_sample_params& p, int64_t row, const Row& at, const Rules& rules,
                                       bool bias, int32_t first_id, int32_t end_id, bool aligned, uint32_t* counts) {
  constexpr int kSteps = kCounted<kBatch>;
  float* const shaped = p.shaped + row * p.shaped_stride;
#pragma unroll 1
  for (int32_t begin = first_id; begin < end_id; begin += chunk_ids(kSteps)) {
    if (rules.penalise()) {
      const int64_t prompt = max(p.prompt[at.slot], 0);
      __syncthreads();  // the last ids' counts have been read
      count_history(counts, chunk_ids(kSteps), begin, p.tokens + at.slot * p.tokens_stride, prompt, at.position);
    }
#pragma unroll kBatch
    for (int step = 0; step < kSteps; ++step) {
      const int32_t place = step * kStep + int32_t(threadIdx.x) * kGroup, id = begin + place;
      float x[kGroup];
      load_group(p.logits + row * p.logits_stride, id, p.valid, aligned, x);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float l = x[i];
        l = l == l ? l : -kInfinity;
        if (rules.penalise()) l = penalised(l, rules, counts[place + i]);
        x[i] = l == l ? l : -kInfinity;
      }
      if (id < end_id) *reinterpret_cast<float4*>(shaped + id) = make_float4(x[0], x[1], x[2], x[3]);
    }
  }
  __syncthreads();
  if (bias) add_bias(p, at.slot, shaped, first_id, end_id);
  __syncthreads();
}

// Grid: x = parts of p.vectors times 1,024 ids, y = rows. kBatch groups of each thread are on their way at once.
template <int kBatch>
__global__ void __launch_bounds__(kThreads, 2) shape(const ls_spec_sample_params p, bool aligned) {
  __shared__ ShapeShared<kBatch> s;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  const int32_t ids = chunk_ids(p.vectors), first_id = int32_t(blockIdx.x) * ids, end_id = min(first_id + ids, p.valid);
  // The first logits are on their way while the row's slot and its numbers are looked up.
  float x[kBatch][kGroup];
  Source source = {p.logits + row * p.logits_stride, aligned};
  load_groups<kBatch>(source.row, first_id, p.valid, source.aligned, x);
  float reference = source.row[first_id];
  const bool leads = blockIdx.x == 0;  // has the row's own numbers to write
  if (leads) {
    for (int i = threadIdx.x; i < LS_SPEC_BINS; i += kThreads) p.bins[row * LS_SPEC_BINS + i] = 0;
    if (threadIdx.x < 2) p.sums[row * 2 + threadIdx.x] = 0;
    if (threadIdx.x == 0) p.candidate_counts[row] = 0, p.kept[row] = 0;
  }
  if (threadIdx.x == 0) s.leaders.clear();
  const Row at = row_of<kThreads>(p.rows, int32_t(row), p.positions, s.sequence);
  if (!at.live) {  // the whole block
    if (leads && threadIdx.x == 0) p.tasks[row] = uint32_t(Task::None);
    return;
  }
  const Rules rules = rules_of(p.rules, at.slot);
  const Cut cut = rules.cut(p.valid);
  if (leads && threadIdx.x == 0) {
    const bool bins = !rules.greedy() && (cut == Cut::Wide || (cut == Cut::None && weighs(p, at)));
    p.tasks[row] = uint32_t(bins ? Task::Bins : Task::None);
  }
  const bool bias = biased(p, at.slot);
  if (bias || rules.penalise()) {
    change<kBatch>(p, row, at, rules, bias, first_id, end_id, aligned, s.counts);
    source = {p.shaped + row * p.shaped_stride, true};
    load_groups<kBatch>(source.row, first_id, p.valid, source.aligned, x);
    reference = source.row[first_id];
  }
  const bool patched = !rules.greedy() && (cut != Cut::None || rules.least_weight() > 0.0f);
  const bool races = !rules.greedy() && !patched && draws(p, at);
  if (!(fabsf(reference) < kInfinity)) reference = 0.0f;
  const philox::Use use = use_of(p);
  const Leaders leaders = {reference, kLog2E / rules.temperature, rules.seed, uint32_t(at.position) + 1, use};
  const RowNoise noise(rules.seed, leaders.position, leaders.use);
  uint32_t* const patch_most = p.patch_most + row * patches(p.valid);
  // The thread's largest logit, and the batch that has it first.
  float most = -kInfinity;
  int32_t most_begin = first_id;
  stream<kBatch>(source, first_id, end_id, p.valid, x, [&](int32_t begin) {
    const int32_t mine = begin + int32_t(threadIdx.x) * kGroup;
    float step_most[kBatch], batch_most = -kInfinity;
#pragma unroll
    for (int step = 0; step < kBatch; ++step) {
      step_most[step] = fmaxf(fmaxf(x[step][0], x[step][1]), fmaxf(x[step][2], x[step][3]));  // drops NaN
      batch_most = fmaxf(batch_most, step_most[step]);
    }
    if (batch_most > most) most = batch_most, most_begin = begin;
    if (patched) {
#pragma unroll
      for (int step = 0; step < kBatch; ++step) store_patch(step_most[step], mine + step * kStep, p.valid, patch_most);
    } else if (races) {
      find_leaders<kBatch>(leaders, noise, step_most, batch_most, mine, source.row, p.valid, source.aligned, s.leaders,
                           [](float) { return true; });
    }
  });
  // The first id of the thread's largest.
  const uint32_t order = most > -kInfinity ? ordered(most) : 0, warp_order = __reduce_max_sync(kWholeWarp, order);
  uint32_t id = UINT32_MAX;
  if (order == warp_order && order != 0) {
    if (most_begin + chunk_ids(kBatch) < end_id) {  // else it is still there
      load_groups<kBatch>(source.row, most_begin, p.valid, source.aligned, x);
    }
#pragma unroll
    for (int step = kBatch - 1; step >= 0; --step) {
#pragma unroll
      for (int i = kGroup - 1; i >= 0; --i) {
        if (x[step][i] == most) id = uint32_t(most_begin + step * kStep + int32_t(threadIdx.x) * kGroup + i);
      }
    }
  }
  id = __reduce_min_sync(kWholeWarp, id);
  if (threadIdx.x % kLanes == 0) s.warps[threadIdx.x / kLanes] = warp_order == 0 ? 0 : packed(warp_order, id);
  __syncthreads();
  if (threadIdx.x >= kLanes) return;
  const uint64_t best = warp_max(threadIdx.x < kWarps ? s.warps[threadIdx.x] : 0);
  const int64_t part = row * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) p.best[part] = best;
  if (!races || best == 0) return;
  if (s.leaders.count == 0) {
    // Everything is out of the range of floats: `choose` looks again.
    if (threadIdx.x == 0) p.drawn[part] = leader(-kInfinity, kFound + 1);
    return;
  }
  name_leaders(leaders, best, p.drawn + part, p.found + part * kFound, s.leaders);
}

}  // namespace lockstep::spec
