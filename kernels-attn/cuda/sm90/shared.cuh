// What the warpgroups of a thread block share: the ring of keys and values, and what passes between the consumers.
#pragma once

#include <cstdint>

#include "list.cuh"
#include "lockstep/mbarrier.cuh"

namespace lockstep::attn::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2 * kWarpgroup;
constexpr int kThreads = kWarpgroup + kConsumers;  // one warpgroup brings keys and values
constexpr int kPieceKeys = 64;                     // of a piece of the ring: M of a wgmma
constexpr int kRowBytes = 128;                     // of the swizzled tiles: 64 elements of a key, a value or a query
constexpr int kColumnBytes = kPieceKeys * kRowBytes;
constexpr int kMostShared = 227 * 1024;

// Floats in the order of integers, which an atomic maximum takes.
__device__ __forceinline__ int32_t ordered(int32_t bits) { return bits >= 0 ? bits : bits ^ 0x7fffffff; }
constexpr int32_t kNoScore = int32_t(0x807fffff);  // -inf, ordered

// kD: head_dim; kN: (row, head) pairs of a row block, rounded up.
template <int kD, int kN>
struct Shared {
  static constexpr int kColumns = kD / 64;  // of 64 elements
  static constexpr int kPieceBytes = kColumns * kColumnBytes;
  static constexpr int kTail = 96 * kN + 256;  // what lies behind the tiles
  static constexpr int kStages = (kMostShared - 1024 - (kColumns + 2) * kN * kRowBytes - kTail) / kPieceBytes;
  static_assert(kStages >= 4, "a tile's keys and values");

  uint8_t ring[kStages][kColumns][kColumnBytes];
  uint8_t queries[kColumns][kN * kRowBytes];
  uint8_t weights[2][kN * kRowBytes];  // of 64 keys each
  int32_t top[3][kN];                  // of a tile's scores, as ordered integers; tiles take turns
  float sums[2][kN][8];                // of a tile's weights, by warp; tiles take turns
  float2 factors[2][kN];               // of a fold, for each warpgroup
  int32_t positions[kN];               // -1 behind the last pair
  Barrier full[kStages], empty[kStages];
};

// A stage of the ring, and the parity of its turn.
template <int kStages>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(int pieces) {
    stage += pieces;
    if (stage >= kStages) stage -= kStages, parity ^= 1;
  }
  __device__ __forceinline__ Cursor after(int pieces) const {
    Cursor next = *this;
    next.advance(pieces);
    return next;
  }
};

}  // namespace lockstep::attn::sm90
