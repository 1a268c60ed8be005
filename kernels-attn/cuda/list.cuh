// The list of a round's work as thread blocks read it, and which keys their rows see.
#pragma once

#include <cstdint>

#include "kernels_attn.h"
#include "lockstep/divide.cuh"
#include "softmax.cuh"

namespace lockstep::attn {

static_assert(sizeof(ls_attn_work_params) == 120, "src/sys.rs describes this layout");
static_assert(sizeof(ls_attn_params) == 264, "src/sys.rs describes this layout");

constexpr int kHeadWords = 8, kEntryWords = 4, kItemWords = 12;

// Positions [first, end), or tiles.
struct Range {
  int32_t first, end;

  __device__ __forceinline__ bool empty() const { return first >= end; }
};

struct Visible {
  int32_t first_key, window;

  // The keys of the row at a position; `first` may lie behind the end.
  __device__ __forceinline__ Range of(int32_t position) const {
    return {max(first_key, position + 1 - window), position + 1};
  }
  // Those that some row of several sees: both ends ascend with the position.
  __device__ __forceinline__ Range of(int32_t start, int32_t rows) const {
    const int32_t end = start + rows;
    return {min(of(start).first, end), end};
  }
};

// The tiles that hold some of these keys.
__device__ __forceinline__ Range tiles_of(Range keys) {
  if (keys.empty()) return {0, 0};
  return {keys.first / kTileKeys, (keys.end - 1) / kTileKeys + 1};
}

// Where a share's pieces are cut.
__host__ __device__ constexpr int32_t tiles_of_share(int32_t share, int32_t leaf_tiles) {
  return share == LS_ATTN_SHARE_LEAF ? leaf_tiles : kGroupTiles;
}

// What a list says of a sequence.
struct Entry {
  int32_t first_piece, pieces;  // pieces: of a K/V head's row block
  Range tiles;

  static __device__ __forceinline__ Entry load(const int32_t* work, int32_t sequence) {
    const int32_t* const at = work + kHeadWords + int64_t(sequence) * kEntryWords;
    return {at[0], at[1], {at[2], at[3]}};
  }
};

// Some tiles of one K/V head for one row block. Without tiles: zeros for `rows` rows from `first_row`.
struct Item {
  int32_t kv_head, row_block;
  Range tiles;
  int32_t piece;  // -1: the thread block has all of them and finishes the rows
  int32_t slot, start, first_row, rows;  // of the sequence

  // An item on its way, in a register of a warp's lanes.
  static __device__ __forceinline__ int32_t ask(const int32_t* work, int32_t sequences, int32_t index) {
    const int32_t* const items = work + kHeadWords + int64_t(sequences) * kEntryWords;
    const int lane = threadIdx.x % 32;
    return lane < kItemWords ? items[int64_t(index) * kItemWords + lane] : 0;
  }
  static __device__ __forceinline__ Item of(int32_t words) {
    const auto word = [&](int i) { return __shfl_sync(0xffffffffu, words, i); };
    return {word(1), word(2), {word(3), word(4)}, word(5), word(6), word(7), word(8), word(9)};
  }
};

// The items of one thread block: first, first + step, ... below end.
struct Dealt {
  int32_t first, end, step;

  __device__ __forceinline__ Dealt(const int32_t* work, int32_t block, int32_t blocks) {
    const int32_t items = work[0], share = work[2];
    // Whole sequences in turn, since their row blocks descend in length; pieces in runs, whose keys are neighbours.
    const bool turns = share == LS_ATTN_SHARE_SEQUENCE;
    first = turns ? block : int32_t(int64_t(block) * items / blocks);
    end = turns ? items : int32_t(int64_t(block + 1) * items / blocks);
    step = turns ? blocks : 1;
  }
};

// What a kernel gets: the operands, and the numbers that it divides by.
struct Params : ls_attn_params {
  Divider group;            // query heads of a K/V head
  int32_t block_positions;  // rows of a sequence in a row block

  explicit Params(const ls_attn_params& p)
      : ls_attn_params(p),
        group(p.q_heads / p.kv_heads),
        block_positions(kBlockRows / (p.q_heads / p.kv_heads)) {}

  __device__ __forceinline__ Visible visible() const { return {first_key, window}; }
};

// The rows of an item's row block.
struct RowBlock {
  int32_t first_row, start, count;  // start: position of the first row

  __device__ __forceinline__ RowBlock(const Params& p, const Item& item) {
    const int32_t before = item.row_block * p.block_positions;
    first_row = item.first_row + before;
    start = item.start + before;
    count = min(item.rows - before, p.block_positions);
  }

  // (row, head) pairs.
  __device__ __forceinline__ int32_t pairs(const Params& p) const { return count * int32_t(p.group.divisor); }
};

// One of the (row, head) pairs of a row block.
struct Pair {
  uint32_t row, head;  // in the block, in the group

  __device__ __forceinline__ Pair(const Params& p, uint32_t number) { row = p.group.divide(number, head); }
};

}  // namespace lockstep::attn
