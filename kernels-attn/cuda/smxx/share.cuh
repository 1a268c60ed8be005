// Which share a round is dealt in where its lengths decide: Share::of_round of src/grid.rs, in the same integers.
#pragma once

#include "list.cuh"

namespace lockstep::attn {

constexpr int kShares = 3;  // those with the fewest pieces first

__host__ __device__ constexpr int32_t share_at(int i) {
  return i == 0 ? LS_ATTN_SHARE_SEQUENCE : i == 1 ? LS_ATTN_SHARE_GROUP : LS_ATTN_SHARE_LEAF;
}

// What is to be done in a round.
struct Round {
  unsigned long long longest;          // tiles of the longest sequence
  unsigned long long tiles;            // of all sequences, K/V heads and row blocks
  unsigned long long items[kShares];   // that have tiles: K/V heads, row blocks and cuts
  unsigned long long pieces[kShares];  // those of them that are one of several of their row block
};

// Cuts of tiles: 1 where one thread block has them all.
__device__ __forceinline__ int32_t cuts_of(Range tiles, int32_t share, int32_t leaf_tiles) {
  if (share == LS_ATTN_SHARE_SEQUENCE) return 1;
  const int32_t unit = tiles_of_share(share, leaf_tiles);
  return (tiles.end + unit - 1) / unit - tiles.first / unit;
}

// The one that is done first, by nanoseconds of an H200.
__device__ inline int32_t share_of_round(const Round& round, int32_t leaf_tiles, uint64_t blocks, uint64_t max_pieces,
                                         uint64_t block_rows) {
  constexpr uint64_t kTileStreamedAlone = 1700, kTileStreamed = 3850, kTile = 1400, kTileRow = 37;
  constexpr uint64_t kMerge = 2500, kMergePiece = 100, kMergedRow = 3;
  const auto most = [](uint64_t a, uint64_t b) { return a > b ? a : b; };
  const uint64_t alone = kTile + kTileRow * block_rows;
  int32_t chosen = LS_ATTN_SHARE_SEQUENCE;
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < kShares; ++i) {
    const int32_t share = share_at(i);
    const uint64_t items = round.items[i], pieces = round.pieces[i];
    if (pieces > max_pieces) continue;
    uint64_t whole = round.longest;
    if (share != LS_ATTN_SHARE_SEQUENCE) whole = min(whole, uint64_t(tiles_of_share(share, leaf_tiles)));
    const uint64_t turns = items / blocks, last = items % blocks;
    uint64_t cost = most(kTileStreamed, alone) * round.tiles / most(items, 1) * turns;
    if (last > 0) {
      const uint64_t more = (kTileStreamed - kTileStreamedAlone) * last * last / (blocks * blocks);
      cost += most(kTileStreamedAlone + more, alone) * whole;
    }
    cost = most(cost, alone * whole);
    if (pieces > 0) {
      cost += kMerge + kMergePiece * pieces / round.items[0] + block_rows * (pieces + kMergedRow * round.items[0]);
    }
    if (cost < least) chosen = share, least = cost;
  }
  return chosen;
}

}  // namespace lockstep::attn
