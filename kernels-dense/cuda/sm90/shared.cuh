// A block's shared memory: the ring of steps, deep enough that memory never waits for the arithmetic.
#pragma once

#include "layer.cuh"
#include "lockstep/mbarrier.cuh"

namespace lockstep::dense::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kMostShared = 227 * 1024;
constexpr int kTileBytes = kTileFeatures * kRowBytes;

// kN: columns; kGroups: warpgroups with 64 features each.
template <int kN, int kGroups, Kind kKind>
struct Shared {
  static constexpr int kConsumers = kGroups * kWarpgroup;
  static constexpr int kWeightBytes = kGroups * kTileBytes;
  static constexpr int kStepBytes = kWeightBytes + kN * kRowBytes;
  // Up's rounded sums for gate's warpgroup; the best of each warp.
  static constexpr int kTradeBytes = kKind == Kind::Gated ? kN * kRowBytes : kKind == Kind::Head ? 32 * kGroups * kN : 16;
  static constexpr int kStages = (kMostShared - 1024 - 64 - kTradeBytes) / (kStepBytes + 2 * int(sizeof(Barrier)));
  static_assert(kGroups == 2 || kKind == Kind::Linear, "gate and up are a warpgroup's each");
  static_assert(kWeightBytes % 1024 == 0 && kN * kRowBytes % 1024 == 0, "the swizzle's period");
  static_assert(kStages >= 4, "some must be on their way while others are read");
  static_assert(kStages <= 32, "a lane fills a stage");

  uint8_t weights[kStages][kWeightBytes];  // [stage][features, 64], swizzled
  uint8_t rows[kStages][kN * kRowBytes];   // [stage][columns, 64], swizzled
  uint32_t trade[kTradeBytes / 4];
  Barrier full[kStages], empty[kStages];
  uint32_t last;  // whether this block was the last to arrive
};

// A stage of the ring, and the parity of its turn.
template <int kStages>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

}  // namespace lockstep::dense::sm90
