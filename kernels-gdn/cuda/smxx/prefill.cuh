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

// All of the block, from wherever in their part of the kernel they are, which __syncthreads() does not allow.
__device__ __forceinline__ void chunk_done() { asm volatile("bar.sync 1, %0;" ::"n"(kPrefillThreads) : "memory"); }

// What the runners need of a token, brought while they run the one before.
template <int kRows, typename Prepared>
struct Next {
  Slice key, query;
  Gates gates;
  float value[Parts<kRows>::kCount];

  __device__ __forceinline__ Next(const Prepared& from, int i, int first_row, int lane)
      : key(load_slice(from.key[i], lane)),
        query(load_slice(from.query[i], lane)),
        gates{from.decay[i], from.beta[i], from.qk[i]} {
#pragma unroll
    for (int part = 0; part < Parts<kRows>::kCount; ++part) {
      value[part] = __bfloat162float(from.value[i][first_row + Parts<kRows>::row(part, lane)]);
    }
  }
};

// kRows rows of the state per group of lanes.
template <int kRows>
__global__ void __launch_bounds__(kPrefillThreads, 2) prefill(const Params p) {
  constexpr int kTile = kGroups * kRows;
  using Chunk = Prepared<kAhead, kTile>;
  __shared__ __align__(16) Chunk chunks[2];

  pdl::wait();
  pdl::launch_dependents();
  const bool runs = threadIdx.x < kThreads;
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

  const int32_t tokens = w.tokens();
  if (!runs) {
    Token<kTile> token;
    token.load(p, w, at, group, lane);
    for (int32_t from = 0, turn = 0; from < tokens; from += kAhead, turn ^= 1) {
      const Token<kTile> own = token;
      token.load(p, w, at, from + kAhead + group, lane);
      own.template finish<Mode::Prefill>(p, w, at, from + group, group, lane, chunks[turn]);
      chunk_done();
    }
    chunk_done();
    return;
  }

  if (w.folded == 0) rows.clear();
  const bool speaks = Parts<kRows>::speaks(lane);
  __nv_bfloat16* out = out_of(p, at, first_row + spoken_row<kRows>(lane)) + int64_t(w.first) * p.out_row_stride;
  chunk_done();
  for (int32_t from = 0, turn = 0; from < tokens; from += kAhead, turn ^= 1) {
    const Chunk& chunk = chunks[turn];
    const int32_t here = min(tokens - from, kAhead);
    int32_t i = 0;
    for (; i < here && from + i < w.pending; ++i) advance(rows, chunk, i, first_row, true, true, lane);
    if (i < here) {
      Next<kRows, Chunk> next(chunk, i, first_row, lane);
      for (; i < here; ++i) {
        const Next<kRows, Chunk> now = next;
        next = Next<kRows, Chunk>(chunk, min(i + 1, here - 1), first_row, lane);
        const float y = step(rows.at, now.key, now.query, now.gates, now.value, true, lane);
        if (speaks) *out = __float2bfloat16_rn(y);
        out += p.out_row_stride;
      }
    }
    chunk_done();
  }
  rows.store(state_at, lane);
}

template <int kRows>
int32_t launch_prefill(const ls_gdn_params& p, ls_stream_t stream) {
  const dim3 grid(p.v_heads * (kHead / (kGroups * kRows)), p.rows.sequences + 1);
  return launch(prefill<kRows>, grid, kPrefillThreads, 0, stream, p.programmatic != 0, Params(p));
}

}  // namespace lockstep::gdn
