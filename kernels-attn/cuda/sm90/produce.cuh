// The warp that brings keys and values: one bulk tensor copy a lane, always as far ahead as the ring allows.
//
// Of each tile, keys come one tile before values, since its scores are worked out that early.
#pragma once

#include "lockstep/wgmma.cuh"
#include "shared.cuh"

namespace lockstep::attn::sm90 {

// Of a power of two.
__device__ __forceinline__ int bits_below(int power) { return 31 - __clz(power); }

template <int kD, int kN>
struct Producer {
  using S = Shared<kD, kN>;

  const Params& p;
  const CUtensorMap& map;
  S& shared;
  const uint64_t policy;
  const int page_shift, box_shift;  // a box: rows of one page, 64 at most
  const int box, column;            // of this lane
  Cursor<S::kStages> at;

  __device__ __forceinline__ Producer(const Params& p, const CUtensorMap& map, S& shared, uint64_t policy)
      : p(p),
        map(map),
        shared(shared),
        policy(policy),
        page_shift(bits_below(p.page_rows)),
        box_shift(min(page_shift, 6)),
        box(threadIdx.x % 32 / S::kColumns),
        column(threadIdx.x % S::kColumns) {}

  // First key of this lane's box.
  __device__ __forceinline__ int key_of(int tile, int half) const {
    return tile * kTileKeys + half * kPieceKeys + (box << box_shift);
  }
  // Only pages with keys that somebody sees are in the table.
  __device__ __forceinline__ bool wanted(int key, Range seen) const {
    return box < kPieceKeys >> box_shift && key < seen.end && key + (1 << box_shift) > seen.first;
  }
  __device__ __forceinline__ int page_of(const Item& item, Range seen, int tile, int half) const {
    const int key = key_of(tile, half);
    if (tile >= item.tiles.end || !wanted(key, seen)) return 0;
    return p.page_table[item.slot * p.page_table_stride + (key >> page_shift)];
  }

  // kind: 0 for keys, 1 for values.
  __device__ __forceinline__ void bring(const Item& item, Range seen, int tile, int half, int kind, int page) {
    const int key = key_of(tile, half);
    const bool own = wanted(key, seen);
    const int boxes = __popc(__ballot_sync(0xffffffffu, own));
    Barrier& full = shared.full[at.stage];
    shared.empty[at.stage].wait(at.parity ^ 1);
    if (threadIdx.x % 32 == 0) full.arrive_and_expect(uint32_t(boxes * kRowBytes) << box_shift);
    __syncwarp();
    if (own) {
      uint8_t* const to = shared.ring[at.stage][column] + (box * kRowBytes << box_shift);
      tensor_load(to, map, {column * 64, key & (p.page_rows - 1), item.kv_head, kind, page}, full, policy);
    }
    at.advance(1);
  }

  __device__ __forceinline__ void run() {
    const Dealt dealt(p.work, blockIdx.x, gridDim.x);
    for (int32_t index = dealt.first; index < dealt.end; index += dealt.step) {
      const Item item = Item::of(Item::ask(p.work, p.rows.sequences, index));
      if (item.tiles.empty()) continue;
      const RowBlock block(p, item);
      const Range seen = p.visible().of(block.start, block.count);
      const auto keys = [&](int tile, const int(&pages)[2]) {
        for (int half = 0; half < 2; ++half) bring(item, seen, tile, half, 0, pages[half]);
      };
      // Page numbers are asked for two tiles ahead, so that no copy waits for them.
      int now[2], next[2], later[2];
      for (int half = 0; half < 2; ++half) {
        now[half] = page_of(item, seen, item.tiles.first, half);
        next[half] = page_of(item, seen, item.tiles.first + 1, half);
      }
      keys(item.tiles.first, now);
      for (int tile = item.tiles.first; tile < item.tiles.end; ++tile) {
        for (int half = 0; half < 2; ++half) later[half] = page_of(item, seen, tile + 2, half);
        if (tile + 1 < item.tiles.end) keys(tile + 1, next);
        for (int half = 0; half < 2; ++half) {
          bring(item, seen, tile, half, 1, now[half]);
          now[half] = next[half], next[half] = later[half];
        }
      }
    }
  }
};

}  // namespace lockstep::attn::sm90
