// The two warpgroups that do the arithmetic, a tile of 128 keys at a time.
//
// For the scores each has 64 of the keys and all rows; for the outputs each has half of head_dim and all keys. Between
// them go the maxima and the rounded weights, through shared memory. The next tile's scores come from the tensor cores
// while this one's are weighed.
#pragma once

#include "finish.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/wgmma.cuh"
#include "shared.cuh"

namespace lockstep::attn::sm90 {

template <int kD, int kN>
struct Consumer {
  using S = Shared<kD, kN>;
  using At = Cursor<S::kStages>;
  static constexpr int kParts = S::kColumns / 2;  // of 64 elements of head_dim: a warpgroup's
  static constexpr int kEights = kN / 8;          // of rows
  static constexpr int kOwn = 2 * kEights;        // rows of which a thread has scores and outputs
  static constexpr int kScores = kN / 2;          // of a thread: two keys for each of its rows
  // Registers hold the next tile's scores beside this one's.
  static constexpr bool kOverlaps = kN < 64;
  using Scores = float[kScores];
  using Outputs = float[kParts][kScores];

  const Params& p;
  S& shared;
  const int thread, group, warp;  // of the warpgroup; of two; of its four
  const int lane, g, t;           // an accumulator's: see wgmma.cuh
  At at;
  int parity = 0, turn = 0;  // of the tile's sums and maxima
  bool fresh;                // the leaf has no tile yet
  float top[kOwn];           // the leaf's maxima
  Stats leaf, whole, total;  // of the row with this thread's number: a leaf, its group, the item

  __device__ __forceinline__ Consumer(const Params& p, S& shared)
      : p(p),
        shared(shared),
        thread(threadIdx.x % kWarpgroup),
        group(threadIdx.x / kWarpgroup - 1),
        warp(thread / 32),
        lane(threadIdx.x % 32),
        g(lane / 4),
        t(lane % 4) {}

