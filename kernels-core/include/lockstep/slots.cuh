// The device side of kernels_core::slots: which rows are whose, and the sticky fault word.
#pragma once

#include <cstdint>

#include "lockstep/abi.h"

namespace lockstep {

enum class FaultKind : uint32_t {
  RowOffsets = 1,
  Slot = 2,
  Position = 3,
  Pending = 4,
  Page = 5,
  Token = 6,
  Logits = 7,
};

// Records a violated invariant unless the slot's word already holds one.
__device__ __forceinline__ void record_fault(const ls_rows& rows, FaultKind kind, int32_t slot,
                                             int32_t value) {
  const uint64_t word = uint64_t(kind) << 56 | uint64_t(uint32_t(slot) & 0xffffffu) << 32 | uint32_t(value);
  const int64_t index = slot < 0 || slot > rows.slot_count ? rows.slot_count : slot;
  atomicCAS(reinterpret_cast<unsigned long long*>(rows.faults + index), 0ull, word);
}

// Whether two neighbouring offsets are sound, so that the rows between them belong to a sequence.
__device__ __forceinline__ bool owns_rows(const ls_rows& rows, int32_t first, int32_t end) {
  return 0 <= first && first <= end && end <= rows.row_count;
}

// What is written of a sequence, unchecked.
struct Numbers {
  int32_t slot;
  int32_t start;  // position of the first row
  int32_t first;  // first row in the launch
  int32_t end;    // behind the last

  __device__ __forceinline__ int32_t count() const { return end - first; }

  // sequence_at()'s `live`, without a branch and without saying why not: for kernels that are all latency.
  // `positions` is at most 2^31. Negative numbers are large ones here.
  __device__ __forceinline__ bool live(const ls_rows& rows, int64_t positions) const {
    const uint32_t row_count = rows.row_count, slot_count = rows.slot_count, max_rows = rows.max_rows;
    return uint32_t(end) <= row_count & uint32_t(first) <= uint32_t(end) & uint32_t(count()) - 1 < max_rows &
           uint32_t(slot) < slot_count & uint32_t(start) <= uint32_t(positions) - uint32_t(count());
  }
};

__device__ __forceinline__ Numbers numbers_at(const ls_rows& rows, int32_t index) {
  return {rows.slots[index], rows.start[index], rows.row_offsets[index], rows.row_offsets[index + 1]};
}

// One sequence's part of a launch.
struct Sequence {
  int64_t slot;
  int64_t start;   // position of the first row
  int64_t first;   // first row in the launch
  int32_t count;   // rows; 0 where the offsets are not valid, so that nothing is written through them
  bool live;       // false: skip, read nothing, write zeros
};

// Reads and checks sequence `index`. Every thread gets the same answer; exactly one of the grid must pass
// `report` so that a fault is recorded once. `positions` bounds the position after the last row.
__device__ __forceinline__ Sequence sequence_at(const ls_rows& rows, int32_t index, int64_t positions,
                                                bool report) {
  const int32_t slot = rows.slots[index];
  const int32_t start = rows.start[index];
  const int32_t first = rows.row_offsets[index];
  const int32_t end = rows.row_offsets[index + 1];
  const bool valid = owns_rows(rows, first, end);
  const int32_t count = valid ? end - first : 0;
  FaultKind kind{};
  int32_t value = 0;
  if (!valid) {
    kind = FaultKind::RowOffsets, value = end;
  } else if (slot < 0) {
    kind = FaultKind{};
  } else if (slot >= rows.slot_count) {
    kind = FaultKind::Slot, value = slot;
  } else if (start < 0 || int64_t(start) + count > positions) {
    kind = FaultKind::Position, value = start;
  } else if (count > rows.max_rows) {
    kind = FaultKind::RowOffsets, value = count;
  }
  const bool faulty = kind != FaultKind{};
  if (faulty && report) record_fault(rows, kind, slot, value);
  return {slot, start < 0 ? 0 : start, first, count, valid && slot >= 0 && !faulty && count > 0};
}

// The first row that belongs to no sequence; rows up to row_count are to be zeroed. All offsets are looked at: a
// last one below the others, which is a fault, would give rows of a sound sequence to nobody. For the few
// threads that do the zeroing, not for those that run sequences.
__device__ __forceinline__ int64_t unowned_from(const ls_rows& rows) {
  int32_t from = 0, first = rows.row_offsets[0];
#pragma unroll 8  // loads do not depend on each other, so that eight are on their way
  for (int32_t i = 1; i <= rows.sequences; ++i) {
    const int32_t end = rows.row_offsets[i];
    if (owns_rows(rows, first, end) && from < end) from = end;
    first = end;
  }
  return from;
}

// The one flush rule of the GDN journal; see kernels_core::slots::flushes.
__host__ __device__ constexpr bool flushes(int32_t pending, int32_t flush_after) {
  return pending > flush_after;
}

}  // namespace lockstep
