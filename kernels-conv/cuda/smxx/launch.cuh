// The grid of a conv launch, and the choice of an instantiation.
#pragma once

#include "conv.cuh"
#include "lockstep/launch.cuh"

namespace lockstep::conv {

// Threads of a block: `lanes` along the channels, the rest along the row groups of one sequence.
template <Kind kKind, int kWidth, int kChannels, int kRows, Work kWork>
int32_t launch_conv(const ls_conv_params& p, ls_stream_t stream) {
  if (!Params::fits(p)) return LS_ERR_UNSUPPORTED;
  const int vectors = p.channels / kChannels;
  const int groups = ceil_div(p.rows.max_rows, kRows);
  const int fitting = kMaxThreads / p.lanes;
  const int block_groups = groups < fitting ? groups : fitting;
  const dim3 block(p.lanes, block_groups);
  const dim3 grid(ceil_div(vectors, p.lanes), p.rows.sequences + 1, ceil_div(groups, block_groups));
  const auto kernel = conv<kKind, kWidth, kChannels, kRows, kWork>;
  return launch(kernel, grid, block, 0, stream, p.programmatic != 0, Params(p));
}

template <Kind kKind, int kChannels, int kRows, Work kWork>
int32_t launch_width(const ls_conv_params& p, ls_stream_t stream) {
  switch (p.width) {
    case 2: return launch_conv<kKind, 2, kChannels, kRows, kWork>(p, stream);
    case 3: return launch_conv<kKind, 3, kChannels, kRows, kWork>(p, stream);
    case 4: return launch_conv<kKind, 4, kChannels, kRows, kWork>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

template <Kind kKind, int kRows, Work kWork>
int32_t launch_channels(const ls_conv_params& p, ls_stream_t stream) {
  switch (p.channels_per_thread) {
    case 2: return launch_width<kKind, 2, kRows, kWork>(p, stream);
    case 4: return launch_width<kKind, 4, kRows, kWork>(p, stream);
    case 8: return launch_width<kKind, 8, kRows, kWork>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

template <Work kWork>
int32_t launch_verify(const ls_conv_params& p, ls_stream_t stream) {
  if (p.rows.max_rows == 1) return launch_channels<Kind::Decode, 1, kWork>(p, stream);
  switch (p.rows_per_thread) {
    case 1: return launch_channels<Kind::Verify, 1, kWork>(p, stream);
    case 2: return launch_channels<Kind::Verify, 2, kWork>(p, stream);
    case 4: return launch_channels<Kind::Verify, 4, kWork>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::conv
