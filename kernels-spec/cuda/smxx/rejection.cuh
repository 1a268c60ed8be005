// The classical rejection chain: the passes of sampling over all rows, then a race in the row of each sequence where a
// draft is turned down, then one block per sequence that writes its token.
//
// Rows are looked at all at once, although the chain stops at the first one that rejects: which that is depends on all
// before it, and a row costs less than waiting.
#pragma once

#include "lockstep/launch.cuh"
#include "passes.cuh"
#include "shaped.cuh"
#include "table.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_rejection_params) == 496, "src/sys.rs describes this layout");

// Where a sequence's chain ends.
struct End {
  int32_t index;  // of its row in the sequence
  bool nothing;   // all is masked there
  bool rejected;  // its draft is turned down
};

// Whether the draft behind row `index` of a sequence is accepted: u Q[d] < P[d].
__device__ __forceinline__ bool accepts(const ls_spec_rejection_params& p, const Sequence& s, int32_t index,
                                        const Rules& rules, const Source& source, const Shaped& shaped) {
  const int64_t next = s.start + index + 1;
  const int32_t draft = tokens_of(p.slots, s.slot)[next];
  if (draft < 0 || draft >= p.sample.vocab) return false;
  const float q = p.probabilities[s.slot * p.slot_stride + next % p.ring_rows * p.ring_stride + draft];
  const float u = philox::uniform(philox::bits(rules.seed, uint32_t(next), 0, philox::Use::Accept));
  const float mine = draft < p.sample.valid ? shaped.probability(source.row[draft], uint32_t(draft)) : 0.0f;
  return __fmul_rn(u, q) < mine;
}

// By all threads of a block. `changed`: the slot has penalties or a bias.
__device__ __forceinline__ End end_of(const ls_spec_rejection_params& p, const Sequence& s, const Rules& rules,
                                      bool changed, int32_t& shared) {
  if (threadIdx.x == 0) shared = s.count - 1;
  __syncthreads();
  for (int32_t i = threadIdx.x; i + 1 < s.count; i += blockDim.x) {
    const Shaped shaped = shaped_of(p.sample, s.first + i, rules);
    const Source source = source_of(p.sample, s.first + i, changed, false);
    if (shaped.most == 0 || !accepts(p, s, i, rules, source, shaped)) atomicMin(&shared, i);
  }
  __syncthreads();
  const int32_t index = shared;
  const bool nothing = p.sample.most[s.first + index] == 0;
  return {index, nothing, !nothing && index + 1 < s.count};
}

// The largest ratio of weight to exponential noise among the ids that a thread is shown.
struct Race {
  uint2 seed;
  uint32_t position;
  float least = 0.0f;  // the best ratio so far
  uint64_t best = 0;   // packed ratio and id

  // Four neighbours of the row: the weight of each is what P has more than Q.
  __device__ __forceinline__ void group(const Shaped& row, const float (&x)[kGroup], const float (&q)[kGroup],
                                        int32_t id, int32_t valid) {
    float bounds[kGroup];
    bool any = false;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      bounds[i] = id + i < valid ? __fadd_rn(row.bound(x[i], uint32_t(id + i)), -q[i]) : 0.0f;
      any |= bounds[i] > 0.0f;  // false for NaN
    }
    if (!any) return;
    const uint4 noise = philox::philox4x32_10(
        make_uint4(uint32_t(id) >> 2, position, uint32_t(philox::Use::Residual), 0), seed);
    const uint32_t bits[kGroup] = {noise.x, noise.y, noise.z, noise.w};
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      // -ln(1 - u) >= u, of which 23 bits are taken, and a thousandth off for rounding.
      const float below = __uint_as_float(bits[i] >> 9 | 0x3f800000u) - 1.0f;
      if (!(bounds[i] > 0.0f) || bounds[i] < below * least * 0.999f) continue;
      const float weight = __fadd_rn(row.probability(x[i], uint32_t(id + i)), -q[i]);
      if (!(weight > 0.0f)) continue;
      const float ratio = __fdiv_rn(weight, philox::exponential(bits[i]));
      best = larger(best, packed(ordered(ratio), uint32_t(id + i)));
      least = fmaxf(least, ratio);
    }
  }
};

