// Persistent blocks: four warps hold a tile's state in registers and run its tokens; a fifth is a unit ahead. It
// reads the counters, has the next state brought to shared memory by one bulk copy, and prepares the tokens.
#pragma once

#include "lockstep/launch.cuh"
#include "lockstep/mbarrier.cuh"
#include "lockstep/pdl.cuh"
#include "tile.cuh"

namespace lockstep::gdn {

constexpr int kThreads = (kWarps + 1) * 32;
constexpr int kStages = 2;  // prepared chunks
constexpr int kBlocksOfMultiprocessor = 3;

// What the preparing warp says of a chunk.
struct Header {
  Work work;
  int32_t unit;  // -1: nothing more comes
  int32_t from;  // first token of the chunk
};

template <int kTile>
struct Shared {
  float state[kTile][kHead];
  Chunk<kTile> chunks[kStages];
  Header headers[kStages];
  Barrier chunk_full[kStages], chunk_free[kStages];
  Barrier state_full, state_free;
};

// A ring position: the stage, and the parity of its phase.
struct Cursor {
  uint32_t count = 0;
  __device__ __forceinline__ uint32_t stage() const { return count % kStages; }
  __device__ __forceinline__ uint32_t parity() const { return count / kStages % 2; }
};

template <int kRows>
__device__ __forceinline__ void prepare(const ls_gdn_params& p, Shared<kGroups * kRows>& shared) {
  constexpr int kTile = kGroups * kRows;
  const int warp_lane = threadIdx.x % 32, lane = warp_lane % kGroup, group = warp_lane / kGroup;
  const int32_t tiles = p.v_heads * (kHead / kTile), units = tiles * (p.rows.sequences + 1);
  Cursor chunk;
  uint32_t states = 0;  // loads of the state so far
  for (int32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int32_t index = unit / tiles, tile = unit - index * tiles;
    const Place at(p, tile, kTile);
    const auto zero_tile = [&](int64_t from, int64_t end) {
      for (int i = 0; i < kWarps; ++i) {
        const int row = (i * kGroupsOfWarp + group) * kRows;
        zero<kRows>(p, from, end, lane, out_of(p, at, row));
      }
    };
    if (index == p.rows.sequences) {
      zero_tile(unowned_from(p.rows), p.rows.row_count);
      continue;
    }
    const Work w = work_of<Mode::Verify>(p, index, tile == 0 && warp_lane == 0);
    if (!w.live) {
      zero_tile(w.first, w.first + w.count);
      continue;
    }
    if (w.folded > 0) {
      shared.state_free.wait((states + 1) % 2);
      if (warp_lane == 0) {
        shared.state_full.arrive_and_expect(sizeof(shared.state));
        bulk_load(shared.state, state_of(p, w, at, 0), sizeof(shared.state), shared.state_full);
      }
      ++states;
    }
    for (int32_t from = 0; from < w.tokens(); from += kChunk, ++chunk.count) {
      const int32_t here = min(w.tokens() - from, kChunk);
      Token<kTile, Mode::Verify> token;
      token.load(p, w, at, group < here ? from + group : w.tokens(), lane);
      shared.chunk_free[chunk.stage()].wait((chunk.parity() + 1) % 2);
      for (int32_t i = group; i - group < here; i += kGroupsOfWarp) {
        Token<kTile, Mode::Verify> next;
        const int32_t following = i + kGroupsOfWarp;
        next.load(p, w, at, following < here ? from + following : w.tokens(), lane);
        token.finish(p, w, at, from + i, i, lane, shared.chunks[chunk.stage()]);
        token = next;
      }
      if (warp_lane == 0) shared.headers[chunk.stage()] = {w, unit, from};
      shared.chunk_full[chunk.stage()].arrive();
    }
  }
  shared.chunk_free[chunk.stage()].wait((chunk.parity() + 1) % 2);
  if (warp_lane == 0) shared.headers[chunk.stage()].unit = -1;
  shared.chunk_full[chunk.stage()].arrive();
}

template <int kRows>
__device__ __forceinline__ void run(const ls_gdn_params& p, Shared<kGroups * kRows>& shared) {
  constexpr int kTile = kGroups * kRows;
  const int lane = threadIdx.x % kGroup, group = threadIdx.x / kGroup, first_row = group * kRows;
  const bool leads = threadIdx.x % 32 == 0;
  const int32_t tiles = p.v_heads * (kHead / kTile);
  Rows<kRows> rows;
  uint32_t states = 0;
  for (Cursor chunk;; ++chunk.count) {
    shared.chunk_full[chunk.stage()].wait(chunk.parity());
    const Header header = shared.headers[chunk.stage()];
    if (header.unit < 0) return;
    const Work& w = header.work;
    const Place at(p, header.unit % tiles, kTile);
    if (header.from == 0) {
      if (w.folded > 0) {
        shared.state_full.wait(states % 2);
        ++states;
        rows.load(shared.state[first_row], lane);
        __syncwarp();
        if (leads) shared.state_free.arrive();
      } else {
        rows.clear();
      }
    }
    advance<kRows, kTile>(p, w, header.from, store_after<Mode::Verify>(p, w), shared.chunks[chunk.stage()],
                          first_row, lane, rows, state_of(p, w, at, first_row), out_of(p, at, first_row));
    __syncwarp();
    if (leads) shared.chunk_free[chunk.stage()].arrive();
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor) persistent(const ls_gdn_params p) {
  extern __shared__ __align__(128) uint8_t bytes[];
  auto& shared = *reinterpret_cast<Shared<kGroups * kRows>*>(bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      shared.chunk_full[i].init(32);
      shared.chunk_free[i].init(kWarps);
    }
    shared.state_full.init(1);
    shared.state_free.init(kWarps);
    Barrier::publish();
  }
  __syncthreads();
  pdl::wait();
  pdl::launch_dependents();
  if (threadIdx.x < kWarps * 32) {
    run<kRows>(p, shared);
  } else {
    prepare<kRows>(p, shared);
  }
}

template <int kRows>
int32_t launch_persistent(const ls_gdn_params& p, ls_stream_t stream) {
  constexpr int kBytes = sizeof(Shared<kGroups * kRows>);
  const auto kernel = persistent<kRows>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return int32_t(status);
  const int units = p.v_heads * (kHead / (kGroups * kRows)) * (p.rows.sequences + 1);
  const int blocks = p.multiprocessors * kBlocksOfMultiprocessor;
  return launch(kernel, units < blocks ? units : blocks, kThreads, kBytes, stream, p.programmatic != 0, p);
}

}  // namespace lockstep::gdn
