// The warps that compute: keys and columns of values are a product's rows, a row block's (row, head) pairs its columns.
//
// For each tile a warp has 16 keys: scores = K Q^T, their maxima over all warps by shared memory, weights to shared
// memory; then an eighth of the columns: O^T += V^T W^T. Two barriers a tile.
#pragma once

#include "finish.cuh"
#include "softmax.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/mma.cuh"
#include "rows.cuh"
#include "shared.cuh"

namespace lockstep::attn {

template <int kD, int kRows>
class Computer {
 public:
  using S = Shape<kD, kRows>;

  __device__ __forceinline__ Computer(const Params& p, Shared<kD, kRows>& shared, uint32_t ring, int stages)
      : p_(p), shared_(shared), ring_(ring), stages_(stages) {}

  __device__ __forceinline__ void run() {
    // What is not needed tile by tile waits in shared memory.
    if (threadIdx.x % 32 == 0) shared_.dealt[threadIdx.x / 32] = Dealt(p_.work, blockIdx.x, p_.blocks);
    __syncwarp();
    if (!ask()) return;
    ask_for_queries(next());
    for (bool more = true; more;) {
      const Item item = next();
      more = ask();
      if (item.tiles.empty()) {
        zero_rows<kD>(p_, item, threadIdx.x, 32 * kWarps);
        if (more) ask_for_queries(next());
        continue;
      }
      begin(item);
      cp_async_wait_all();
      bar_sync<32 * kWarps>();
      for (int32_t tile = tiles_of_item().first; tile < tiles_of_item().end; ++tile) {
        weigh(tile);
        // Everyone is done with this item's queries.
        if (more && tile + 1 == tiles_of_item().end) ask_for_queries(next());
        attend(tile);
        fold(tiles_of_item(), tile);
      }
      emit();
    }
  }

 private:
  // Who this thread is, unknown to the compiler: what follows from it would otherwise be worked out once and fill
  // registers while values are multiplied.
  struct Thread {
    int number, warp, lane;

    __device__ __forceinline__ Thread() {
      number = threadIdx.x;
      asm volatile("" : "+r"(number));
      warp = number / 32, lane = number % 32;
    }
  };

  // Asks for the words of the next item, if there is one: they are on their way to shared memory.
  __device__ __forceinline__ bool ask() {
    const Thread thread;
    Dealt& dealt = shared_.dealt[thread.warp];
    __syncwarp();
    const int32_t index = dealt.first;
    if (index >= dealt.end) return false;
    shared_.words[thread.warp][thread.lane] = Item::ask(p_.work, p_.rows.sequences, index);
    __syncwarp();
    if (thread.lane == 0) dealt.first = index + dealt.step;
    return true;
  }
  __device__ __forceinline__ Item next() const {
    const Thread thread;
    return Item::of(shared_.words[thread.warp][thread.lane]);
  }

  // [column tile, row tile, element]: elements 0 and 1 are rows 2 t and 2 t + 1 of column lane / 4, elements 2 and 3
  // those of the column 8 further.
  using Values = float[S::kColumnTiles][S::kRowTiles][4];

  __device__ __forceinline__ void ask_for_queries(const Item& item) {
    if (item.tiles.empty()) return;
    const Thread thread;
    constexpr int kElements = kD / 8, kAtATime = 32 * kWarps / kElements;
    const RowBlock block(p_, item);
    const int pairs = block.pairs(p_), element = thread.number % kElements;
    const auto* const queries = static_cast<const __nv_bfloat16*>(p_.q);
#pragma unroll 1  // addresses take registers, and nobody waits for them
    for (int i = 0; i < kRows; i += kAtATime) {
      const int row = i + thread.number / kElements;
      const bool there = first_pair() + row < pairs;
      const Pair pair(p_, there ? first_pair() + row : 0);
      const int64_t head = item.kv_head * int64_t(p_.group.divisor) + pair.head;
      const auto* const from =
          queries + (int64_t(block.first_row) + pair.row) * p_.q_row_stride + head * p_.q_head_stride + element * 8;
      const uint32_t to = shared_address(shared_.queries) + row * (kD * 2) + ((element ^ (row % 8)) << 4);
      if (kRows % kAtATime == 0 || row < kRows) cp_async_16(to, from, there);
    }
  }

