// A draft for the rejection chain: the passes of sampling, and one more that writes down what was drawn from.
#pragma once

#include "lockstep/launch.cuh"
#include "passes.cuh"
#include "shaped.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_draw_draft_params) == 384, "src/sys.rs describes this layout");

// Grid: x = steps of 1024 ids, y = rows.
__global__ void __launch_bounds__(kThreads) spread(const ls_spec_draw_draft_params p, bool aligned, bool aligned_out) {
  __shared__ RowShared sequence;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  const Row at = row_of<kThreads>(p.sample.rows, int32_t(row), p.sample.positions, sequence);
  // Of more rows than the ring has, the last ones stay.
  if (!at.live || at.behind >= p.ring_rows) return;
  const Rules rules = rules_of(p.sample.rules, at.slot);
  const Source source = source_of(p.sample, row, at, rules, aligned);
  const Shaped shaped = shaped_of(p.sample, row, rules);
  float* const out = p.probabilities + at.slot * p.slot_stride + (at.position + 1) % p.ring_rows * p.ring_stride;
  const int32_t id = int32_t(blockIdx.x) * kStep + int32_t(threadIdx.x) * kGroup, vocab = p.sample.vocab;
  float x[kGroup];
  load_group(source.row, id, p.sample.valid, source.aligned, x);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    x[i] = id + i < p.sample.valid ? shaped.probability(x[i], uint32_t(id + i)) : 0.0f;
  }
  if (aligned_out && id + kGroup <= vocab) {
    *reinterpret_cast<float4*>(out + id) = make_float4(x[0], x[1], x[2], x[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (id + i < vocab) out[id + i] = x[i];
  }
}

inline int32_t launch_draw_draft(const ls_spec_draw_draft_params& p, ls_stream_t stream) {
  const ls_spec_sample_params& sample = p.sample;
  if (sample.kind != LS_SPEC_DRAW_DRAFT || p.ring_rows < 1 || sample.vocab < sample.valid) return LS_ERR_UNSUPPORTED;
  const int32_t status = launch_passes(sample, stream);
  if (status != LS_OK) return status;
  const dim3 grid(ceil_div(sample.vocab, kStep), sample.rows.row_count);
  const bool aligned = aligned_rows(sample.logits, sample.logits_stride);
  const bool aligned_out = aligned_rows(p.probabilities, p.slot_stride) && p.ring_stride % kGroup == 0;
  return launch(spread, grid, kThreads, 0, stream, true, p, aligned, aligned_out);
}

}  // namespace lockstep::spec
