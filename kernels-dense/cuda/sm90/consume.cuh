// The warpgroups that multiply, each with 64 features and all columns, and what becomes of their sums.
#pragma once

#include "deal.cuh"
#include "lockstep/cluster.cuh"
#include "lockstep/flags.cuh"
#include "lockstep/wgmma.cuh"
#include "shared.cuh"

namespace lockstep::dense::sm90 {

template <int kN, int kGroups, Kind kKind, int kResident>
struct Consumer {
  using S = Shared<kN, kGroups, kKind, kResident>;
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

  static __device__ __forceinline__ void together() {
    asm volatile("bar.sync 1, %0;" ::"n"(S::kConsumers) : "memory");
  }

  // A step's products are done before the next one's begin: memory leaves the tensor cores that much time, and sums that
  // stay in flight around a loop would make the compiler wait for every single product.
  __device__ __forceinline__ void multiply(Sums& d, int32_t steps) {
#pragma unroll 1
    for (int32_t step = 0; step < steps; ++step) {
      shared.rows_there[at.stage].wait(at.parity);
      shared.weights_there[at.stage].wait(at.parity);
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
    if (pairs.lane == 0) shared.weights_free[stage].arrive();
    if constexpr (S::kTeams) {
      if (deal.team > 1 && pairs.lane < deal.team) shared.rows_free[stage].arrive_at(pairs.lane);
    }
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
    write(place(S::block()), d);
    together();
    if (threadIdx.x == 0) store_release(layer.flags + S::block(), 1);
  }
  // Blocks start in order and this is what that one does first, so that it is never waited for in vain.
  __device__ __forceinline__ void take_over(Sums& d) const {
    const int32_t from = S::block() - deal.team;
    uint32_t* const flag = layer.flags + from;
    if (threadIdx.x == 0) {
      while (load_acquire(flag) == 0) {}
      *flag = 0;
    }
    together();
    read(place(from), d);
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
    const int32_t tile = S::group() * deal.tiles + item.tile;
    const int64_t first = S::blocks() + int64_t(tile) * layer.segments;
    write(place(first + item.segment), d);
    if (!arrives_last(layer.flags + LS_DENSE_MAX_BLOCKS + 1 + tile, layer.segments)) return false;
    const float4* const from = place(first);
    read(from, d);
#pragma unroll(kN <= 16 ? 8 : kN <= 32 ? 4 : 1)
    for (int segment = 1; segment < layer.segments; ++segment) {
      Sums other;
      read(from + int64_t(segment) * (kFloats / 4), other);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) d[i] = __fadd_rn(d[i], other[i]);
    }
    return true;
  }

