// Copies of hidden rows: between target, ring and draft.
#pragma once

#include <cstring>

#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "table.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_hidden_params) == 184, "src/sys.rs describes this layout");

constexpr int kHiddenThreads = 128;

// A row of whole units; zeros without a source.
template <typename Unit>
__device__ __forceinline__ void copy_row(char* out, const char* from, int64_t bytes) {
  const int64_t units = bytes / int64_t(sizeof(Unit));
#pragma unroll 2
  for (int64_t i = threadIdx.x; i < units; i += kHiddenThreads) {
    Unit value = {};
    if (from != nullptr) value = reinterpret_cast<const Unit*>(from)[i];
    reinterpret_cast<Unit*>(out)[i] = value;
  }
}

// Grid: x = sequences, one more for the rows of nobody; y shares the rows of a sequence.
template <typename Unit>
__global__ void __launch_bounds__(kHiddenThreads) hidden(const ls_spec_hidden_params p) {
  pdl::wait();
  pdl::launch_dependents();
  const int32_t index = blockIdx.x;
  const bool report = threadIdx.x == 0 && blockIdx.y == 0;
  char* const out = static_cast<char*>(p.out);
  char* const ring = static_cast<char*>(p.ring);
  const char* const rows = static_cast<const char*>(p.hidden);
  if (index == p.rows.sequences) {
    if (p.kind != LS_SPEC_CARRY) return;
    for (int64_t row = unowned_from(p.rows) + blockIdx.y; row < p.rows.row_count; row += gridDim.y) {
      copy_row<Unit>(out + row * p.out_stride, nullptr, p.width);
    }
    return;
  }
  const Sequence s = sequence_at(p.rows, index, INT32_MAX, report);
  if (p.kind == LS_SPEC_TAKE_LAST) {
    if (blockIdx.y != 0) return;
    const char* const last = s.live ? rows + (s.first + s.count - 1) * p.hidden_stride : nullptr;
    return copy_row<Unit>(out + index * p.out_stride, last, p.width);
  }
  char* const slot_ring = ring + (s.live ? s.slot : 0) * p.ring_slot_stride;
  if (p.kind == LS_SPEC_KEEP) {
    if (!s.live) return;
    const int64_t committed = p.committed[s.slot];
    const int64_t end = min(max(committed, s.start), s.start + s.count);
    const int64_t start = max(s.start, end - p.ring_rows);
    for (int64_t position = start + blockIdx.y; position < end; position += gridDim.y) {
      const char* const from = rows + (s.first + position - s.start) * p.hidden_stride;
      copy_row<Unit>(slot_ring + position % p.ring_rows * p.ring_stride, from, p.width);
    }
    return;
  }
  const Sequence forward = sequence_at(p.forward, index, INT32_MAX, report);
  // The hidden rows of positions `start .. end` are those of the pass, older ones are in the ring.
  const bool here = s.live && forward.live && forward.slot == s.slot;
  const int64_t start = here ? forward.start : INT64_MAX, end = here ? forward.start + forward.count : INT64_MAX;
  const int64_t reach = s.start + s.count - 1;
  const bool wrong = s.live && (s.start == 0 || reach > end);
  if (wrong && report) {
    record_fault(p.rows, FaultKind::Position, int32_t(s.slot), s.start == 0 ? 0 : int32_t(reach));
  }
  for (int32_t i = blockIdx.y; i < s.count; i += gridDim.y) {
    const int64_t position = s.start + i - 1;
    const char* from = nullptr;
    if (s.live && !wrong) {
      from = position >= start ? rows + (forward.first + position - start) * p.hidden_stride
                               : slot_ring + position % p.ring_rows * p.ring_stride;
    }
    copy_row<Unit>(out + (s.first + i) * p.out_stride, from, p.width);
  }
}

inline int32_t launch_hidden(const ls_spec_hidden_params& p, ls_stream_t stream) {
  if (p.kind < LS_SPEC_CARRY || p.kind > LS_SPEC_TAKE_LAST || p.rows.sequences < 1) return LS_ERR_UNSUPPORTED;
  // About a block per row; a long chunk of few sequences is shared by at most so many.
  constexpr int32_t kMostShares = 256;
  const int32_t average = ceil_div(p.rows.row_count, p.rows.sequences);
  const int32_t shares = p.kind == LS_SPEC_TAKE_LAST ? 1 : average < kMostShares ? average : kMostShares;
  const dim3 grid(p.rows.sequences + 1, shares);
  const bool programmatic = p.programmatic != 0;
  switch (p.unit) {
    case 2: return launch(hidden<uint16_t>, grid, kHiddenThreads, 0, stream, programmatic, p);
    case 4: return launch(hidden<uint32_t>, grid, kHiddenThreads, 0, stream, programmatic, p);
    case 16: return launch(hidden<uint4>, grid, kHiddenThreads, 0, stream, programmatic, p);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::spec
