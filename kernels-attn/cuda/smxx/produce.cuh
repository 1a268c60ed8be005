// The warps that bring keys and values: pieces of 64 positions, a tile's keys before its values, through a ring.
//
// They run ahead over the borders of items. What no row of the block sees becomes zeros: a weight of 0 must not meet
// the NaN that a free page may hold.
#pragma once

#include "shared.cuh"

namespace lockstep::attn {

// The tiles of a block's items, one after the other. An item's numbers and a tile's page numbers are asked for one
// step before they are needed.
class Tiles {
 public:
  struct Tile {
    int32_t first_key;
    Range keys;  // that the row block sees
    int32_t kv_head;
    int32_t page;  // in lane i: the tile's page i
    bool there;
  };

  __device__ __forceinline__ Tiles(const Params& p) : dealt_(p.work, blockIdx.x, p.blocks), index_(dealt_.first) {
    if (index_ < dealt_.end) ahead_ = Item::ask(p.work, p.rows.sequences, index_);
    move_on(p);
  }

  __device__ __forceinline__ Tile next(const Params& p, int page_shift) {
    Tile tile = {};
    if (!there_) return tile;
    tile.first_key = tile_ * kTileKeys;
    tile.keys = keys_;
    tile.kv_head = item_.kv_head;
    tile.there = true;
    // Entries beside the visible keys may hold anything.
    const int lane = threadIdx.x % 32, page = (tile.first_key >> page_shift) + lane;
    const bool seen = lane < kTileKeys >> page_shift && !keys_.empty() && page >= keys_.first >> page_shift &&
                      page <= (keys_.end - 1) >> page_shift;
    if (seen) tile.page = p.page_table[item_.slot * p.page_table_stride + page];
    if (++tile_ == item_.tiles.end) move_on(p);
    return tile;
  }

 private:
  // To the next item that has tiles.
  __device__ __forceinline__ void move_on(const Params& p) {
    there_ = false;
    while (index_ < dealt_.end && !there_) {
      item_ = Item::of(ahead_);
      index_ += dealt_.step;
      if (index_ < dealt_.end) ahead_ = Item::ask(p.work, p.rows.sequences, index_);
      there_ = !item_.tiles.empty();
    }
    if (!there_) return;
    tile_ = item_.tiles.first;
    const RowBlock block(p, item_);
    keys_ = p.visible().of(block.start, block.count);
  }

  const Dealt dealt_;
  int32_t index_;
  Item item_ = {};
  int32_t ahead_ = 0;
  Range keys_ = {};
  int32_t tile_ = 0;
  bool there_ = false;
};

// Copies 16 keys' rows of a head, by one warp.
template <int kD>
__device__ __forceinline__ void copy_chunk(const Params& p, uint32_t to, const __nv_bfloat16* from, int32_t first_key,
                                           Range keys) {
  constexpr int kElements = kD / 8, kLines = 32 / kElements;  // of 16 bytes, in a row; rows at a time
  static_assert(kLines == 1 || kLines == 2, "");
  const int lane = threadIdx.x % 32, line = lane / kElements, element = lane % kElements;
  from += line * p.row_stride + element * 8;
  first_key += line;
#pragma unroll
  for (int i = 0; i < kChunkKeys; i += kLines) {
    const bool seen = first_key + i >= keys.first && first_key + i < keys.end;
    cp_async_16(to + (i + line) * (kD * 2) + ((element ^ line ^ (i % 8)) << 4), from, seen);
    from += kLines * p.row_stride;
  }
}

template <int kD, int kRows>
__device__ __forceinline__ void produce(const Params& p, Shared<kD, kRows>& shared, uint32_t ring, int stages,
                                        int producer) {
  using S = Shape<kD, kRows>;
  const int page_shift = __ffs(p.page_rows) - 1;
  const auto* const pool = static_cast<const __nv_bfloat16*>(p.pool);
  Tiles tiles(p);
  Place place;
  for (Tiles::Tile tile = tiles.next(p, page_shift); tile.there;) {
    Tiles::Tile after;
#pragma unroll 1
    for (int piece = 0; piece < 4; ++piece) {
      const int64_t side = piece / 2 * p.kv_stride + tile.kv_head * p.head_stride;
      wait_for(shared.free[place.stage()], place.parity() ^ 1);
      const uint32_t to = ring + place.stage() * S::kPieceBytes;
#pragma unroll 1
      for (int chunk = producer * kChunkKeys; chunk < kPieceKeys; chunk += kProducers * kChunkKeys) {
        const int key = piece % 2 * kPieceKeys + chunk;  // in the tile
        const int32_t page = __shfl_sync(0xffffffffu, tile.page, key >> page_shift);
        const int64_t row = key & (p.page_rows - 1);
        const __nv_bfloat16* const from = pool + page * p.page_stride + side + row * p.row_stride;
        copy_chunk<kD>(p, to + chunk * kD * 2, from, tile.first_key + key, tile.keys);
      }
      cp_async_arrive(shared.full[place.stage()]);
      place.move_on(stages);
      // Early enough for the page numbers, and no more than a few copies wait for the next item.
      if (piece == 1) after = tiles.next(p, page_shift);
    }
    tile = after;
  }
  // A thread does not leave its copies behind.
  cp_async_wait_all();
}

}  // namespace lockstep::attn