  // The same where the segments of a tile are the blocks of a cluster: each of them adds up some of the columns, eights
  // number i with i % segments == segment. What the others have of them comes to the ring, which is free then.
  __device__ __forceinline__ void add_in_cluster(const Item& item, Sums& d) {
    const int segments = layer.segments, own = item.segment, owned = (kEights - own + segments - 1) / segments;
    float4* const ring = reinterpret_cast<float4*>(shared.weights) + threadIdx.x;  // [eight's turn, segment, thread]
    static_assert(sizeof(S::weights) + sizeof(S::rows) >= (kEights + kMostInCluster) * 16 * S::kConsumers, "all fit");
    if (threadIdx.x == 0) shared.sums_there.arrive_and_expect((segments - 1) * owned * 16 * S::kConsumers);
    cluster_arrive();
    cluster_wait();
    for_turns(segments, [&](int i, int turn, int owner) {
      if (owner == own) return;
      cluster_store(cluster_address(ring + (turn * segments + own) * S::kConsumers, owner),
                    make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]),
                    cluster_address(&shared.sums_there, owner));
    });
    if (owned == 0) return;
    shared.sums_there.wait(0);
    for_turns(segments, [&](int i, int turn, int owner) {
      if (owner != own) return;
      const float4* from = ring + turn * segments * S::kConsumers;
      const float4 mine = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
      float4 sum = own == 0 ? mine : *from;
#pragma unroll 1
      for (int segment = 1; segment < segments; ++segment) {
        from += S::kConsumers;
        const float4 next = segment == own ? mine : *from;
        sum = make_float4(__fadd_rn(sum.x, next.x), __fadd_rn(sum.y, next.y), __fadd_rn(sum.z, next.z),
                          __fadd_rn(sum.w, next.w));
      }
      d[4 * i] = sum.x, d[4 * i + 1] = sum.y, d[4 * i + 2] = sum.z, d[4 * i + 3] = sum.w;
    });
  }
  // Calls `body(eight, eight / of, eight % of)` for all eights of columns.
  template <typename Body>
  static __device__ __forceinline__ void for_turns(int of, Body body) {
    // Counted anew each time: kept from loop to loop, the counts take more registers than there are.
    asm volatile("" : "+r"(of));
    int turn = 0, which = 0;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      body(i, turn, which);
      if (++which == of) which = 0, ++turn;
    }
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

  // Of every `of` eights of columns, that number `which`.
  __device__ __forceinline__ void finish(const Item& item, const Sums& d, int which = 0, int of = 1) {
    if constexpr (kKind == Kind::Gated) {
      const int first = item.tile * kTileFeatures, first_row = S::first_row();
      if (group == 1) {
        for_pairs(d, [&](int number, int, int, int, float2 up) {
          shared.trade[number * kWarpgroup + threadIdx.x % kWarpgroup] = pack_bf16(up.x, up.y);
        });
      }
      together();
      if (group == 0) {
        for_pairs(d, [&](int number, int, int feature, int column, float2 gate) {
          const uint32_t up = shared.trade[number * kWarpgroup + threadIdx.x];
          if (first + feature >= layer.n || first_row + column >= layer.rows) return;
          store_gated(layer, first + feature, first_row + column, pack_bf16(gate.x, gate.y), up);
        });
      }
      together();
    } else {
      const int first = (item.tile * kGroups + group) * kTileFeatures;
      if constexpr (kKind == Kind::Head) {
        for_pairs(d, [&](int, int eight, int feature, int column, float2 sums) {
          if (first + feature >= layer.n || column >= layer.rows) return;
          store_logits(layer, first + feature, column, sums, best[eight]);
        });
      } else {
        finish_linear(first, d, which, of);
      }
    }
  }

  // What is added to is read first, a batch at a time: a store holds back the reads behind it.
  __device__ __forceinline__ void finish_linear(int first, const Sums& d, int which, int of) const {
    constexpr int kBatch = kEights < 4 ? kEights : kEights % 4 != 0 ? 3 : kResident == 2 ? 2 : 4;
    static_assert(kEights % kBatch == 0, "none is left");
    if constexpr (S::kClusters) asm volatile("" : "+r"(of));  // as in for_turns
    const int first_row = S::first_row();
    int turn = 0;
#pragma unroll
    for (int begin = 0; begin < kEights; begin += kBatch) {
      uint32_t old[2 * kBatch];
      const int turn_before = turn;
      const auto for_batch = [&](auto body) {
        turn = turn_before;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int column = first_row + 8 * (begin + i) + pairs.column();
          const int feature = first + 16 * warp + pairs.feature();
          if (turn == which) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const bool there = feature + 8 * half < layer.n && column < layer.rows;
              body(2 * i + half, feature + 8 * half, column, there);
            }
          }
          if (++turn == of) turn = 0;
        }
      };
      if (layer.add) {
        for_batch([&](int i, int feature, int column, bool there) {
          old[i] = there ? *place_of(layer, feature, column) : 0;
        });
      }
      for_batch([&](int i, int feature, int column, bool there) {
        const int at = 4 * begin + 2 * i;
        const float2 sums = pairs.trade(d[at], d[at + 1]);
        if (there) store_sums(layer, feature, column, pack_bf16(sums.x, sums.y), old[i]);
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
    // Behind all sums: others of the grid may not have added theirs up yet. A team counts its units once.
    const int64_t tiles = gridDim.x + (layer.segments > 1 ? int64_t(deal.units) * deal.team : 0);
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
      if constexpr (S::kClusters) {
        if (deal.clusters) {
          add_in_cluster(item, d);
          finish(item, d, item.segment, layer.segments);
          break;
        }
      }
      if (item.hands_on) {
        hand_on(d);
      } else if (layer.segments == 1 || add_segments(item, d)) {
        finish(item, d);
      }
    }
    // Others arrive at barriers that are here, or read rows that this block asked for.
    if (S::kTeams && deal.team > 1) cluster_arrive();
    if constexpr (kKind == Kind::Head) choose();
    if (S::kTeams && deal.team > 1) cluster_wait();
  }
};

}  // namespace lockstep::dense::sm90
