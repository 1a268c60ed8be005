// Persistent blocks of two warpgroups. The runners hold a whole head's state in registers, eight rows per group of
// lanes, and do nothing but run tokens over it. In the other warpgroup one warp, the bringer, has the next head's
// state copied to shared memory, and three warps prepare and journal the tokens of the next heads, four at a time.
#pragma once

#include "lockstep/mbarrier.cuh"
#include "lockstep/pdl.cuh"
#include "tile.cuh"

namespace lockstep::gdn {

constexpr int kResident = 2;              // blocks of a multiprocessor
constexpr int kRows = 8;                  // of the state per group of lanes: four warps hold a head
constexpr int kChunk = kGroupsOfWarp;     // tokens a warp prepares at a time
constexpr int kPreparers = 3;
constexpr int kStages = 2 * kPreparers;   // chunks in shared memory: preparer i fills i and i + kPreparers
// Of a thread; together half a multiprocessor's for 128 threads each.
constexpr int kRunnerRegisters = 184, kHelperRegisters = 72;

// A chunk as its runners need it.
struct Header {
  float* state;          // the head's
  __nv_bfloat16* out;    // where the first token's output would be
  int32_t tokens;        // of the chunk
  int32_t pending;       // the first of them, which are replayed
  int32_t store_before;  // the state is stored before this token, if the chunk has it
  bool last;             // chunk of its head
};

struct Shared {
  float state[kHead][kHead];
  Prepared<kChunk, kHead> prepared[kStages];
  Header headers[kStages];
  Barrier full[kStages], free[kStages];  // of a chunk
  Barrier state_full, state_free;
  int32_t state_is;  // what state_full means
};

// What the runners find behind state_full.
enum State : int32_t { kEnd, kZero, kLoaded };

// The heads of all sequences and one more for the rows of nobody, dealt to blocks in turn.
struct Walk {
  int32_t index;  // of the sequence
  uint32_t head;  // of its value heads

  __device__ __forceinline__ explicit Walk(const Params& p) { find(p, blockIdx.x); }
  // By the size of the grid, or beyond the end where there are fewer heads than blocks.
  __device__ __forceinline__ void move_on(const Params& p) {
    find(p, index * p.v_heads + head + p.multiprocessors * kResident);
  }

 private:
  __device__ __forceinline__ void find(const Params& p, uint32_t unit) { index = p.heads.divide(unit, head); }
};

__device__ __forceinline__ Work work_at(const Params& p, int32_t index, bool report) {
  return work_of<Mode::Verify>(p, counters_of<Mode::Verify>(p, index, report), report);
}

// A warp's arrival, behind what its lanes did.
__device__ __forceinline__ void warp_arrives(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kWarpArrivals) barrier.arrive();
}

__device__ __forceinline__ void bring(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % 32;
  uint32_t states = 0;  // brought so far
  for (Walk walk(p); walk.index <= p.rows.sequences; walk.move_on(p)) {
    const Place at(p, walk.head, kHead);
    const bool nobody = walk.index == p.rows.sequences;
    const bool report = walk.head == 0 && lane == 0;
    const Work w = nobody ? Work{} : work_at(p, walk.index, report);
    if (w.live) {
      shared.state_free.wait((states++ + 1) % 2);
      if (lane == 0) {
        // With nothing folded the state is zero by definition, whatever its memory holds.
        shared.state_is = w.folded > 0 ? kLoaded : kZero;
        fence_before_bulk();
        shared.state_full.arrive_and_expect(w.folded > 0 ? sizeof(shared.state) : 0);
        if (w.folded > 0) bulk_load(shared.state, state_of(p, w.slot, at, 0), sizeof(shared.state), shared.state_full);
      }
      continue;
    }
    const int64_t from = nobody ? unowned_from(p.rows) : w.first, end = nobody ? p.rows.row_count : w.first + w.count;
    for (int64_t row = from; row < end; ++row) {
      for (int i = lane; i < kHead; i += 32) out_of(p, at, i)[row * p.out_row_stride] = __float2bfloat16_rn(0.0f);
    }
  }
  shared.state_free.wait((states + 1) % 2);
  if (lane == 0) {
    shared.state_is = kEnd;
    shared.state_full.arrive();
  }
}

