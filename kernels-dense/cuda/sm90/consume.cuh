// The warpgroups that multiply, each with 64 features and all columns, and what becomes of their sums.
#pragma once

#include "deal.cuh"
#include "lockstep/flags.cuh"
#include "lockstep/wgmma.cuh"
#include "shared.cuh"

namespace lockstep::dense::sm90 {

template <int kN, int kGroups, Kind kKind>
struct Consumer {
  using S = Shared<kN, kGroups, kKind>;
  using Sums = float[kN / 2];  // see wgmma.cuh
  static constexpr int kEights = kN / 8;
  static constexpr int kFloats = S::kConsumers * kN / 2;  // of a tile

  const Layer& layer;
  S& shared;
  const Deal& deal;
  const int group, warp;  // of kGroups; of the group's four
  const Pairs pairs;
  Cursor<S::kStages> at;
  Best best[kKind == Kind::Head ? kEights : 1];  // of the columns that this thread stores

  __device__ __forceinline__ Consumer(const Layer& layer, S& shared, const Deal& deal)
      : layer(layer),
        shared(shared),
        deal(deal),
        group(threadIdx.x / kWarpgroup),
        warp(threadIdx.x % kWarpgroup / 32),
        pairs(threadIdx.x % 32) {
    for (Best& own : best) own = nobody();
  }