  enum Level { kLeaf, kGroup, kTotal };

  __device__ __forceinline__ int32_t leaf_of(int32_t tile) const { return tile & -p_.leaf_tiles; }  // a power of two

  // Notes of an item, for this warp.
  __device__ __forceinline__ void begin(const Item& item) {
    const Thread thread;
    const RowBlock block(p_, item);
    __syncwarp();  // nobody reads those of the item before
    if (thread.lane == 0) {
      const Range seen_by_all = {p_.visible().of(block.start + block.count - 1).first, block.start + 1};
      shared_.notes[thread.warp] = {item, block, seen_by_all, min(block.pairs(p_) - first_pair(), kRows)};
    }
    __syncwarp();
  }

  __device__ __forceinline__ const Notes& notes(const Thread& thread) const { return shared_.notes[thread.warp]; }

  // Of those in the row block: more than kRows are left to several thread blocks.
  static __device__ __forceinline__ int first_pair() { return int(blockIdx.y) * kRows; }

  __device__ __forceinline__ Range tiles_of_item() const { return notes(Thread()).item.tiles; }

  __device__ __forceinline__ bool begins_leaf(const Thread& thread, int32_t tile) const {
    return tile == max(leaf_of(tile), notes(thread).item.tiles.first);
  }

  // A tile's weights and their sums, to shared memory, and the leaf's maxima.
  __device__ __forceinline__ void weigh(int32_t tile) {
    const Thread thread;
    float scores[S::kRowTiles][4] = {};
    const Place own = thread.warp < kWarps / 2 ? place_ : second(place_);
    wait_for(shared_.full[own.stage()], own.parity());
    score(scores, ring_ + own.stage() * S::kPieceBytes);
    release();
    release();
    mask(scores, tile);

    {
      float most[2 * S::kRowTiles];
#pragma unroll
      for (int i = 0; i < 2 * S::kRowTiles; ++i) most[i] = fmaxf(scores[i / 2][i % 2], scores[i / 2][2 + i % 2]);
      join_to(shared_.maxima, thread.warp, thread.lane, most, [](float a, float b) { return fmaxf(a, b); });
    }
    bar_sync<32 * kWarps>();
    float reference_of[S::kLaneRows];
#pragma unroll
    for (int k = 0; k < S::kLaneRows; ++k) {
      float of[kWarps];
      load_8(of, shared_.maxima[lane_row(thread, k)]);
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, of[i]);
      const float before = begins_leaf(thread, tile) ? -INFINITY : load_stats(thread, kLeaf, k).max;
      const float top = fmaxf(before, __fmul_rn(largest, p_.exponent_scale));
      shared_.tops[thread.warp][thread.lane + 32 * k] = top;
      reference_of[k] = reference(top);
    }