__device__ __forceinline__ void prepare(const Params& p, int preparer, Shared& shared) {
  const int warp_lane = threadIdx.x % 32, lane = warp_lane % kGroup, group = warp_lane / kGroup;
  int32_t from = preparer * kChunk;  // token at which this warp's next chunk begins
  uint32_t filled = 0;               // chunks so far
  for (Walk walk(p); walk.index < p.rows.sequences; walk.move_on(p)) {
    const Place at(p, walk.head, kHead);
    const Work w = work_at(p, walk.index, false);
    if (!w.live) continue;
    const int32_t tokens = w.tokens();
    for (; from < tokens; from += kPreparers * kChunk) {
      const int32_t here = min(tokens - from, kChunk);
      const uint32_t stage = preparer + filled % 2 * kPreparers, parity = filled / 2 % 2;
      Token<kHead> token;
      token.load(p, w, at, from + group, lane);
      shared.free[stage].wait(parity ^ 1);
      if (warp_lane == 0) {
        const int32_t storing = store_after<Mode::Verify>(p, w) - from;
        shared.headers[stage] = {state_of(p, w.slot, at, 0),
                                 out_of(p, at, 0) + (int64_t(w.first) + from - w.pending) * p.out_row_stride,
                                 here,
                                 w.pending - from,
                                 storing,
                                 from + here == tokens};
      }
      token.finish<Mode::Verify>(p, w, at, from + group, group, lane, shared.prepared[stage]);
      warp_arrives(shared.full[stage]);
      ++filled;
    }
    from -= ceil_div(tokens, kChunk) * kChunk;
  }
}

__device__ __forceinline__ void run(const Params& p, Shared& shared) {
  const int lane = threadIdx.x % kGroup, first_row = threadIdx.x / kGroup * kRows;
  const int row = first_row + spoken_row<kRows>(lane);
  static_assert(Parts<kRows>::kCount * Parts<kRows>::kRowsOf == kGroup, "every lane speaks for one row");
  Rows<kRows> rows;
  uint32_t parity = 0;
  int stage = 0;
  for (uint32_t states = 0;; ++states) {
    // The state first: the bringer can then go on while the tokens are still being prepared.
    shared.state_full.wait(states % 2);
    const int32_t found = shared.state_is;
    if (found == kEnd) return;
    if (found == kZero) {
      rows.clear();
    } else {
      rows.load(shared.state[first_row], lane);
    }
    warp_arrives(shared.state_free);
    for (bool last = false; !last;) {
      shared.full[stage].wait(parity);
      const Header h = shared.headers[stage];
      last = h.last;
      float* const state_at = h.state + first_row * kHead;
      __nv_bfloat16* out = h.out + row;
      for (int32_t i = 0; i < h.tokens; ++i, out += p.out_row_stride) {
        if (i == h.store_before) rows.store(state_at, lane);
        const bool replayed = i < h.pending;
        // The state behind the last row is needed by nobody: a verification never stores it.
        const bool writes = i + 1 < h.tokens || !last;
        const float y = advance(rows, shared.prepared[stage], i, first_row, replayed, writes, lane);
        if (!replayed) *out = __float2bfloat16_rn(y);
      }
      warp_arrives(shared.free[stage]);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
}

__global__ void __launch_bounds__(2 * kThreads, kResident) persistent(const Params p) {
  extern __shared__ __align__(128) uint8_t bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      shared.full[i].init(kWarpArrivals);
      shared.free[i].init(kWarps * kWarpArrivals);
    }
    shared.state_full.init(1);
    shared.state_free.init(kWarps * kWarpArrivals);
    Barrier::publish();
  }
  __syncthreads();
  pdl::wait();
  pdl::launch_dependents();
  const int warp = threadIdx.x / 32;
  if (warp < kWarps) {
    take_registers<kRunnerRegisters>();
    run(p, shared);
  } else {
    give_registers<kHelperRegisters>();
    if (warp == kWarps) {
      bring(p, shared);
    } else {
      prepare(p, warp - kWarps - 1, shared);
    }
  }
}

inline int32_t launch_persistent(const ls_gdn_params& p, ls_stream_t stream) {
  const cudaError_t status =
      cudaFuncSetAttribute(persistent, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (status != cudaSuccess) return int32_t(status);
  const int units = p.v_heads * (p.rows.sequences + 1), blocks = p.multiprocessors * kResident;
  return launch(persistent, units < blocks ? units : blocks, 2 * kThreads, sizeof(Shared), stream,
                p.programmatic != 0, Params(p));
}

}  // namespace lockstep::gdn