  template <int kCount>
  static __device__ __forceinline__ void barrier(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kCount) : "memory");
  }
  __device__ __forceinline__ void both() const { barrier<kConsumers>(1); }
  __device__ __forceinline__ void own() const { barrier<kWarpgroup>(2 + group); }
  __device__ __forceinline__ void release(At at) const { if (thread == 0) shared.empty[at.stage].arrive(); }
  // The row of this thread's own number `i`, and where its accumulators lie: two keys or elements, g and g + 8.
  __device__ __forceinline__ int row_of(int i) const { return i / 2 * 8 + 2 * t + i % 2; }
  static __host__ __device__ constexpr int place(int i, int half) { return i / 2 * 4 + 2 * half + i % 2; }

  static __device__ __forceinline__ void clear(Outputs& o) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) o[part][i] = 0.0f;
    }
  }
  __device__ __forceinline__ void begin_leaf(Outputs& o) {
    clear(o);
    leaf = Stats{};
    fresh = true;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) top[i] = -INFINITY;
  }

  __device__ __forceinline__ void load_queries(const RowBlock& block, int32_t kv_head) const {
    constexpr int kVectors = kD / kVectorBf16, kLoads = ceil_div(kN * kVectors, kConsumers);
    const int first = threadIdx.x - kWarpgroup, vector = first % kVectors;
    const int pairs = block.pairs(p);
    uint4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int number = (first + i * kConsumers) / kVectors;
      x[i] = {};  // behind the last pair: finite
      if (number < pairs) {
        const Pair pair(p, number);
        const int64_t row = block.first_row + pair.row, head = kv_head * int32_t(p.group.divisor) + pair.head;
        x[i] = load_global(static_cast<const __nv_bfloat16*>(p.q) + row * p.q_row_stride + head * p.q_head_stride +
                           vector * kVectorBf16);
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int number = (first + i * kConsumers) / kVectors;
      uint8_t* const to = shared.queries[vector / 8] + number * kRowBytes + ((vector ^ number) % 8) * kVectorBytes;
      if (number < kN) *reinterpret_cast<uint4*>(to) = x[i];
    }
    if (first < kN) shared.positions[first] = first < pairs ? block.start + int32_t(Pair(p, first).row) : -1;
    fence_before_bulk();
    both();
  }

  __device__ __forceinline__ void wait_for(At piece) const { shared.full[piece.stage].wait(piece.parity); }

  // Begins the scores of this warpgroup's 64 keys, of the two pieces at `tile`, once they are there.
  __device__ __forceinline__ void begin_scores(Scores& s, At tile) const {
    const At keys = tile.after(group);
    wait_for(keys);
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = 0.0f;
    wgmma_pin(s);
    wgmma_fence();
    const WgmmaSwizzled a(shared.ring[keys.stage]), b(shared.queries);
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      const int column = step / 4, bytes = step % 4 * 32;
      wgmma_m64k16<__nv_bfloat16, kN>(s, a.at(column * kColumnBytes + bytes),
                                      b.at(column * (kN * kRowBytes) + bytes));
    }
    wgmma_commit_group();
  }
  __device__ __forceinline__ void end_scores(Scores& s, At tile) const {
    wgmma_wait_group<0>();
    wgmma_pin(s);
    release(tile), release(tile.after(1));
  }

  __device__ __forceinline__ void mask(Scores& s, int tile) const {
    const int key = tile * kTileKeys + group * kPieceKeys + warp * 16 + g;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const Range seen = p.visible().of(shared.positions[row_of(i)]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (key + 8 * half < seen.first || key + 8 * half >= seen.end) s[place(i, half)] = -INFINITY;
      }
    }
  }

  // Reduces x of each own row over the warp's keys. While the count is even, lanes trade halves of the rows instead of
  // repeating each other. Then to(row, result).
  template <int kDistance = 4, int kCount, typename Op, typename To>
  __device__ __forceinline__ void over_keys(const float (&x)[kCount], int first, Op op, To to) const {
    if constexpr (kDistance == 32) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to(row_of(first + i), x[i]);
    } else if constexpr (kCount % 2 == 0) {
      const bool upper = lane & kDistance;
      float half[kCount / 2];
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        const float keep = upper ? x[kCount / 2 + i] : x[i], give = upper ? x[i] : x[kCount / 2 + i];
        half[i] = op(keep, __shfl_xor_sync(0xffffffffu, give, kDistance));
      }
      over_keys<kDistance * 2>(half, first + (upper ? kCount / 2 : 0), op, to);
    } else {
      float all[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) all[i] = op(x[i], __shfl_xor_sync(0xffffffffu, x[i], kDistance));
      over_keys<kDistance * 2>(all, first, op, to);
    }
  }

  __device__ __forceinline__ void store_maxima(const Scores& s) const {
    float most[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) most[i] = fmaxf(s[place(i, 0)], s[place(i, 1)]);
    const auto max = [](float a, float b) { return fmaxf(a, b); };
    over_keys(most, 0, max, [&](int row, float x) {
      // A row with nothing but NaN has no maximum.
      const int32_t bits = ordered(__float_as_int(fmaxf(x, -INFINITY)));
      asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(shared_address(&shared.top[turn][row])), "r"(bits) : "memory");
    });
  }
  // A tile's maximum as an exponent of two.
  __device__ __forceinline__ float exponent(int32_t top) const {
    return __fmul_rn(__int_as_float(ordered(top)), p.exponent_scale);
  }

  // Takes the tile's maxima into the leaf's; what was added up relative to smaller ones shrinks.
  __device__ __forceinline__ void raise(Outputs& o, int of) {
    const auto tops_of = [&](int i) { return const_cast<const volatile int32_t*>(&shared.top[of][row_of(i)]); };
    bool grows = false;
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      const int2 pair = *reinterpret_cast<const int2*>(&shared.top[of][row_of(i)]);
      grows |= exponent(pair.x) > top[i] || exponent(pair.y) > top[i + 1];
    }
    if (!__any_sync(0xffffffffu, grows)) return;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      // Read again: it is rare, and registers are not to be had.
      const float now = fmaxf(top[i], exponent(*tops_of(i)));
      const float shrink = exp2_approx(__fadd_rn(top[i], -reference(now)));
      top[i] = now;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = o[part][place(i, half)];
          x = __fmul_rn(x, shrink);
        }
      }
    }
  }

  // Rounded weights into shared memory; sum: that of an own row's two keys.
  __device__ __forceinline__ void weigh(const Scores& s, float (&sum)[kOwn]) const {
    uint32_t packed[kEights][2];  // two rows each, of keys g and g + 8
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float w[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float score = s[place(2 * j + i, half)];
          w[i] = exp2_approx(__fmaf_rn(score, p.exponent_scale, -reference(top[2 * j + i])));
        }
        packed[j][half] = pack_bf16(w[0], w[1]);
      }
      sum[2 * j] = __fadd_rn(__uint_as_float(packed[j][0] << 16), __uint_as_float(packed[j][1] << 16));
      sum[2 * j + 1] =
          __fadd_rn(__uint_as_float(packed[j][0] & 0xffff0000u), __uint_as_float(packed[j][1] & 0xffff0000u));
    }
    // Matrices of 8 keys by 8 rows, transposed: lane l has the address of row l % 8 of matrix l / 8.
    const int row = lane % 8, matrix = lane / 8;
    const uint32_t to = shared_address(shared.weights[group]) + row * kRowBytes + ((2 * warp + matrix % 2) ^ row) * 16;