  static __device__ __forceinline__ void together() { asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers) : "memory"); }

  // A step's products are done before the next one's begin: memory leaves the tensor cores that much time, and sums that
  // stay in flight around a loop would make the compiler wait for every single product.
  __device__ __forceinline__ void multiply(Sums& d, int32_t steps) {
#pragma unroll 1
    for (int32_t step = 0; step < steps; ++step) {
      shared.full[at.stage].wait(at.parity);
      const WgmmaSwizzled a(shared.weights[at.stage] + group * kTileBytes), b(shared.rows[at.stage]);
      wgmma_pin(d);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStep / 16; ++k) wgmma_m64k16<__nv_bfloat16, kN>(d, a.at(32 * k), b.at(32 * k));
      wgmma_commit_group();
      wgmma_wait_group<0>();
      wgmma_pin(d);
      release(at.stage);
      at.advance();
    }
  }
  __device__ __forceinline__ void release(int stage) {
    if (pairs.lane == 0) shared.empty[stage].arrive();
  }

  // Accumulators in memory, for whoever has the same thread number. Written and read past the L1 cache.
  __device__ __forceinline__ float4* place(int64_t index) const {
    return reinterpret_cast<float4*>(layer.scratch + index * kFloats) + threadIdx.x;
  }
  __device__ __forceinline__ void write(float4* to, const Sums& d) const {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      __stcg(to + i * S::kConsumers, make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
    }
  }
  __device__ __forceinline__ void read(const float4* from, Sums& d) const {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float4 four = __ldcg(from + i * S::kConsumers);
      d[4 * i] = four.x, d[4 * i + 1] = four.y, d[4 * i + 2] = four.z, d[4 * i + 3] = four.w;
    }
  }

  // The unit's other owner, the next block, goes on from here.
  __device__ __forceinline__ void hand_on(const Sums& d) const {
    write(place(blockIdx.x), d);
    together();
    if (threadIdx.x == 0) store_release(layer.flags + blockIdx.x, 1);
  }
  // Blocks start in order and this is what that one does first, so that it is never waited for in vain.
  __device__ __forceinline__ void take_over(Sums& d) const {
    uint32_t* const flag = layer.flags + blockIdx.x - 1;
    if (threadIdx.x == 0) {
      while (load_acquire(flag) == 0) {}
      *flag = 0;
    }
    together();
    read(place(int64_t(blockIdx.x) - 1), d);
  }

  // Counts this block's arrival; true in the last of `expected`, which sees what all have written.
  __device__ __forceinline__ bool arrives_last(uint32_t* counter, uint32_t expected) {
    together();
    if (threadIdx.x == 0) {
      const bool last = add_acquire_release(counter, 1) == expected - 1;
      if (last) *counter = 0;
      shared.last = last;
    }
    together();
    return shared.last;
  }

  // Adds the segments of a tile, ascending. False where another block will.
  __device__ __forceinline__ bool add_segments(const Item& item, Sums& d) {
    write(place(gridDim.x + int64_t(item.unit)), d);
    if (!arrives_last(layer.flags + LS_DENSE_MAX_BLOCKS + 1 + item.tile, layer.segments)) return false;
    const float4* const from = place(gridDim.x + int64_t(item.tile) * layer.segments);
    read(from, d);
#pragma unroll(kN <= 16 ? 8 : kN <= 32 ? 4 : kN <= 64 ? 2 : 1)
    for (int segment = 1; segment < layer.segments; ++segment) {
      Sums other;
      read(from + int64_t(segment) * (kFloats / 4), other);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) d[i] = __fadd_rn(d[i], other[i]);
    }
    return true;
  }

  // Calls `body(number, eight, feature among the tile's, column, sums)` for each two neighbouring features.
  template <typename Body>
  __device__ __forceinline__ void for_pairs(const Sums& d, Body body) const {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 sums = pairs.trade(d[4 * eight + 2 * half], d[4 * eight + 2 * half + 1]);
        body(2 * eight + half, eight, 16 * warp + 8 * half + pairs.feature(), 8 * eight + pairs.column(), sums);
      }
    }
  }

  __device__ __forceinline__ void finish(const Item& item, const Sums& d) {
    if constexpr (kKind == Kind::Gated) {
      const int first = item.tile * kTileFeatures;
      if (group == 1) {
        for_pairs(d, [&](int number, int, int, int, float2 up) {
          shared.trade[number * kWarpgroup + threadIdx.x % kWarpgroup] = pack_bf16(up.x, up.y);
        });
      }
      together();
      if (group == 0) {
        for_pairs(d, [&](int number, int, int feature, int column, float2 gate) {
          const uint32_t up = shared.trade[number * kWarpgroup + threadIdx.x];
          if (first + feature >= layer.n || column >= layer.rows) return;
          store_gated(layer, first + feature, column, pack_bf16(gate.x, gate.y), up);
        });
      }
      together();
    } else {
      const int first = (item.tile * kGroups + group) * kTileFeatures;
      for_pairs(d, [&](int, int eight, int feature, int column, float2 sums) {
        if (first + feature >= layer.n || column >= layer.rows) return;
        if constexpr (kKind == Kind::Head) {
          store_logits(layer, first + feature, column, sums, best[eight]);
        } else {
          store_sums(layer, first + feature, column, pack_bf16(sums.x, sums.y));
        }
      });
    }
  }

  // The best of a column: of this block, then, in the last one that arrives, of all.
  __device__ __forceinline__ void choose() {
    if (layer.argmax == nullptr) return;
    Best* const of_warps = reinterpret_cast<Best*>(shared.trade);  // [warp, column]
    constexpr int kWarps = 4 * kGroups;
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      // Of the lanes with the same column, t and the parity of g are the same.
      improve_across<8, 16>(best[eight]);
      if (pairs.lane < 8) of_warps[(threadIdx.x / 32) * kN + 8 * eight + pairs.column()] = best[eight];
    }
    together();
    const int64_t tiles = gridDim.x + (layer.segments > 1 ? int64_t(deal.units) : 0);
    Best* const of_blocks = reinterpret_cast<Best*>(layer.scratch + tiles * kFloats);  // [block, column]
    if (threadIdx.x < kN) {
      Best own = of_warps[threadIdx.x];
      for (int i = 1; i < kWarps; ++i) {
        const Best other = of_warps[i * kN + threadIdx.x];
        improve(own, other.value, other.id);
      }
      __stcg(reinterpret_cast<float2*>(of_blocks + int64_t(blockIdx.x) * kN + threadIdx.x),
             make_float2(own.value, __int_as_float(own.id)));
    }
    if (!arrives_last(layer.flags + LS_DENSE_MAX_BLOCKS, gridDim.x)) return;
    for (int column = threadIdx.x / 32; column < layer.rows; column += kWarps) {
      Best all = nobody();
      for (int block = pairs.lane; block < gridDim.x; block += 32) {
        const float2 other = __ldcg(reinterpret_cast<const float2*>(of_blocks + int64_t(block) * kN + column));
        improve(all, other.x, __float_as_int(other.y));
      }
      improve_across<1, 16>(all);
      if (pairs.lane == 0) layer.argmax[column] = id_of(all);
    }
  }

  __device__ __forceinline__ void run() {
    const Share share(deal);
#pragma unroll 1
    for (int32_t index = 0; index < share.count; ++index) {
      const Item item = share.item(index);
      Sums d;
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) d[i] = 0.0f;
      if (item.continues) take_over(d);
      multiply(d, item.end - item.first);
      if (item.hands_on) {
        hand_on(d);
      } else if (layer.segments == 1 || add_segments(item, d)) {
        finish(item, d);
      }
    }
    if constexpr (kKind == Kind::Head) choose();
  }
};

}  // namespace lockstep::dense::sm90
