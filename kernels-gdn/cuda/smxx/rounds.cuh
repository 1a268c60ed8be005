// One block per tile, its state in registers from the first token to the last. The loads of the state go out
// first; keys and queries are normalised while it is on its way.
#pragma once

#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "tile.cuh"

namespace lockstep::gdn {

constexpr int kThreads = kWarps * 32;
static_assert(kChunk == kGroups, "each group of lanes prepares one token");

// kRows rows of the state per group of lanes.
template <int kRows, Mode kMode>
__global__ void __launch_bounds__(kThreads, 4) rounds(const ls_gdn_params p) {
  constexpr int kTile = kGroups * kRows;
  __shared__ __align__(16) Chunk<kTile> chunk;

  pdl::wait();
  pdl::launch_dependents();
  const int lane = threadIdx.x % kGroup, group = threadIdx.x / kGroup, first_row = group * kRows;
  const Place at(p, blockIdx.x, kTile);
  __nv_bfloat16* const out = out_of(p, at, first_row);

  const int32_t index = blockIdx.y;
  if (kMode != Mode::Fold && index == p.rows.sequences) {
    zero<kRows>(p, unowned_from(p.rows), p.rows.row_count, lane, out);
    return;
  }
  const Work w = work_of<kMode>(p, index, blockIdx.x == 0 && threadIdx.x == 0);
  if (!w.live) {
    if (kMode != Mode::Fold) zero<kRows>(p, w.first, w.first + w.count, lane, out);
    return;
  }

  float* const state_at = state_of(p, w, at, first_row);
  Rows<kRows> rows;
  rows.load(state_at, lane);
  const int32_t storing = store_after<kMode>(p, w);
  for (int32_t from = 0; from < w.tokens(); from += kChunk) {
    Token<kTile, kMode> token;
    token.load(p, w, at, from + group, lane);
    if (from > 0) __syncthreads();  // the tokens before are done with
    token.finish(p, w, at, from + group, group, lane, chunk);
    __syncthreads();
    if (from == 0 && w.folded == 0) rows.clear();
    advance<kRows, kTile>(p, w, from, storing, chunk, first_row, lane, rows, state_at, out);
  }
}

template <int kRows, Mode kMode>
int32_t launch_rounds(const ls_gdn_params& p, ls_stream_t stream) {
  constexpr int kTiles = kHead / (kGroups * kRows);
  const dim3 grid(p.v_heads * kTiles, p.rows.sequences + (kMode == Mode::Fold ? 0 : 1));
  return launch(rounds<kRows, kMode>, grid, kThreads, 0, stream, p.programmatic != 0, p);
}

template <Mode kMode>
int32_t launch_mode(const ls_gdn_params& p, ls_stream_t stream) {
  switch (p.tile) {
    case 16: return launch_rounds<1, kMode>(p, stream);
    case 32: return launch_rounds<2, kMode>(p, stream);
    case 64: return launch_rounds<4, kMode>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::gdn