#pragma unroll
    for (int j = 0; j + 1 < kEights; j += 2) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       to + (j + matrix / 2) * (8 * kRowBytes)),
                   "r"(packed[j][0]), "r"(packed[j][1]), "r"(packed[j + 1][0]), "r"(packed[j + 1][1])
                   : "memory");
    }
    if constexpr (kEights % 2 == 1) {
      constexpr int j = kEights - 1;
      asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to + j * (8 * kRowBytes)),
                   "r"(packed[j][0]), "r"(packed[j][1])
                   : "memory");
    }
  }

  __device__ __forceinline__ void store_sums(const float (&sum)[kOwn]) const {
    const auto add = [](float a, float b) { return __fadd_rn(a, b); };
    over_keys(sum, 0, add, [&](int row, float x) { shared.sums[parity][row][4 * group + warp] = x; });
  }
  // The numbered row's: takes in a tile whose maxima and sums all warps have stored.
  __device__ __forceinline__ void add_tile(int of, int sums_of) {
    float blocks[8];
    memcpy(blocks, __builtin_assume_aligned(shared.sums[sums_of][thread], 16), sizeof blocks);
    const float now = fmaxf(leaf.max, exponent(shared.top[of][thread]));
    const float shrink = exp2_approx(__fadd_rn(leaf.max, -reference(now)));
    leaf = {now, __fmaf_rn(leaf.sum, shrink, sum_of_blocks(blocks))};
  }

  // Zeros for values that nobody sees: there may be NaN, which a weight of zero does not silence.
  __device__ __forceinline__ void clear_values(Range seen, int first_key, At piece) const {
    constexpr int kVectors = kParts * (kRowBytes / kVectorBytes);
    for (int i = thread; i < kPieceKeys * kVectors; i += kWarpgroup) {
      const int row = i / kVectors, vector = i % kVectors, key = first_key + row;
      if (key >= seen.first && key < seen.end) continue;
      uint8_t* const to = shared.ring[piece.stage][group * kParts + vector / 8] + row * kRowBytes;
      *reinterpret_cast<uint4*>(to + vector % 8 * kVectorBytes) = uint4{};
    }
  }

  // Begins the outputs' part of a tile: its weights times its values, added to what is there.
  __device__ __forceinline__ void begin_outputs(Outputs& o, At first, At second) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma_pin(o[part]);
    wgmma_fence();
    const int own = group * kParts;
    const WgmmaSwizzled a[2] = {WgmmaSwizzled(shared.ring[first.stage][own]),
                                WgmmaSwizzled(shared.ring[second.stage][own])};
    const WgmmaSwizzled b(shared.weights);
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      const int half = step / 4;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        wgmma_m64k16<__nv_bfloat16, kN, true>(o[part], a[half].at(part * kColumnBytes + step % 4 * (16 * kRowBytes)),
                                              b.at(half * (kN * kRowBytes) + step % 4 * 32));
      }
    }
    wgmma_commit_group();
  }

  // One tile, from its scores to its outputs. kMore: another one follows, whose scores `next` gets.
  template <bool kMore>
  __device__ __forceinline__ void step(Scores& s, Scores& next, Outputs& o, Range seen, int tile, bool masked) {
    const int first_key = tile * kTileKeys, of = turn;
    const auto before = [](int turn) { return turn == 0 ? 2 : turn - 1; };
    if (masked) mask(s, tile);
    store_maxima(s);
    both();
    turn = turn == 2 ? 0 : turn + 1;
    if (thread < kN) {
      if (!fresh) add_tile(before(of), parity ^ 1);
      if (group == 0) shared.top[turn][thread] = kNoScore;
    }
    fresh = false;
    if constexpr (kMore && kOverlaps) begin_scores(next, at);
    raise(o, of);
    float sum[kOwn];
    weigh(s, sum);
    if constexpr (!kOverlaps) store_sums(sum);
    fence_before_bulk();
    if constexpr (kMore) {
      if constexpr (!kOverlaps) begin_scores(s, at);
      end_scores(kOverlaps ? next : s, at);
      at.advance(2);
    }
    both();
    const At first = at, second = at.after(1);
    at.advance(2);
    wait_for(first);
    wait_for(second);
    if (first_key < seen.first || first_key + kTileKeys > seen.end) {
      clear_values(seen, first_key, first);
      clear_values(seen, first_key + kPieceKeys, second);
      fence_before_bulk();
      own();
    }
    begin_outputs(o, first, second);
    if constexpr (kOverlaps) store_sums(sum);
    wgmma_wait_group<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma_pin(o[part]);
    release(first), release(second);
    parity ^= 1;
  }

  static __device__ __forceinline__ float4 fragment_of(const float* x) { return make_float4(x[0], x[1], x[2], x[3]); }
  static __device__ __forceinline__ void set(float* x, const float4& to) {
    x[0] = to.x, x[1] = to.y, x[2] = to.z, x[3] = to.w;
  }
  // By the factors of the eight's rows, which are in shared memory.
  __device__ __forceinline__ float4 folded(int eight, const float4& before, const float4& part) const {
    const float4 f = *reinterpret_cast<const float4*>(&shared.factors[group][8 * eight + 2 * t]);
    return attn::folded(before, part, {{f.x, f.y}, {f.z, f.w}});
  }

  // A leaf is complete: its last tile's sums, then all of it into the group.
  __device__ __forceinline__ void end_leaf(Outputs& into, Outputs& o) {
    both();
    if (thread < kN) {
      add_tile(turn == 0 ? 2 : turn - 1, parity ^ 1);
      const Factors f = whole.fold(leaf);
      shared.factors[group][thread] = make_float2(f.before, f.part);
    }
    own();
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float* const before = &into[part][4 * j];
        set(before, folded(j, fragment_of(before), fragment_of(&o[part][4 * j])));
      }
    }
    own();
  }

  // Where a thread's fragments of a level lie between two steps: nobody else reads them.
  __device__ __forceinline__ float* waiting() const { return p.scratch + int64_t(blockIdx.x) * p.block_rows * kD; }
  __device__ __forceinline__ int sixteen(int part) const { return (group * kParts + part) * 4 + warp; }
  __device__ __forceinline__ float4* fragment(float* of, int eight, int part) const {
    return fragment_at<kD>(of, eight, sixteen(part), lane);
  }

  // A group is complete: into the item's result, which waits in memory for the last one.
  __device__ __forceinline__ void end_group(Outputs& o, bool first, bool last) {
    if (first && last) return;
    const int eights = p.block_rows / 8;
    if (first) {
      total = whole;
    } else if (thread < kN) {
      const Factors f = total.fold(whole);
      shared.factors[group][thread] = make_float2(f.before, f.part);
    }
    own();
    // Loads of some eights do not wait for each other.
    constexpr int kChunk = kEights < 3 ? kEights : kOverlaps ? 3 : 2;
#pragma unroll
    for (int begin = 0; begin < kEights; begin += kChunk) {
      if (begin >= eights) break;
      float4 before[kChunk][kParts];
#pragma unroll
      for (int j = begin; j < min(begin + kChunk, kEights); ++j) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          if (!first && j < eights) before[j - begin][part] = *fragment(waiting(), j, part);
        }
      }
