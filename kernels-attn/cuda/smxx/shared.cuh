// What a block of the SM80 path has in shared memory, and how its threads are divided.
#pragma once

#include <cuda_bf16.h>

#include "list.cuh"
#include "softmax.cuh"
#include "async.cuh"

namespace lockstep::attn {

constexpr int kWarps = 8;       // that compute: each has 16 of a tile's keys, then an eighth of the columns
constexpr int kProducers = 4;   // warps that copy; fewer would not give the others more registers
constexpr int kThreads = 32 * (kWarps + kProducers);
constexpr int kPieceKeys = 64;  // of a piece of the ring: half of a tile's keys or values
constexpr int kChunkKeys = 16;  // that one warp copies in a go; no page has fewer
constexpr int kMaxStages = 8;

static_assert(kWarps * 16 == kTileKeys, "a warp's keys are a block of the sum's tree");

// kRows: (row, head) pairs of a thread block, a row block's or half of them, filled up to a multiple of 8.
template <int kD, int kRows>
struct Shape {
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kColumns = kD / kWarps;  // of a warp
  static constexpr int kColumnTiles = kColumns / 16;
  static constexpr int kLaneRows = (kRows + 31) / 32;
  static constexpr int kValues = kRowTiles * kColumnTiles * 4;  // of a thread in one accumulator
  // Group and total stay in registers beside the leaf where all three are small.
  static constexpr bool kSmall = kValues <= 24;
  static constexpr int kUnroll = kRowTiles <= 4 ? 8 : 1;  // of the loops over products' steps
  static constexpr int kPieceBytes = kPieceKeys * kD * 2;
  static_assert(kRows % 8 == 0 && kColumns % 16 == 0, "whole tiles");
};

// What is asked of an item now and then, and would take registers all the time.
struct Notes {
  Item item;
  RowBlock block;
  Range seen_by_all;  // keys that every row of the block sees
  int32_t pairs;      // (row, head) pairs of it that this thread block has, or fewer than one
};

// Lines of 16-byte elements are swizzled: element e of line r lies where e ^ (r % 8) would. The ring follows.
template <int kD, int kRows>
struct __align__(1024) Shared {
  __nv_bfloat16 queries[kRows][kD];
  __nv_bfloat16 weights[kRows][kTileKeys];
  float maxima[kRows][kWarps];  // of 16 keys
  float sums[kRows][kWarps];
  Stats stats[3][kWarps][32 * Shape<kD, kRows>::kLaneRows];  // of leaf, group and total; a lane's own
  float tops[kWarps][32 * Shape<kD, kRows>::kLaneRows];      // the leaf's maxima, this tile's among them
  Notes notes[kWarps];  // a warp's own copies
  Dealt dealt[kWarps];  // what is left to a warp
  int32_t words[kWarps][32];  // of the item that follows
  Barrier full[kMaxStages], free[kMaxStages];
};

// A place in the ring: a stage and the parity of its turn, in one register.
struct Place {
  uint32_t both = 0;

  __device__ __forceinline__ uint32_t stage() const { return both >> 1; }
  __device__ __forceinline__ uint32_t parity() const { return both & 1; }
  __device__ __forceinline__ void move_on(uint32_t stages) {
    both += 2;
    if (stage() == stages) both = parity() ^ 1;
  }
};

}  // namespace lockstep::attn
