// One block per tile, its state in registers from the first token to the last. The loads of the state go out
// first; keys and queries are normalised while it is on its way.
#pragma once

#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "tile.cuh"

namespace lockstep::gdn {

constexpr int kChunk = kGroups;  // tokens prepared at a time: one per group of lanes

// kRows rows of the state per group of lanes.
template <int kRows, Mode kMode>
__global__ void __launch_bounds__(kThreads, 4) rounds(const Params p) {
  constexpr int kTile = kGroups * kRows;
  __shared__ __align__(16) Prepared<kChunk, kTile> prepared;

  pdl::wait();
  pdl::launch_dependents();
  const int lane = threadIdx.x % kGroup, group = threadIdx.x / kGroup, first_row = group * kRows;
  const Place at(p, blockIdx.x, kTile);
  __nv_bfloat16* const out = out_of(p, at, 0);

  const int32_t index = blockIdx.y;
  if (kMode != Mode::Fold && index == p.rows.sequences) {
    zero(p, unowned_from(p.rows), p.rows.row_count, out, kTile);
    return;
  }
  const bool report = blockIdx.x == 0 && threadIdx.x == 0;
  const Counters counters = counters_of<kMode>(p, index, report);
  // The state's place depends on the slot alone, so its loads follow those of the counters at once.
  float* const state_at = state_of(p, counters.slot, at, first_row);
  Rows<kRows> rows;
  if (counters.live) rows.load(state_at, lane);
  const Work w = work_of<kMode>(p, counters, report);
  if (!w.live) {
    if (kMode != Mode::Fold) zero(p, w.first, w.first + w.count, out, kTile);
    return;
  }

  const int32_t tokens = w.tokens(), storing = store_after<kMode>(p, w);
  const int row = first_row + spoken_row<kRows>(lane);
  const bool speaks = Parts<kRows>::speaks(lane);
  for (int32_t from = 0; from < tokens; from += kChunk) {
    Token<kTile> token;
    token.load(p, w, at, from + group, lane);
    if (from > 0) __syncthreads();  // the tokens before are done with
    token.template finish<kMode>(p, w, at, from + group, group, lane, prepared);
    __syncthreads();
    if (from == 0 && w.folded == 0) rows.clear();
    const int32_t here = min(tokens - from, kChunk);
    for (int32_t i = 0; i < here; ++i) {
      const int32_t t = from + i;
      if (t == storing) rows.store(state_at, lane);
      const bool replayed = t < w.pending;
      // The state behind the last row is needed by nobody, unless it is stored.
      const bool writes = t + 1 < tokens || storing == tokens;
      const float y = advance(rows, prepared, i, first_row, replayed, writes, lane);
      if (!replayed && speaks) out[(int64_t(w.first) + t - w.pending) * p.out_row_stride + row] = __float2bfloat16_rn(y);
    }
  }
  if (storing == tokens) rows.store(state_at, lane);
}

template <int kRows, Mode kMode>
int32_t launch_rounds(const ls_gdn_params& p, ls_stream_t stream) {
  constexpr int kTiles = kHead / (kGroups * kRows);
  const dim3 grid(p.v_heads * kTiles, p.rows.sequences + (kMode == Mode::Fold ? 0 : 1));
  return launch(rounds<kRows, kMode>, grid, kThreads, 0, stream, p.programmatic != 0, Params(p));
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
