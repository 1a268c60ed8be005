// The first pass of sampling: penalties and bias, and the largest logit of each chunk.
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

__device__ __forceinline__ Source source_of(const ls_spec_sample_params& p, int64_t row, const Row& at,
                                            const Rules& rules, bool aligned) {
  const bool changed = biased(p, at.slot) || rules.penalise();
  if (changed) return {p.shaped + row * p.shaped_stride, true};
  return {p.logits + row * p.logits_stride, aligned};
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

// Grid: x = chunks, y = rows.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) shape(const ls_spec_sample_params p, bool aligned) {
  constexpr int kIds = chunk_ids(kVectors);
  __shared__ uint64_t warps[kWarps];
  __shared__ int32_t sequence;
  __shared__ uint32_t counts[kIds];
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  const int32_t first_id = int32_t(blockIdx.x) * kIds, end_id = min(first_id + kIds, p.valid);
  // The logits are on their way while the row's slot and its numbers are looked up.
  Chunk<kVectors> chunk;
  chunk.load(p.logits + row * p.logits_stride, blockIdx.x, p.valid, aligned);
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < LS_SPEC_BINS; i += kThreads) {
      p.bin_masses[row * LS_SPEC_BINS + i] = 0;
      p.bin_counts[row * LS_SPEC_BINS + i] = 0;
    }
    if (threadIdx.x == 0) p.candidate_counts[row] = 0;
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
  if (threadIdx.x == 0) p.best[row * gridDim.x + blockIdx.x] = best;
}

}  // namespace lockstep::spec
