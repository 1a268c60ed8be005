// What a round settles. One warp has one sequence and takes any of the steps in a row: they touch nothing of each
// other's slots, so that accept, stop, advance and emit together are one small launch.
#pragma once

#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "table.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_settle_params) == 296, "src/sys.rs describes this layout");

// Accept length by the target's choices; 0 where nothing may be chosen.
__device__ __forceinline__ int32_t accept(const ls_spec_settle_params& p, int32_t index, int lane) {
  const bool leader = lane == 0;
  const Sequence s = sequence_of(p.slots, p.rows, index, 1, leader);
  if (!s.live || !runs(p.slots, s.slot, leader)) return 0;
  if (s.start + 1 < p.slots.prompt[s.slot]) {
    // A choice here would overwrite the prompt.
    if (leader) fault(p.slots, FaultKind::Position, int32_t(s.slot), int32_t(s.start));
    return 0;
  }
  int32_t* const tokens = tokens_of(p.slots, s.slot) + s.start;
  const int32_t* const choice = p.choice + s.first;
  int32_t a = s.count;
  for (int32_t i = 0; i + 1 < s.count; i += kWarp) {
    const bool wrong = i + lane + 1 < s.count && choice[i + lane] != tokens[i + lane + 1];
    const uint32_t any = __ballot_sync(kAll, wrong);
    if (any != 0) {
      a = i + __ffs(any);
      break;
    }
  }
  const int32_t last = choice[a - 1];
  if (last < 0) {
    if (leader) fault(p.slots, FaultKind::Logits, int32_t(s.slot), int32_t(s.start + a));
    return 0;
  }
  if (leader) tokens[a] = last;
  return a;
}

// Why token i ends a sequence, in the order in which the reasons are looked at.
enum Reason : uint32_t { kNoPlace = 0, kIsEos = 1, kIsStop = 2, kLastPlace = 3 };

// Whether tokens[..= position] end with the stop sequence `of`, inside the answer that begins at `answer`.
__device__ __forceinline__ bool ends_with(const int32_t* of, int32_t longest, const int32_t* tokens,
                                          int64_t answer, int64_t position) {
  int32_t length = 0;
  while (length < longest && of[length] >= 0) ++length;
  if (length == 0 || position + 1 - length < answer) return false;
  bool equal = true;
  for (int32_t i = 0; i < length; ++i) equal &= tokens[position + 1 - length + i] == of[i];
  return equal;
}

// The accept length, cut at the first token that ends the sequence.
__device__ __forceinline__ int32_t stop(const ls_spec_settle_params& p, int32_t index, int lane, int32_t a) {
  const bool leader = lane == 0;
  const Sequence s = sequence_of(p.slots, p.rows, index, 1, leader);
  if (!s.live) return a;
  if (a < 0 || a > s.count) {
    if (leader) fault(p.slots, FaultKind::Position, int32_t(s.slot), a);
    return 0;
  }
  const int64_t answer = max(p.slots.prompt[s.slot], 0), room = max(p.slots.length_limit[s.slot], 0);
  const int32_t* const tokens = tokens_of(p.slots, s.slot);
  const int32_t* const eos = p.eos + s.slot * p.eos_stride;
  const int32_t* const stops = p.stops + s.slot * p.stops_slot_stride;
  // The least of 4 i + reason over all tokens and reasons: every pair on its own lane.
  uint32_t least = UINT32_MAX;
  for (int32_t i = 1 + lane; i <= a; i += kWarp) {
    const int64_t position = s.start + i;
    if (position >= room) least = min(least, 4u * i + kNoPlace);
    if (position + 1 == room) least = min(least, 4u * i + kLastPlace);
  }
  const uint32_t reasons = uint32_t(p.max_eos) + uint32_t(p.max_stops);
  int32_t i = 1, which = lane;
  for (;; which += kWarp) {
    for (; uint32_t(which) >= reasons && i <= a; which -= int32_t(reasons)) ++i;  // no division, which is a long call
    if (i > a) break;
    const int64_t position = s.start + i;
    if (which < p.max_eos) {
      const int32_t token = tokens[position];
      if (token >= 0 && token == eos[which]) least = min(least, 4u * i + kIsEos);
    } else if (ends_with(stops + (which - p.max_eos) * p.stops_stride, p.max_stop_length, tokens, answer, position)) {
      least = min(least, 4u * i + kIsStop);
    }
  }
  least = __reduce_min_sync(kAll, least);
  if (least == UINT32_MAX) return a;
  const uint32_t reason = least % 4;
  if (leader) p.slots.state[s.slot] = reason == kIsEos ? kEos : reason == kIsStop ? kStop : kLength;
  return int32_t(least / 4) - (reason == kNoPlace ? 1 : 0);
}