    float numbers[2 * S::kRowTiles];
    const int g = thread.lane / 4, t = thread.lane % 4;
    const uint32_t to = shared_address(shared_.weights) + g * (kTileKeys * 2) + (((2 * thread.warp) ^ g) << 4) + 4 * t;
#pragma unroll
    for (int rows = 0; rows < S::kRowTiles; ++rows) {
      const float base[2] = {of_row(reference_of, rows, 2 * t), of_row(reference_of, rows, 2 * t + 1)};
      uint32_t packed[2];  // keys g and g + 8
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float w[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          w[e] = exp2_approx(__fmaf_rn(scores[rows][2 * h + e], p_.exponent_scale, -base[e]));
        }
        packed[h] = pack_bf16(w[0], w[1]);
        st_shared((to ^ (h << 4)) + rows * 8 * (kTileKeys * 2), movmatrix_trans(packed[h]));
      }
      numbers[2 * rows] = __fadd_rn(__uint_as_float(packed[0] << 16), __uint_as_float(packed[1] << 16));
      numbers[2 * rows + 1] =
          __fadd_rn(__uint_as_float(packed[0] & 0xffff0000u), __uint_as_float(packed[1] & 0xffff0000u));
    }
    join_to(shared_.sums, thread.warp, thread.lane, numbers, [](float a, float b) { return __fadd_rn(a, b); });
    bar_sync<32 * kWarps>();
  }

  // This warp's 16 keys, of the piece at `keys`.
  __device__ __forceinline__ void score(float (&scores)[S::kRowTiles][4], uint32_t keys) {
    const Thread thread;
    const int line = thread.lane % 8;
    const int row = thread.warp % 4 * 16 + thread.lane % 16;
    const uint32_t key = keys + row * (kD * 2) + (((thread.lane / 16) ^ line) << 4);
    const uint32_t query = shared_address(shared_.queries) + line * (kD * 2) + (((thread.lane / 8) ^ line) << 4);
#pragma unroll(S::kUnroll)
    for (int step = 0; step < kD / 32; ++step) {
      uint32_t a[2][4];
      ldmatrix_x4(a[0], key ^ (2 * step << 5));
      ldmatrix_x4(a[1], key ^ ((2 * step + 1) << 5));
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
        uint32_t b[4];
        ldmatrix_x4(b, (query ^ (step << 6)) + tile * 8 * (kD * 2));
        mma_m16n8k16<__nv_bfloat16>(scores[tile], a[0], {b[0], b[1]});
        mma_m16n8k16<__nv_bfloat16>(scores[tile], a[1], {b[2], b[3]});
      }
    }
  }

  __device__ __forceinline__ void mask(float (&scores)[S::kRowTiles][4], int32_t at_tile) {
    const Thread thread;
    const Notes& now = notes(thread);
    const int32_t first = at_tile * kTileKeys;
    if (first >= now.seen_by_all.first && first + kTileKeys <= now.seen_by_all.end) return;
    int32_t ends[S::kLaneRows];  // of the rows' keys; 0: no such row
#pragma unroll
    for (int k = 0; k < S::kLaneRows; ++k) {
      const int row = thread.lane + 32 * k;
      ends[k] = row < now.pairs ? now.block.start + int32_t(Pair(p_, first_pair() + row).row) + 1 : 0;
    }
    const int32_t key = first + thread.warp * 16 + thread.lane / 4;
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int32_t end = of_row(ends, tile, 2 * (thread.lane % 4) + e), begin = max(p_.first_key, end - p_.window);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int32_t at = key + 8 * h;
          if (at < begin || at >= end) scores[tile][2 * h + e] = -INFINITY;
        }
      }
    }
  }

  // A tile's values times the weights, added to the leaf.
  __device__ __forceinline__ void attend(int32_t tile) {
    const Thread thread;
    const bool begins = begins_leaf(thread, tile);
    float shrink[S::kLaneRows];
    bool shrinks = false;
#pragma unroll
    for (int k = 0; k < S::kLaneRows; ++k) {
      float of[kWarps];
      load_8(of, shared_.sums[lane_row(thread, k)]);
      const Stats before = begins ? Stats{} : load_stats(thread, kLeaf, k);
      const float top = shared_.tops[thread.warp][thread.lane + 32 * k];
      shrink[k] = exp2_approx(__fadd_rn(before.max, -reference(top)));
      shrinks |= shrink[k] != 1.0f;
      store_stats(thread, kLeaf, k, {top, __fmaf_rn(before.sum, shrink[k], sum_of_blocks(of))});
    }
    if (begins) {
      for_each_value([&](int m, int rows, int i) { leaf_[m][rows][i] = 0.0f; });
    } else if (__any_sync(kAllLanes, shrinks)) {
      for_each_row([&](int rows, int offset) { return of_row(shrink, rows, offset); },
                   [&](float by, int m, int rows, int i) { leaf_[m][rows][i] = __fmul_rn(leaf_[m][rows][i], by); });
    }
    const Place after = second(place_);
    wait_for(shared_.full[place_.stage()], place_.parity());
    wait_for(shared_.full[after.stage()], after.parity());
    multiply({ring_ + place_.stage() * S::kPieceBytes, ring_ + after.stage() * S::kPieceBytes});
    release();
    release();
  }

  // By the two pieces of a tile's values.
  __device__ __forceinline__ void multiply(const uint32_t (&pieces)[2]) {
    const Thread thread;
    const int line = thread.lane % 8, element = thread.warp * (S::kColumns / 8) + thread.lane / 8 % 2;
    const uint32_t value = (line + thread.lane / 16 * 8) * (kD * 2) + ((element ^ line) << 4);
    const uint32_t weights = shared_address(shared_.weights) + line * (kTileKeys * 2);
    const uint32_t weight = weights + (((thread.lane / 8) ^ line) << 4);
#pragma unroll(S::kUnroll)
    for (int step = 0; step < kTileKeys / 32; ++step) {
      constexpr int kSteps = kPieceKeys / 32;
      const uint32_t keys = (step < kSteps ? pieces[0] : pieces[1]) + value;
      uint32_t a[2][S::kColumnTiles][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int m = 0; m < S::kColumnTiles; ++m) {
          ldmatrix_x4_trans(a[i][m], (keys ^ (m << 5)) + (2 * (step % kSteps) + i) * 16 * (kD * 2));
        }
      }
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
        uint32_t b[4];
        ldmatrix_x4(b, (weight ^ (step << 6)) + tile * 8 * (kTileKeys * 2));
#pragma unroll
        for (int m = 0; m < S::kColumnTiles; ++m) {
          mma_m16n8k16<__nv_bfloat16>(leaf_[m][tile], a[0][m], {b[0], b[1]});
          mma_m16n8k16<__nv_bfloat16>(leaf_[m][tile], a[1][m], {b[2], b[3]});
        }
      }
    }
  }

  // Behind a tile: a leaf that ends into its group, a group into the total. Behind the item's last tile the leaf's
  // place holds the item's result: a level with one part is that part.
  __device__ __forceinline__ void fold(Range tiles, int32_t tile) {
    const int32_t leaf_first = leaf_of(tile), group_first = tile & -kGroupTiles;
    const bool last = tile + 1 == tiles.end;
    if (!last && tile + 1 < leaf_first + p_.leaf_tiles) return;
    if (max(group_first, tiles.first) < leaf_first) fold_leaf_into(kGroup);
    if (!last && tile + 1 < group_first + kGroupTiles) {
      save_leaf(kGroup);
      return;
    }
    if (tiles.first < group_first) fold_leaf_into(kTotal);
    if (!last) save_leaf(kTotal);
  }

  // The level's accumulator and then the leaf, to the leaf's place.
  __device__ __forceinline__ void fold_leaf_into(Level level) {
    const Thread thread;
    float before[S::kLaneRows], part[S::kLaneRows];
#pragma unroll
    for (int k = 0; k < S::kLaneRows; ++k) {
      Stats stats = load_stats(thread, level, k);
      const Factors factors = stats.fold(load_stats(thread, kLeaf, k));
      before[k] = factors.before, part[k] = factors.part;
      store_stats(thread, kLeaf, k, stats);
    }
    const float* const from = saved_at(thread, level);
    for_each_row(
        [&](int tile, int offset) { return Factors{of_row(before, tile, offset), of_row(part, tile, offset)}; },
        [&](const Factors& factors, int m, int tile, int i) {
          float saved = 0.0f;
          if constexpr (S::kSmall) {
            saved = saved_[level - kGroup][m][tile][i];
          } else if (has_row(thread, tile, i)) {
            saved = from[offset_of(m, tile, i)];
          }
          leaf_[m][tile][i] = factors.apply(saved, leaf_[m][tile][i]);
        });
  }

  __device__ __forceinline__ void save_leaf(Level level) {
    const Thread thread;
#pragma unroll
    for (int k = 0; k < S::kLaneRows; ++k) {
      store_stats(thread, level, k, load_stats(thread, kLeaf, k));
    }
    float* const to = saved_at(thread, level);
    for_each_value([&](int m, int tile, int i) {
      if constexpr (S::kSmall) {
        saved_[level - kGroup][m][tile][i] = leaf_[m][tile][i];
      } else if (has_row(thread, tile, i)) {
        to[offset_of(m, tile, i)] = leaf_[m][tile][i];
      }
    });
  }

  // The item's result: a piece, or the rows' output.
  __device__ __forceinline__ void emit() {
    const Thread thread;
    const Notes& now = notes(thread);
    const int32_t pairs = now.pairs, first_row = now.block.first_row;
    const bool whole = now.item.piece < 0;
    const int64_t piece = int64_t(now.item.piece) * p_.block_rows;
    float* const partials = p_.partials + piece * kD;
    float sums[S::kLaneRows];
#pragma unroll
    for (int k = 0; k < S::kLaneRows; ++k) {
      const int row = thread.lane + 32 * k;
      const Stats stats = load_stats(thread, kLeaf, k);
      sums[k] = stats.sum;
      if (!whole && thread.warp == 0 && row < ceil_div(pairs, 8) * 8) {
        reinterpret_cast<float2*>(p_.stats)[piece + first_pair() + row] = make_float2(stats.max, stats.sum);
      }
    }
    const int eight = first_pair() / 8, sixteen = thread.warp * S::kColumnTiles;
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
      const int offset = 2 * (thread.lane % 4);
      const Divisor by[2] = {Divisor(of_row(sums, tile, offset)), Divisor(of_row(sums, tile, offset + 1))};
      if (8 * tile >= pairs) continue;
      const Finisher rows(p_, first_row, first_pair() + pairs, now.item.kv_head, eight + tile);
#pragma unroll
      for (int m = 0; m < S::kColumnTiles; ++m) {
        const float* const x = leaf_[m][tile];
        const float4 fragment = make_float4(x[0], x[1], x[2], x[3]);
        if (whole) {
          rows.write(sixteen + m, fragment, rows.gates(sixteen + m), by);
        } else {
          *fragment_at<kD>(partials, eight + tile, sixteen + m, thread.lane) = fragment;
        }
      }
    }
  }

  // This warp is done with the piece.
  __device__ __forceinline__ void release() {
    const Thread thread;
    __syncwarp();
    if (kWarpArrivals == 32 || thread.lane == 0) arrive(shared_.free[place_.stage()]);
    place_.move_on(stages_);
  }

  __device__ __forceinline__ Place second(Place place) const {
    place.move_on(stages_);
    return place;
  }

  // Lanes behind the last row repeat it.
  static __device__ __forceinline__ int lane_row(const Thread& thread, int k) {
    return min(thread.lane + 32 * k, kRows - 1);
  }

  // A lane reads what it wrote.
  __device__ __forceinline__ Stats load_stats(const Thread& thread, Level level, int k) const {
    return shared_.stats[level][thread.warp][thread.lane + 32 * k];
  }
  __device__ __forceinline__ void store_stats(const Thread& thread, Level level, int k, const Stats& stats) {
    shared_.stats[level][thread.warp][thread.lane + 32 * k] = stats;
  }

  template <typename Function>
  __device__ __forceinline__ void for_each_value(Function function) {
#pragma unroll
    for (int m = 0; m < S::kColumnTiles; ++m) {
#pragma unroll
      for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) function(m, tile, i);
      }
    }
  }
  // With what `of` has for the value's row.
  template <typename Of, typename Function>
  __device__ __forceinline__ void for_each_row(Of of, Function function) {
    const Thread thread;
#pragma unroll
    for (int tile = 0; tile < S::kRowTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto number = of(tile, 2 * (thread.lane % 4) + e);
#pragma unroll
        for (int m = 0; m < S::kColumnTiles; ++m) {
          function(number, m, tile, e);
          function(number, m, tile, 2 + e);
        }
      }
    }
  }

  // Where a block keeps a level that has no room in registers. A thread reads what it wrote.
  __device__ __forceinline__ float* saved_at(const Thread& thread, Level level) const {
    const int64_t row = (int64_t(blockIdx.x) * 2 + level - kGroup) * p_.block_rows + first_pair() + 2 * (thread.lane % 4);
    return p_.scratch + row * kD + thread.warp * S::kColumns + thread.lane / 4;
  }
  __device__ __forceinline__ bool has_row(const Thread& thread, int tile, int i) const {
    return 8 * tile + 2 * (thread.lane % 4) + i % 2 < notes(thread).pairs;
  }
  static __device__ __forceinline__ int offset_of(int m, int tile, int i) {
    return (8 * tile + i % 2) * kD + 16 * m + i / 2 * 8;
  }

  const Params& p_;
  Shared<kD, kRows>& shared_;
  const uint32_t ring_;
  const int stages_;
  Place place_;

  Values leaf_;
  Values saved_[2];  // group and total, of kSmall
};

}  // namespace lockstep::attn
