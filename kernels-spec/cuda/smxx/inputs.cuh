// Row lists of the next pass from the counters: one block, since offsets depend on all sequences before.
#pragma once

#include "counts.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_inputs_params) == 216, "src/sys.rs describes this layout");

constexpr int kInputThreads = 512;  // sequences of a tile
constexpr int kInputWarps = kInputThreads / kWarp;

struct Want {
  int32_t start;
  int32_t count;
};

// `wanted`: of the sequence, where there is such a list.
__device__ __forceinline__ Want want(const ls_spec_inputs_params& p, int32_t index, const Counts& c, int32_t wanted) {
  if (p.kind == LS_SPEC_TARGET) {
    if (c.committed < c.prompt) return {c.committed, 0};
    const int32_t drafts = min(max(wanted, 0), c.proposed);
    // A page for every row, and a place for the token that each row chooses.
    const int32_t pages = max(c.limit - c.committed, 0), places = max(c.length_limit - c.committed - 1, 0);
    return {c.committed, min(min(drafts + 1, p.max_rows), min(pages, places))};
  }
  if (p.kind == LS_SPEC_PREFILL) {
    const int32_t length = min(max(wanted, 0), p.max_rows);
    const int32_t end = max(min(c.prompt, c.limit), c.committed);
    return {c.committed, min(length, end - c.committed)};
  }
  const int32_t first = max(c.drafted, 1), end = max(min(c.committed + 1, c.limit), first);
  // The pass just advanced holds its own hidden rows, the ring those before it.
  const bool here = p.from.slots[index] == c.slot;
  const int32_t start = here ? max(p.from.start[index], 0) : c.committed;
  if (int64_t(first) - 1 + p.ring_rows < start) return {first, 0};
  return {first, min(end - first, p.max_rows)};
}

// The sum of all threads before this one; `total` of all.
__device__ __forceinline__ int64_t sum_before(int64_t value, int64_t (&warps)[kInputWarps], int64_t& total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int64_t sum = value;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int64_t other = __shfl_up_sync(kAll, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  int64_t before = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < kInputWarps; ++i) {
    if (i < warp) before += warps[i];
    total += warps[i];
  }
  return before + sum - value;
}

__global__ void __launch_bounds__(kInputThreads) build_inputs(const ls_spec_inputs_params p) {
  __shared__ int64_t warps[kInputWarps];
  __shared__ int32_t slots[kInputThreads], starts[kInputThreads], firsts[kInputThreads], counts[kInputThreads];
  pdl::wait();
  pdl::launch_dependents();
  const int64_t capacity = p.row_count;
  int64_t wanted_before = 0;  // rows wanted by the tiles before
  for (int32_t tile = 0; tile < p.sequence_count; tile += kInputThreads) {
    const int32_t index = tile + int32_t(threadIdx.x);
    Counts c = {};
    Want w = {};
    if (index < p.sequence_count) {
      const int32_t wanted = p.wanted != nullptr ? p.wanted[index] : 0;  // on its way with the slot
      c = counts_of(p.slots, p.sequences[index]);
      if (c.live) w = want(p, index, c, wanted);
    }
    int64_t total;
    const int64_t before = sum_before(w.count, warps, total);
    // Each gets what those before it left: so first rows are the sums before, cut to the capacity.
    const int32_t first = int32_t(min(wanted_before + before, capacity));
    const int32_t count = int32_t(min(int64_t(w.count), capacity - first));
    if (index < p.sequence_count) {
      p.list_slots[index] = count > 0 ? c.slot : -1;
      p.list_start[index] = count > 0 ? w.start : 0;
      p.list_offsets[index] = first;
    }
    slots[threadIdx.x] = c.slot;
    starts[threadIdx.x] = w.start;
    firsts[threadIdx.x] = first;
    counts[threadIdx.x] = count;
    __syncthreads();
    const int32_t here = min(p.sequence_count - tile, kInputThreads);
    for (int32_t i = threadIdx.x / kWarp; i < here; i += kInputWarps) {
      const int32_t* const tokens = tokens_of(p.slots, slots[i]) + starts[i];
      int32_t* const ids = p.ids + firsts[i];
#pragma unroll 4
      for (int32_t row = threadIdx.x % kWarp; row < counts[i]; row += kWarp) ids[row] = tokens[row];
    }
    wanted_before += total;
    __syncthreads();
  }
  const int32_t used = int32_t(min(wanted_before, capacity));
  if (threadIdx.x == 0) p.list_offsets[p.sequence_count] = used;
  for (int64_t row = used + int64_t(threadIdx.x); row < capacity; row += kInputThreads) p.ids[row] = -1;
}

// One row per sequence: each sequence's latest draft.
__global__ void __launch_bounds__(kInputThreads) chain_inputs(const ls_spec_inputs_params p) {
  pdl::wait();
  pdl::launch_dependents();
  for (int32_t tile = 0; tile < p.sequence_count; tile += kInputThreads) {
    const int32_t index = tile + int32_t(threadIdx.x);
    const bool mine = index < p.sequence_count;
    int32_t slot = -1, start = 0, id = -1;
    if (mine) {
      const int64_t count = int64_t(p.list_offsets[index + 1]) - p.list_offsets[index];
      const int64_t next = int64_t(p.list_start[index]) + count;
      const int32_t ran = p.list_slots[index];
      const Counts c = counts_of(p.slots, p.sequences[index]);
      const int64_t latest = int64_t(c.committed) + c.proposed;
      if (c.live && ran == c.slot && c.proposed > 0 && count > 0 && next == latest && latest < c.limit) {
        slot = c.slot;
        start = int32_t(latest);
        id = tokens_of(p.slots, slot)[latest];
      }
    }
    __syncthreads();  // the neighbour has read its offsets
    if (mine) {
      p.list_slots[index] = slot;
      p.list_start[index] = start;
      p.list_offsets[index] = index;
      p.ids[index] = id;
    }
  }
  // Behind the barrier of the last tile, whose last thread reads this offset.
  if (threadIdx.x == 0) p.list_offsets[p.sequence_count] = p.sequence_count;
}

__global__ void __launch_bounds__(kInputThreads) last_rows(const ls_spec_inputs_params p) {
  pdl::wait();
  pdl::launch_dependents();
  for (int32_t index = threadIdx.x; index < p.sequence_count; index += kInputThreads) {
    const Sequence s = sequence_of(p.slots, p.from, index, 0, true);
    const int64_t end = s.start + s.count;
    // Where the next token is one of the prompt, there is nothing to choose.
    const bool live = s.live && end >= p.slots.prompt[s.slot];
    p.list_slots[index] = live ? int32_t(s.slot) : -1;
    p.list_start[index] = live ? int32_t(end - 1) : 0;
    p.list_offsets[index] = index;
  }
  if (threadIdx.x == 0) p.list_offsets[p.sequence_count] = p.sequence_count;
}

inline int32_t launch_inputs(const ls_spec_inputs_params& p, ls_stream_t stream) {
  if (p.kind < LS_SPEC_TARGET || p.kind > LS_SPEC_LAST || p.sequence_count < 1) return LS_ERR_UNSUPPORTED;
  const bool programmatic = p.programmatic != 0;
  if (p.kind == LS_SPEC_CHAIN) return launch(chain_inputs, 1, kInputThreads, 0, stream, programmatic, p);
  if (p.kind == LS_SPEC_LAST) return launch(last_rows, 1, kInputThreads, 0, stream, programmatic, p);
  return launch(build_inputs, 1, kInputThreads, 0, stream, programmatic, p);
}

}  // namespace lockstep::spec