#pragma unroll
      for (int j = begin; j < min(begin + kChunk, kEights); ++j) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          float* const x = &o[part][4 * j];
          if (!first) set(x, folded(j, before[j - begin][part], fragment_of(x)));
          if (!last && j < eights) *fragment(waiting(), j, part) = fragment_of(x);
        }
      }
    }
    if (last) whole = total;
    own();
  }

  // The item's result: a piece for the merge, or finished rows. Those go by way of memory: accumulators can't be indexed
  // in a loop, and the code of every step would be fetched anew.
  __device__ __forceinline__ void store(const Outputs& o, const Item& item, const RowBlock& block) const {
    const int pairs = block.pairs(p), eights = ceil_div(pairs, 8);
    float* const to = item.piece >= 0 ? p.partials + int64_t(item.piece) * p.block_rows * kD : waiting();
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      if (j >= eights) break;
#pragma unroll
      for (int part = 0; part < kParts; ++part) *fragment(to, j, part) = fragment_of(&o[part][4 * j]);
    }
    if (item.piece >= 0) {
      auto* const stats = reinterpret_cast<float2*>(p.stats) + int64_t(item.piece) * p.block_rows;
      if (group == 0 && thread < 8 * eights) stats[thread] = make_float2(whole.max, whole.sum);
      return;
    }
    if (thread < kN) shared.factors[group][thread].x = whole.sum;
    own();
    // The next eight rows are on their way while these are written, and what gates them.
    Finisher rows(p, block.first_row, pairs, item.kv_head, 0);
    float4 next[kParts];
    uint2 gates[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) next[part] = *fragment(to, 0, part), gates[part] = rows.gates(sixteen(part));
