// The first pass of sampling: penalties and bias, the largest logit of each chunk, and what the rows' rules want to know
// besides: the largest of each patch where there are filters, the best score of the chunk where there are none.
#pragma once

#include "lockstep/pdl.cuh"
#include "rules.cuh"

namespace lockstep::spec {

// Whether any id of the vocabulary is biased for the slot. By all threads of a block.
__device__ __forceinline__ bool biased(const ls_spec_sample_params& p, int64_t slot) {
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

// The largest of every 128 neighbours, in order; 0 where all are masked.
template <int kVectors>
__device__ __forceinline__ void store_patches(const Chunk<kVectors>& chunk, int index, int32_t valid, uint32_t* out) {
#pragma unroll
  for (int step = 0; step < kVectors; ++step) {
    const float(&x)[kGroup] = chunk.x[step];
    const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));  // drops NaN
    const uint32_t order = __reduce_max_sync(kWholeWarp, most > -kInfinity ? ordered(most) : 0u);
    const int32_t patch = chunk.first(index, step) / kPatch;
    if (threadIdx.x % kLanes == 0 && patch < patches(valid)) out[patch] = order;
  }
}

// Grid: x = chunks, y = rows.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) shape(const ls_spec_sample_params p, bool aligned) {
  constexpr int kIds = chunk_ids(kVectors);
  __shared__ uint64_t warps[kWarps], more_warps[kWarps];
  __shared__ int32_t sequence;
  __shared__ uint32_t counts[kIds];  // of ids in the prefix; then the groups that may win
  __shared__ uint32_t group_count;
  __shared__ float first_score;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  const int32_t first_id = int32_t(blockIdx.x) * kIds, end_id = min(first_id + kIds, p.valid);
  // The logits are on their way while the row's slot and its numbers are looked up.
  Chunk<kVectors> chunk;
  chunk.load(p.logits + row * p.logits_stride, blockIdx.x, p.valid, aligned);
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < LS_SPEC_BINS; i += kThreads) p.bins[row * LS_SPEC_BINS + i] = 0;
    if (threadIdx.x == 0) p.candidate_counts[row] = 0, p.kept[row] = 0;
  }
  const Row at = row_of<kThreads>(p.rows, int32_t(row), p.positions, sequence);
  if (!at.live) return;  // the whole block
  const Rules rules = rules_of(p.rules, at.slot);
  const bool bias = biased(p, at.slot);
  if (bias || rules.penalise()) {
    float* const shaped = p.shaped + row * p.shaped_stride;
    if (rules.penalise()) {
      const int64_t prompt = max(p.prompt[at.slot], 0);
      count_history(counts, kIds, first_id, p.tokens + at.slot * p.tokens_stride, prompt, at.position);
    }
#pragma unroll
    for (int step = 0; step < kVectors; ++step) {
      const int32_t id = chunk.first(blockIdx.x, step);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float l = chunk.x[step][i];
        l = l == l ? l : -kInfinity;
        if (rules.penalise()) l = penalised(l, rules, counts[id + i - first_id]);
        chunk.x[step][i] = l == l ? l : -kInfinity;
      }
      const float(&x)[kGroup] = chunk.x[step];
      if (id < p.shaped_stride) *reinterpret_cast<float4*>(shaped + id) = make_float4(x[0], x[1], x[2], x[3]);
    }
    if (bias) {
      __syncthreads();
      add_bias(p, at.slot, shaped, first_id, end_id);
      __syncthreads();
      chunk.load(shaped, blockIdx.x, p.valid, true);
    }
  }
  const uint64_t best = block_max<kThreads>(chunk.template best<true>(blockIdx.x), warps);
  const int64_t mine = row * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) p.best[mine] = best;
  if (rules.greedy()) return;
  if (rules.cut(p.valid) != Cut::None) {
    store_patches(chunk, blockIdx.x, p.valid, p.patch_most + row * patches(p.valid));
    return;
  }
  if (!draws(p, at)) return;
  if (best == 0) {
    if (threadIdx.x == 0) p.drawn[mine] = 0;
    return;
  }
  // By the chunk's largest instead of the row's, which nobody knows yet. z is off by rounding then, and min-p leaves too
  // much: `choose` looks again at the chunks that this makes candidates, hardly ever more than one.
  Rules loose = rules;
  loose.min_p = 0.0f;
  if (threadIdx.x < kLanes) {
    const float score = Draw::likeliest_score(rules, id_of(best), at, use_of(p));
    if (threadIdx.x == 0) first_score = score, group_count = 0;
  }
  __syncthreads();
  Draw draw(loose, value_of(best), id_of(best), first_score, at, use_of(p));
  draw.at_least = 0.999f * rules.least_weight();
  const Source source = source_of(p, row, bias || rules.penalise(), aligned);
  const uint64_t drawn = draw_chunk(draw, chunk, blockIdx.x, source.row, p.valid, reinterpret_cast<uint16_t*>(counts),
                                    group_count, more_warps, [](float) { return true; });
  if (threadIdx.x == 0) p.drawn[mine] = drawn;
}

}  // namespace lockstep::spec
