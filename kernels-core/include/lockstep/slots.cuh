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
  const bool valid = 0 <= first && first <= end && end <= rows.row_count;
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

// The first row that belongs to no sequence; rows up to row_count are to be zeroed.
__device__ __forceinline__ int64_t unowned_from(const ls_rows& rows) {
  const int32_t end = rows.row_offsets[rows.sequences];
  return end < 0 ? 0 : end < rows.row_count ? end : rows.row_count;
}

// The one flush rule of the GDN journal; see kernels_core::slots::flushes.
__host__ __device__ constexpr bool flushes(int32_t pending, int32_t flush_after) {
  return pending > flush_after;
}

}  // namespace lockstep
