// A block's shared memory: the ring of steps, deep enough that memory never waits for the arithmetic.
#pragma once

#include "layer.cuh"
#include "lockstep/mbarrier.cuh"

namespace lockstep::dense::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kTileBytes = kTileFeatures * kRowBytes;
constexpr int kMostInCluster = 8;  // that every chip has
// Bytes of a weight that a block has asked for and not got.
constexpr int kInFlightBytes = 96 * 1024;

// kN: columns; kGroups: warpgroups with 64 features each; kResident: blocks that a multiprocessor has room for.
template <int kN, int kGroups, Kind kKind, int kResident>
struct Shared {
  static constexpr int kMostBytes = kResident == 2 ? 113 * 1024 : 227 * 1024;
  static constexpr int kConsumers = kGroups * kWarpgroup;
  // Where multiprocessors have room for two blocks, clusters of more than two find room, too.
  static constexpr bool kClusters = kKind == Kind::Linear && kResident == 2;
  // Where not, blocks with neighbouring tiles read many rows of x together.
  static constexpr bool kTeams = kResident == 1 && kN >= 32;
  // As a warpgroup they can leave registers to the others.
  static constexpr bool kWide = kN > 64;
  // Of more rows than columns, groups of blocks of one launch may have some each: y is the group's number.
  static constexpr bool kBeside = kClusters || (kWide && kKind != Kind::Head);
  static constexpr int kProducers = kWide ? kWarpgroup : 64;
  static constexpr int kThreads = kConsumers + kProducers;
  static constexpr int kWeightBytes = kGroups * kTileBytes;
  static constexpr int kStepBytes = kWeightBytes + kN * kRowBytes;
  // Up's rounded sums for gate's warpgroup; the best of each warp.
  static constexpr int kTradeBytes =
      kKind == Kind::Gated ? kN * kRowBytes : kKind == Kind::Head ? 32 * kGroups * kN : 16;
  static constexpr int kStages = (kMostBytes - 1024 - 64 - kTradeBytes) / (kStepBytes + 4 * int(sizeof(Barrier)));
  static constexpr int kInFlight = kInFlightBytes / kWeightBytes < kStages ? kInFlightBytes / kWeightBytes : kStages;
  static_assert(kGroups == 2 || kKind == Kind::Linear, "gate and up are a warpgroup's each");
  static_assert(kWeightBytes % 1024 == 0 && kN * kRowBytes % 1024 == 0, "the swizzle's period");
  static_assert(kStages >= 4, "some must be on their way while others are read");
  static_assert(kStages <= 32, "a thread makes the barriers of a stage");

  uint8_t weights[kStages][kWeightBytes];  // [stage][features, 64], swizzled
  uint8_t rows[kStages][kN * kRowBytes];   // [stage][columns, 64], swizzled
  uint32_t trade[kTradeBytes / 4];
  Barrier weights_there[kStages], rows_there[kStages];
  Barrier weights_free[kStages], rows_free[kStages];  // of both; of rows of the whole team, where there is one
  Barrier sums_there;                                 // what other blocks of the cluster have sent
  uint32_t last;                                      // whether this block was the last to arrive

  static __device__ __forceinline__ int32_t group() { return kBeside ? blockIdx.y : 0; }
  // Of this block's columns, among the layer's rows.
  static __device__ __forceinline__ int32_t first_row() { return group() * kN; }
  // Of all blocks of the launch, and how many there are.
  static __device__ __forceinline__ int32_t block() { return group() * gridDim.x + blockIdx.x; }
  static __device__ __forceinline__ int32_t blocks() { return gridDim.x * (kBeside ? gridDim.y : 1); }
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
