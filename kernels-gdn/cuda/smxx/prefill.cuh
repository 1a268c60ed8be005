// Many tokens of a sequence, one block per tile of a head, its state in registers from the first token to the last.
//
// Tokens depend on each other, so what bounds a prompt is how long one takes. Four warps, the runners, do nothing but
// run tokens over the state; two more, the preparers, load and normalise those of the next chunk meanwhile.
#pragma once

#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "tile.cuh"

namespace lockstep::gdn {

constexpr int kPreparers = 2;
constexpr int kAhead = kPreparers * kGroupsOfWarp;  // tokens of a chunk: one per group of lanes
constexpr int kPrefillThreads = kThreads + 32 * kPreparers;

// kRows rows of the state per group of lanes.
template <int kRows>
__global__ void __launch_bounds__(kPrefillThreads, 2) prefill(const Params p) {
  constexpr int kTile = kGroups * kRows;
  static_assert(Parts<kRows>::kCount == 1, "one value of a token for each lane");
  using Chunk = Prepared<kAhead, kTile>;
  __shared__ __align__(16) Chunk chunks[2];

  pdl::wait();
  pdl::launch_dependents();
  // The same in a whole warp, and the compiler has to know.
  const bool runs = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0) < kWarps;
  const int lane = threadIdx.x % kGroup, group = threadIdx.x % kThreads / kGroup, first_row = group * kRows;
  const Place at(p, blockIdx.x, kTile);

  const int32_t index = blockIdx.y;
  if (index == p.rows.sequences) {
    zero(p, unowned_from(p.rows), p.rows.row_count, out_of(p, at, 0), kTile);
    return;
  }
  const bool report = blockIdx.x == 0 && threadIdx.x == 0;
  const Counters counters = counters_of<Mode::Prefill>(p, index, report);
  float* const state_at = state_of(p, counters.slot, at, first_row);
  Rows<kRows> rows;
  if (runs && counters.live) rows.load(state_at, lane);
  const Work w = work_of<Mode::Prefill>(p, counters, report);
  if (!w.live) {
    zero(p, w.first, w.first + w.count, out_of(p, at, 0), kTile);
    return;
  }

  if (w.folded == 0) rows.clear();
  const int32_t tokens = w.tokens();
  const bool speaks = Parts<kRows>::speaks(lane);
  __nv_bfloat16* out = out_of(p, at, first_row + spoken_row<kRows>(lane)) + int64_t(w.first) * p.out_row_stride;
  // The chunk that begins with token `from` is prepared, the one before it is run.
  for (int32_t from = 0, turn = 0;; from += kAhead, turn ^= 1) {
    if (!runs) {
      Token<kTile> token;
      token.load(p, w, at, from + group, lane);
      token.template finish<Mode::Prefill>(p, w, at, from + group, group, lane, chunks[turn]);
    } else if (from > 0) {
      const Chunk& chunk = chunks[turn ^ 1];
      const int32_t first = from - kAhead, here = min(tokens - first, kAhead);
      int32_t i = 0;
      for (; i < here && first + i < w.pending; ++i) advance(rows, chunk, i, first_row, true, true, lane);
      if (i < here) {
        Slice key = load_slice(chunk.key[i], lane), query = load_slice(chunk.query[i], lane);
        for (; i < here; ++i) {
          // Those of the next token are on their way while this one runs.
          const int next = min(i + 1, here - 1);
          const Slice next_key = load_slice(chunk.key[next], lane), next_query = load_slice(chunk.query[next], lane);
          const Gates gates = {chunk.decay[i], chunk.beta[i], chunk.qk[i]};
          const float value[1] = {__bfloat162float(chunk.value[i][first_row + Parts<kRows>::row(0, lane)])};
          const float y = step(rows.at, key, query, gates, value, true, lane);
          if (speaks) *out = __float2bfloat16_rn(y);
          out += p.out_row_stride;
          key = next_key, query = next_query;
        }
      }
    }
    if (from >= tokens) break;
    __syncthreads();
  }
  if (runs) rows.store(state_at, lane);
}

template <int kRows>
int32_t launch_prefill(const ls_gdn_params& p, ls_stream_t stream) {
  const dim3 grid(p.v_heads * (kHead / (kGroups * kRows)), p.rows.sequences + 1);
  return launch(prefill<kRows>, grid, kPrefillThreads, 0, stream, p.programmatic != 0, Params(p));
}

}  // namespace lockstep::gdn
