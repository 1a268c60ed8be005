// The device side of kernels_spec::Slots.
#pragma once

#include "kernels_spec.h"
#include "lockstep/slots.cuh"

namespace lockstep::spec {

constexpr int kWarp = 32;
constexpr uint32_t kAll = 0xffffffffu;

enum State : int32_t { kEmpty = 0, kRunning = 1, kEos = 2, kStop = 3, kLength = 4, kAborted = 5, kFaulted = 6 };

__device__ __forceinline__ void fault(const ls_spec_slots& s, FaultKind kind, int32_t slot, int32_t value) {
  ls_rows rows = {};  // record_fault() looks at these two only
  rows.faults = s.faults;
  rows.slot_count = s.slot_count;
  record_fault(rows, kind, slot, value);
}

// From the L2 cache, where record_fault() leaves its words: a line of the L1 may be older.
__device__ __forceinline__ uint64_t fault_of(const ls_spec_slots& s, int64_t slot) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(s.faults + slot));
}

// Whether `slot` may get rows and tokens; one with a fault is finished on sight. `leader`: the one thread that writes.
__device__ __forceinline__ bool runs(const ls_spec_slots& s, int64_t slot, bool leader) {
  const bool running = s.state[slot] == kRunning;
  if (!running || fault_of(s, slot) == 0) return running;
  if (leader) s.state[slot] = kFaulted;
  return false;
}

// Sequence `index` of a list. `places`: how far beyond its position a row reaches, 1 where it writes the next token.
__device__ __forceinline__ Sequence sequence_of(const ls_spec_slots& s, const ls_rows& rows, int32_t index,
                                                int32_t places, bool report) {
  return sequence_at(rows, index, int64_t(s.positions) - places, report);
}

__device__ __forceinline__ int32_t* tokens_of(const ls_spec_slots& s, int64_t slot) {
  return s.tokens + slot * s.tokens_stride;
}

}  // namespace lockstep::spec
