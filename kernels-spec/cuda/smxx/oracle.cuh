// Drafts from a table of what comes, right as often as asked. One warp has one sequence, a lane each of its drafts.
#pragma once

#include "counts.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/philox.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_oracle_params) == 184, "src/sys.rs describes this layout");

__global__ void __launch_bounds__(kWarp) oracle(const ls_spec_oracle_params p) {
  const int32_t index = blockIdx.x, lane = threadIdx.x;
  pdl::wait();
  pdl::launch_dependents();
  // Checking may write the slot's state, so that one lane does it and tells the others.
  int32_t slot = 0, committed = 0, count = 0;
  uint32_t round = 0;
  bool live = false;
  if (lane == 0) {
    const Counts c = counts_of(p.slots, p.sequences[index]);
    live = c.live && c.committed >= c.prompt;
    if (live) {
      slot = c.slot, committed = c.committed;
      const int32_t wanted = min(p.drafts[index], p.max_drafts);
      const int32_t room = max(min(c.limit, c.length_limit) - (committed + 1), 0);
      count = min(max(wanted, 0), room);
      round = p.rounds[slot];
      if (wanted > 0) p.rounds[slot] = round + 1;
      p.slots.proposed[slot] = count;
    }
  }
  live = __shfl_sync(kAll, int32_t(live), 0) != 0;
  if (!live) return;
  slot = __shfl_sync(kAll, slot, 0), committed = __shfl_sync(kAll, committed, 0);
  count = __shfl_sync(kAll, count, 0), round = __shfl_sync(kAll, round, 0);
  const int32_t right = p.pattern == nullptr ? INT32_MAX : p.pattern[round % uint32_t(p.pattern_count)];
  const float rate = p.rate[slot];
  const uint2 seed = make_uint2(uint32_t(p.seed), uint32_t(p.seed >> 32));
  int32_t* const tokens = tokens_of(p.slots, slot) + committed + 1;
  const int32_t* const truth = p.truth + slot * p.truth_stride + committed + 1;
  for (int32_t i = lane; i < count; i += kWarp) {
    const int32_t known = truth[i];
    const int32_t token = uint32_t(known) < uint32_t(p.valid) ? known : 0;
    const uint32_t drawn = philox::bits(seed, uint32_t(committed) + 1 + i, uint32_t(slot), philox::Use::Draft);
    const bool is_right = i < right && philox::uniform(drawn) < rate;
    tokens[i] = is_right ? token : int32_t((uint32_t(token) + 1) % uint32_t(p.valid));
  }
}

inline int32_t launch_oracle(const ls_spec_oracle_params& p, ls_stream_t stream) {
  if (p.sequence_count < 1 || p.valid < 1 || (p.pattern != nullptr && p.pattern_count < 1)) return LS_ERR_UNSUPPORTED;
  const dim3 grid(static_cast<unsigned>(p.sequence_count));
  return launch(oracle, grid, kWarp, 0, stream, p.programmatic != 0, p);
}

}  // namespace lockstep::spec