// Moves the counters of a sound sequence.
__device__ __forceinline__ void commit(const ls_spec_settle_params& p, int32_t index, int lane, int32_t a) {
  const bool leader = lane == 0;
  const Sequence s = sequence_of(p.slots, p.rows, index, 0, leader);
  if (!s.live || fault_of(p.slots, s.slot) != 0) return;
  const int32_t slot = int32_t(s.slot), committed = p.slots.committed[slot], folded = p.slots.folded[slot];
  if (committed != s.start) {
    if (leader) fault(p.slots, FaultKind::Position, slot, int32_t(s.start));
    return;
  }
  if (folded < 0 || folded > committed) {
    const int32_t pending = int32_t(uint32_t(committed) - uint32_t(folded));
    if (leader) fault(p.slots, FaultKind::Pending, slot, pending);
    return;
  }
  if (p.prefill == 0 && (a < 0 || a > s.count)) {
    if (leader) fault(p.slots, FaultKind::Position, slot, a);
    return;
  }
  __syncwarp();  // every lane has read the counters
  if (leader) {
    p.slots.committed[slot] = committed + (p.prefill != 0 ? s.count : a);
    if (p.prefill != 0) {
      p.slots.folded[slot] = committed + s.count;
    } else if (flushes(committed - folded, p.flush_after)) {
      p.slots.folded[slot] = committed;
    }
    p.slots.proposed[slot] = 0;
  }
  if (p.prefill != 0 || a == 0 || p.count_rounds == nullptr) return;
  if (leader) p.count_rounds[slot * p.rounds_stride + a] += 1;
  for (int32_t i = lane; i + 1 < s.count; i += kWarp) p.count_verified[slot * p.verified_stride + i] += 1;
  for (int32_t i = lane; i + 1 < a; i += kWarp) p.count_accepted[slot * p.accepted_stride + i] += 1;
}

__device__ __forceinline__ int32_t advance(const ls_spec_settle_params& p, int32_t index, int lane, int32_t a) {
  commit(p, index, lane, a);
  __syncwarp();
  // Wherever the fault was found, this round or in this very operation: nothing is committed.
  const int32_t slot = p.rows.slots[index];
  if (slot < 0 || slot >= p.slots.slot_count || fault_of(p.slots, slot) == 0) return a;
  if (lane == 0) p.slots.state[slot] = kFaulted;
  return 0;
}

__device__ __forceinline__ void emit(const ls_spec_settle_params& p, int32_t index, int lane, int32_t accepted) {
  int32_t* const row = p.emitted + index * p.emitted_stride;
  const int32_t slot = p.rows.slots[index];
  const int32_t state = slot >= 0 && slot < p.slots.slot_count ? p.slots.state[slot] : -1;
  const Sequence s = sequence_of(p.slots, p.rows, index, 1, lane == 0);
  const int32_t a = s.live ? min(max(accepted, 0), s.count) : 0;
  for (int32_t i = lane; i < p.rows.max_rows + 2; i += kWarp) {
    int32_t value = i == 0 ? a : i == 1 ? state : -1;
    if (i >= 2 && i - 2 < a) value = tokens_of(p.slots, s.slot)[s.start + 1 + i - 2];
    row[i] = value;
  }
}

__device__ __forceinline__ void propose(const ls_spec_settle_params& p, int32_t index, int lane) {
  const bool leader = lane == 0;
  const Sequence s = sequence_of(p.slots, p.rows, index, 0, leader);
  if (!s.live || !runs(p.slots, s.slot, leader) || !leader) return;
  const int64_t slot = s.slot, last = s.start + s.count - 1;
  const int64_t committed = p.slots.committed[slot], proposed = p.slots.proposed[slot];
  if (last <= committed) {
    const int64_t drafted = p.slots.drafted[slot];
    // Rows before these were never made: what the draft said here, it said without them.
    if (s.start > max(drafted, int64_t(1))) return;
    p.slots.drafted[slot] = int32_t(max(drafted, last + 1));
  }
  if (p.choice == nullptr) return;
  const int32_t choice = p.choice[index];
  const int64_t room = min(int64_t(min(p.slots.limit[slot], p.slots.length_limit[slot])), int64_t(p.slots.positions));
  const bool in_answer = committed >= p.slots.prompt[slot];
  if (choice >= 0 && in_answer && last == committed + proposed && last + 1 < room) {
    tokens_of(p.slots, slot)[last + 1] = choice;
    p.slots.proposed[slot] = int32_t(proposed) + 1;
  }
}

__global__ void __launch_bounds__(kWarp) settle(const ls_spec_settle_params p) {
  const int32_t index = blockIdx.x, lane = threadIdx.x;
  pdl::wait();
  pdl::launch_dependents();
  if ((p.steps & LS_SPEC_PROPOSE) != 0) propose(p, index, lane);
  constexpr int32_t kAccepting = LS_SPEC_ACCEPT | LS_SPEC_STOP | LS_SPEC_ADVANCE | LS_SPEC_EMIT;
  if ((p.steps & kAccepting) == 0) return;
  const int32_t before = (p.steps & LS_SPEC_ACCEPT) != 0 ? 0 : p.accepted[index];
  int32_t a = before;
  // What the leader wrote in a step, all lanes read in the next: hence the warp's barriers.
  if ((p.steps & LS_SPEC_ACCEPT) != 0) a = accept(p, index, lane);
  __syncwarp();
  if ((p.steps & LS_SPEC_STOP) != 0) a = stop(p, index, lane, a);
  __syncwarp();
  if ((p.steps & LS_SPEC_ADVANCE) != 0) a = advance(p, index, lane, a);
  __syncwarp();
  if (lane == 0 && (p.steps & (LS_SPEC_ACCEPT | LS_SPEC_STOP | LS_SPEC_ADVANCE)) != 0) p.accepted[index] = a;
  if ((p.steps & LS_SPEC_EMIT) != 0) emit(p, index, lane, a);
}

inline int32_t launch_settle(const ls_spec_settle_params& p, ls_stream_t stream) {
  if (p.rows.sequences < 1 || p.steps < 1 || p.steps > 31) return LS_ERR_UNSUPPORTED;
  const dim3 grid(static_cast<unsigned>(p.rows.sequences));
  return launch(settle, grid, kWarp, 0, stream, p.programmatic != 0, p);
}

}  // namespace lockstep::spec
