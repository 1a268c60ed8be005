// The device side of the CPU half's Counts.
#pragma once

#include "table.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_slots) == 96, "src/sys.rs describes this layout");

// A running slot's counters, checked against each other.
struct Counts {
  bool live;
  int32_t slot, committed, drafted, proposed, limit, length_limit, prompt;
};

__device__ __forceinline__ bool within(int64_t value, int64_t end) { return 0 <= value && value < end; }

__device__ __forceinline__ Counts counts_of(const ls_spec_slots& s, int32_t slot) {
  Counts c = {};
  if (slot < 0) return c;
  if (slot >= s.slot_count) {
    fault(s, FaultKind::Slot, slot, slot);
    return c;
  }
  // All loads stand together: they are on their way at once.
  const int32_t folded = s.folded[slot];
  c.slot = slot;
  c.committed = s.committed[slot];
  c.drafted = s.drafted[slot];
  c.proposed = s.proposed[slot];
  c.limit = s.limit[slot];
  c.length_limit = s.length_limit[slot];
  c.prompt = s.prompt[slot];
  const int32_t state = s.state[slot];
  const uint64_t word = fault_of(s, slot);
  if (state != kRunning) return c;
  if (word != 0) {  // as runs() does
    s.state[slot] = kFaulted;
    return c;
  }
  const int64_t committed = c.committed, beyond = int64_t(s.positions) + 1;
  FaultKind kind = FaultKind::Position;
  int32_t value = 0;
  bool bad = true;
  if (!within(committed, s.positions)) {
    value = c.committed;
  } else if (!within(folded, committed + 1)) {
    kind = FaultKind::Pending;
    value = int32_t(uint32_t(c.committed) - uint32_t(folded));
  } else if (!within(c.drafted, committed + 2)) {
    value = c.drafted;
  } else if (!within(c.proposed, s.positions - committed)) {
    value = c.proposed;
  } else if (!within(c.limit, beyond)) {
    value = c.limit;
  } else if (!within(c.length_limit, beyond)) {
    value = c.length_limit;
  } else if (!within(c.prompt, beyond)) {
    value = c.prompt;
  } else {
    bad = false;
  }
  if (bad) {
    fault(s, kind, slot, value);
    s.state[slot] = kFaulted;
    return c;
  }
  c.live = true;
  return c;
}

}  // namespace lockstep::spec
