// What a launch does for one sequence, and the raw inputs of its tokens.
#pragma once

#include "kernels_gdn.h"
#include "lockstep/divide.cuh"
#include "lockstep/slots.cuh"
#include "token.cuh"

namespace lockstep::gdn {

static_assert(sizeof(ls_gdn_params) == 280, "src/sys.rs describes this layout");

constexpr int64_t kPositions = (int64_t(1) << 31) - 1;  // positions are i32

enum class Mode { Verify, Prefill, Fold };

// What a kernel gets: the operands, and the numbers it divides by.
struct Params : ls_gdn_params {
  Divider heads;         // value heads
  Divider heads_of_key;  // value heads of a key head
  Divider ring;          // journal rows

  explicit Params(const ls_gdn_params& p)
      : ls_gdn_params(p), heads(p.v_heads), heads_of_key(p.v_heads / p.k_heads), ring(p.journal_rows) {}
};

// Tokens in the order of their positions: first `pending` journal rows, then `count` rows of the launch.
struct Work {
  int32_t slot;
  int32_t first;   // first row in the launch
  int32_t folded;  // position of the first token
  int32_t pending;
  int32_t count;
  int32_t ring_row;  // journal row of the first token
  bool live;         // false: touch nothing, write zeros

  __device__ __forceinline__ int32_t tokens() const { return pending + count; }
};

// The journal row of token `t`.
__device__ __forceinline__ __nv_bfloat16* journal_row(const Params& p, const Work& w, int32_t t) {
  // At most journal_rows tokens are replayed and written, so that they wrap once.
  const int32_t row = w.ring_row + t < p.journal_rows ? w.ring_row + t : w.ring_row + t - p.journal_rows;
  return static_cast<__nv_bfloat16*>(p.journal) + int64_t(w.slot) * p.journal_slot_stride + row * p.journal_row_stride;
}

// What the lists say of a sequence, and its counters on their way.
struct Counters {
  int32_t slot, first, count;
  int32_t folded, end;  // positions: behind the state's tokens, and behind the pending ones
  bool live;            // the lists are sound, and there is something to do
};

// Reads and checks the lists and issues the loads of the counters; the same answer in every thread. Exactly one
// thread of the grid passes `report`.
template <Mode kMode>
__device__ __forceinline__ Counters counters_of(const Params& p, int32_t index, bool report) {
  Counters c{};
  if constexpr (kMode == Mode::Fold) {
    c.slot = p.rows.slots[index];
    c.live = c.slot >= 0 && c.slot < p.rows.slot_count;
    if (c.slot >= p.rows.slot_count && report) record_fault(p.rows, FaultKind::Slot, c.slot, c.slot);
    if (c.live) c.end = p.committed[c.slot];
  } else {
    const Sequence s = sequence_at(p.rows, index, kPositions, report);
    c.slot = int32_t(s.slot), c.first = int32_t(s.first), c.count = s.count, c.end = int32_t(s.start);
    c.live = s.live;
  }
  if (c.live) c.folded = p.folded[c.slot];
  return c;
}

// Checks the counters.
template <Mode kMode>
__device__ __forceinline__ Work work_of(const Params& p, const Counters& c, bool report) {
  Work w{};
  w.slot = c.slot, w.first = c.first, w.count = c.count;
  if (!c.live) return w;
  w.folded = c.folded;
  const int64_t pending = int64_t(c.end) - c.folded;
  const int32_t room = p.journal_rows - (kMode == Mode::Verify ? c.count : 0);
  w.live = c.folded >= 0 && 0 <= pending && pending <= room;
  if (!w.live && report) {
    const int64_t low = -(int64_t(1) << 31), high = (int64_t(1) << 31) - 1;
    const int64_t value = pending < low ? low : pending > high ? high : pending;
    record_fault(p.rows, FaultKind::Pending, c.slot, int32_t(value));
  }
  w.pending = w.live ? int32_t(pending) : 0;
  uint32_t ring_row = 0;
  p.ring.divide(w.live ? c.folded : 0, ring_row);
  w.ring_row = int32_t(ring_row);
  if (kMode == Mode::Fold && pending == 0) w.live = false;
  return w;
}

// How many tokens are in the state when it is stored; -1: it is not stored.
template <Mode kMode>
__device__ __forceinline__ int32_t store_after(const Params& p, const Work& w) {
  if (kMode != Mode::Verify) return w.tokens();
  return flushes(w.pending, p.flush_after) ? w.pending : -1;
}

// The raw inputs of token `t` of a sequence, for one key head and one value head.
struct Raw {
  const __nv_bfloat16* q;  // null for a replayed token
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
  const __nv_bfloat16* a;
  const __nv_bfloat16* b;
};

__device__ __forceinline__ Raw raw_of(const Params& p, const Work& w, int32_t t, int32_t k_head,
                                      int32_t v_head) {
  if (t < w.pending) {
    const __nv_bfloat16* row = journal_row(p, w, t);
    const __nv_bfloat16* v = row + p.k_heads * kHead;
    const __nv_bfloat16* a = v + p.v_heads * kHead;
    return {nullptr, row + k_head * kHead, v + v_head * kHead, a + v_head, a + p.v_heads + v_head};
  }
  const int64_t row = int64_t(w.first) + (t - w.pending);
  const auto bf16 = [](const void* x) { return static_cast<const __nv_bfloat16*>(x); };
  return {bf16(p.q) + row * p.q_row_stride + k_head * p.q_head_stride,
          bf16(p.k) + row * p.k_row_stride + k_head * p.k_head_stride,
          bf16(p.v) + row * p.v_row_stride + v_head * p.v_head_stride, bf16(p.a) + row * p.a_row_stride + v_head,
          bf16(p.b) + row * p.b_row_stride + v_head};
}

// Four bf16 values as they lie in memory.
using Packed = uint2;

__device__ __forceinline__ Packed load_packed(const __nv_bfloat16* at) {
  return *reinterpret_cast<const Packed*>(at);
}
__device__ __forceinline__ void store_packed(__nv_bfloat16* at, Packed x) { *reinterpret_cast<Packed*>(at) = x; }

__device__ __forceinline__ float4 widen(Packed x) {
  return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                     __uint_as_float(x.y & 0xffff0000u));
}

// A lane's part of a raw head.
struct PackedSlice {
  Packed at[kVectors];

  __device__ __forceinline__ void load(const __nv_bfloat16* head, int lane) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) at[j] = load_packed(head + 32 * j + 4 * lane);
  }
  __device__ __forceinline__ void store(__nv_bfloat16* head, int lane) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) store_packed(head + 32 * j + 4 * lane, at[j]);
  }
  __device__ __forceinline__ Slice widened() const {
    Slice wide;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) wide.at[j] = widen(at[j]);
    return wide;
  }
};

__device__ __forceinline__ Slice load_slice(const float* row, int lane) {
  Slice x;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) x.at[j] = *reinterpret_cast<const float4*>(row + 32 * j + 4 * lane);
  return x;
}
__device__ __forceinline__ void store_slice(float* row, int lane, const Slice& x) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) *reinterpret_cast<float4*>(row + 32 * j + 4 * lane) = x.at[j];
}

}  // namespace lockstep::gdn