#pragma unroll 1
    for (int j = 0; j < eights; ++j) {
      const Divisor by[2] = {Divisor(shared.factors[group][8 * j + 2 * t].x),
                             Divisor(shared.factors[group][8 * j + 2 * t + 1].x)};
      const Finisher later(p, block.first_row, pairs, item.kv_head, j + 1);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const float4 x = next[part];
        const uint2 gate = gates[part];
        if (j + 1 < eights) next[part] = *fragment(to, j + 1, part), gates[part] = later.gates(sixteen(part));
        rows.write(sixteen(part), x, gate, by);
      }
      rows = later;
    }
  }

  __device__ __forceinline__ void attend(const Item& item, const RowBlock& block) {
    const Range seen = p.visible().of(block.start, block.count);
    // Whether some row may not see all keys: a row sees what the one before it sees, moved by a key at most.
    const auto masked = [&](int tile) {
      return tile * kTileKeys < seen.first + block.count - 1 || (tile + 1) * kTileKeys > seen.end - block.count + 1;
    };
    Scores s, next;
    Outputs o, into;
    begin_scores(s, at);
    end_scores(s, at);
    at.advance(2);
    begin_leaf(o);
    clear(into);
    whole = Stats{};
    bool first_group = true;
    for (int tile = item.tiles.first; tile < item.tiles.end; ++tile) {
      const bool more = tile + 1 < item.tiles.end;
      if (more) {
        step<true>(s, next, o, seen, tile, masked(tile));
#pragma unroll
        for (int i = 0; i < kScores; ++i) s[i] = kOverlaps ? next[i] : s[i];
      } else {
        step<false>(s, next, o, seen, tile, masked(tile));
      }
      if (more && (tile + 1) % p.leaf_tiles != 0) continue;
      end_leaf(into, o);
      if (!more || (tile + 1) % kGroupTiles == 0) {
        end_group(into, first_group, !more);
        if (!more) break;
        clear(into);
        whole = Stats{};
        first_group = false;
      }
      begin_leaf(o);
    }
    store(into, item, block);
  }

  __device__ __forceinline__ void run() {
    const Dealt dealt(p.work, blockIdx.x, gridDim.x);
    for (int32_t index = dealt.first; index < dealt.end; index += dealt.step) {
      const Item item = Item::of(Item::ask(p.work, p.rows.sequences, index));
      if (item.tiles.empty()) {
        zero_rows<kD>(p, item, threadIdx.x - kWarpgroup, kConsumers);
        continue;
      }
      const RowBlock block(p, item);
      load_queries(block, item.kv_head);
      attend(item, block);
    }
  }
};

}  // namespace lockstep::attn::sm90