// Grid: x = chunks of `ids`, y = sequences. Every chunk's winner of the draw from max(P - Q, 0).
__global__ void __launch_bounds__(kThreads) race(const ls_spec_rejection_params p, bool aligned, bool aligned_q, int ids) {
  __shared__ uint64_t warps[kWarps];
  __shared__ int32_t index;
  pdl::wait();
  pdl::launch_dependents();
  const int32_t of = blockIdx.y;
  const Sequence s = sequence_of(p.slots, p.sample.rows, of, 1, false);
  if (!s.live) return;
  const Rules rules = rules_of(p.sample.rules, s.slot);
  const bool changed = biased(p.sample, s.slot) || rules.penalise();
  const End end = end_of(p, s, rules, changed, index);
  if (!end.rejected) return;
  const int64_t row = s.first + end.index, next = s.start + end.index + 1;
  const Source source = source_of(p.sample, row, changed, aligned);
  const Shaped shaped = shaped_of(p.sample, row, rules);
  const float* const q = p.probabilities + s.slot * p.slot_stride + next % p.ring_rows * p.ring_stride;
  Race race = {rules.seed, uint32_t(next)};
  const int32_t valid = p.sample.valid, first = int32_t(blockIdx.x) * ids, behind = min(first + ids, valid);
#pragma unroll 1
  for (int32_t id = first + int32_t(threadIdx.x) * kGroup; id < behind; id += kStep) {
    float x[kGroup], minus[kGroup];
    load_group(source.row, id, valid, source.aligned, x);
    load_group(q, id, valid, aligned_q, minus);
    race.group(shaped, x, minus, id, valid);
  }
  const uint64_t best = block_max<kThreads>(race.best, warps);
  if (threadIdx.x == 0) p.raced[int64_t(of) * gridDim.x + blockIdx.x] = best;
}

// Grid: x = sequences. The accept length and the token behind it.
__global__ void __launch_bounds__(kThreads) finish(const ls_spec_rejection_params p, bool aligned, int chunks) {
  __shared__ uint64_t warps[kWarps], more_warps[kWarps];
  __shared__ int32_t index;
  pdl::wait();
  pdl::launch_dependents();
  const int32_t of = blockIdx.x;
  const bool leader = threadIdx.x == 0;
  const Sequence s = sequence_of(p.slots, p.sample.rows, of, 1, leader);
  if (leader) p.accepted[of] = 0;
  if (!s.live) return;
  const bool running = runs(p.slots, s.slot, false);
  __syncthreads();  // before the leader changes what that looks at
  if (!running) {
    if (leader) runs(p.slots, s.slot, true);
    return;
  }
  if (s.start + 1 < p.slots.prompt[s.slot]) {
    // A choice here would overwrite the prompt.
    if (leader) fault(p.slots, FaultKind::Position, int32_t(s.slot), int32_t(s.start));
    return;
  }
  const Rules rules = rules_of(p.sample.rules, s.slot);
  const bool changed = biased(p.sample, s.slot) || rules.penalise();
  const End end = end_of(p, s, rules, changed, index);
  const int64_t row = s.first + end.index, next = s.start + end.index + 1;
  int32_t token = end.nothing ? -1 : p.sample.choice[row];
  if (end.rejected) {
    uint64_t best = row_max<kThreads>(p.raced + int64_t(of) * chunks, chunks, warps);
    if (best == 0) {
      // Rounding left nothing of P - Q: drawn from P.
      const Source source = source_of(p.sample, row, changed, aligned);
      const Shaped shaped = shaped_of(p.sample, row, rules);
      Race race = {rules.seed, uint32_t(next)};
      const int32_t valid = p.sample.valid;
#pragma unroll 1
      for (int32_t id = int32_t(threadIdx.x) * kGroup; id < valid; id += kStep) {
        float x[kGroup];
        const float nothing[kGroup] = {};
        load_group(source.row, id, valid, source.aligned, x);
        race.group(shaped, x, nothing, id, valid);
      }
      best = block_max<kThreads>(race.best, more_warps);
    }
    token = best == 0 ? -1 : int32_t(id_of(best));
  }
  if (!leader) return;
  if (token < 0) {
    fault(p.slots, FaultKind::Logits, int32_t(s.slot), int32_t(next));
    return;
  }
  tokens_of(p.slots, s.slot)[next] = token;
  p.accepted[of] = end.index + 1;
}

inline int32_t launch_rejection(const ls_spec_rejection_params& params, ls_stream_t stream) {
  if (params.sample.kind != LS_SPEC_REJECTION || params.ring_rows < 1) return LS_ERR_UNSUPPORTED;
  constexpr int32_t kMostSequences = 65535;  // of a grid's y
  ls_spec_rejection_params p = params;
  const int32_t sequences = p.sample.rows.sequences;
  if (sequences < 1 || sequences > kMostSequences || p.sample.positions < 1) return LS_ERR_UNSUPPORTED;
  p.sample.positions -= 1;  // each row writes the token behind its own
  int32_t status = launch_passes(p.sample, stream);
  if (status != LS_OK) return status;
  const int ids = chunk_ids(LS_SPEC_RACE_VECTORS), chunks = ceil_div(p.sample.valid, ids);
  const bool aligned = aligned_rows(p.sample.logits, p.sample.logits_stride);
  const bool aligned_q = aligned_rows(p.probabilities, p.slot_stride) && p.ring_stride % kGroup == 0;
  const dim3 grid(chunks, sequences);
  status = launch(race, grid, kThreads, 0, stream, true, p, aligned, aligned_q, ids);
  if (status != LS_OK) return status;
  return launch(finish, sequences, kThreads, 0, stream, true, p, aligned, chunks);
}

}  // namespace lockstep::spec
