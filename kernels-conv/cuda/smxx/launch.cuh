// The grid of a conv launch, and the choice of an instantiation.
#pragma once

#include "conv.cuh"
#include "lockstep/launch.cuh"

namespace lockstep::conv {

// Threads of a block: `lanes` along the channels, the rest along the row groups of one sequence.
constexpr int kMaxThreads = 256;

template <int kWidth, int kRows, Ring kRing, Work kWork>
int32_t launch_conv(const ls_conv_params& p, ls_stream_t stream) {
  const int vectors = p.channels / kVectorBf16;
  const int groups = ceil_div(p.rows.max_rows, kRows);
  const int fitting = kMaxThreads / p.lanes;
  const int block_groups = groups < fitting ? groups : fitting;
  const dim3 block(p.lanes, block_groups);
  const dim3 grid(ceil_div(vectors, p.lanes), p.rows.sequences + 1, ceil_div(groups, block_groups));
  return launch(conv<kWidth, kRows, kRing, kWork>, grid, block, 0, stream, p.programmatic != 0, p);
}

template <int kRows, Ring kRing, Work kWork>
int32_t launch_width(const ls_conv_params& p, ls_stream_t stream) {
  switch (p.width) {
    case 2: return launch_conv<2, kRows, kRing, kWork>(p, stream);
    case 3: return launch_conv<3, kRows, kRing, kWork>(p, stream);
    case 4: return launch_conv<4, kRows, kRing, kWork>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

template <Work kWork>
int32_t launch_verify(const ls_conv_params& p, ls_stream_t stream) {
  switch (p.rows_per_thread) {
    case 1: return launch_width<1, Ring::EveryRow, kWork>(p, stream);
    case 2: return launch_width<2, Ring::EveryRow, kWork>(p, stream);
    case 4: return launch_width<4, Ring::EveryRow, kWork>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::conv
