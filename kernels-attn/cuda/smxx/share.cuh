// Which share a round is dealt in where its lengths decide: Share::of_round of src/grid.rs, in the same integers.
#pragma once

#include "list.cuh"

namespace lockstep::attn {

constexpr int kCutShares = 2;  // groups, leaves: those with the fewest pieces first

__host__ __device__ constexpr int32_t cut_share(int i) { return i == 0 ? LS_ATTN_SHARE_GROUP : LS_ATTN_SHARE_LEAF; }

// What is to be done in a round.
struct Round {
  unsigned long long longest;             // tiles of the longest sequence
  unsigned long long tiles;               // of all sequences, K/V heads and row blocks
  unsigned long long zeros;               // items that write zeros
  unsigned long long items[kCutShares];   // of all other sequences: K/V heads, row blocks and cuts
  unsigned long long pieces[kCutShares];  // those of them that are one of several of their row block
};

// Tiles cut at multiples of `unit`.
__device__ __forceinline__ int32_t cuts_of(Range tiles, int32_t unit) {
  return (tiles.end + unit - 1) / unit - tiles.first / unit;
}

// The one that is done first: bound by the longest run of items, taken to consist of row blocks of the longest sequence,
// or by memory. A piece costs what its partial result adds in bytes written and read.
__device__ inline int32_t share_of_round(const Round& round, int32_t leaf_tiles, uint64_t blocks, uint64_t max_pieces,
                                         uint64_t block_rows) {
  int32_t chosen = LS_ATTN_SHARE_SEQUENCE;
  uint64_t least = 0;
  for (int i = 0; i < kCutShares; ++i) {
    if (round.pieces[i] > max_pieces) continue;
    const uint64_t unit = tiles_of_share(cut_share(i), leaf_tiles), longest = round.longest;
    const uint64_t turns = (round.zeros + round.items[i] + blocks - 1) / blocks;
    const uint64_t cuts = longest > unit ? (longest + unit - 1) / unit : 1;
    const uint64_t rest = turns % cuts * unit;
    const uint64_t run = 2 * (turns / cuts * longest + (rest < longest ? rest : longest));
    const uint64_t memory = (7 * round.tiles + blocks - 1) / blocks;
    const uint64_t cost = 32 * (run > memory ? run : memory) + (round.pieces[i] > 0 ? turns * block_rows : 0);
    if (chosen == LS_ATTN_SHARE_SEQUENCE || cost < least) chosen = cut_share(i), least = cost;
  }
  return chosen;
}

}  // namespace lockstep::attn
