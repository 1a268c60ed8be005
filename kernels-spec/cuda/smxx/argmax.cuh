// The largest logit of every row: a pass over all chunks, and a small kernel that compares what they found.
#pragma once

#include "kernels_spec.h"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "logits.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_argmax_params) == 56, "src/sys.rs describes this layout");

// Grid: x = chunks, y = rows.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) argmax_chunks(const ls_spec_argmax_params p, bool aligned) {
  __shared__ uint64_t warps[kWarps];
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.y;
  Chunk<kVectors> chunk;
  chunk.load(p.logits + row * p.logits_stride, blockIdx.x, p.valid, aligned);
  const uint64_t best = block_max<kThreads>(chunk.template best<false>(blockIdx.x), warps);
  if (threadIdx.x == 0) p.best[row * gridDim.x + blockIdx.x] = best;
}

// Grid: x = rows.
__global__ void __launch_bounds__(kLanes) argmax_rows(const ls_spec_argmax_params p, int chunks) {
  __shared__ uint64_t warps[1];
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.x;
  const uint64_t best = row_max<kLanes>(p.best + row * chunks, chunks, warps);
  if (threadIdx.x == 0) p.choice[row] = best == 0 ? -1 : int32_t(id_of(best));
}

template <int kVectors>
int32_t launch_argmax_chunks(const ls_spec_argmax_params& p, int chunks, ls_stream_t stream) {
  const dim3 grid(chunks, p.rows);
  const bool aligned = aligned_rows(p.logits, p.logits_stride);
  const int32_t status =
      launch(argmax_chunks<kVectors>, grid, kThreads, 0, stream, p.programmatic != 0, p, aligned);
  if (status != LS_OK) return status;
  return launch(argmax_rows, p.rows, kLanes, 0, stream, true, p, chunks);
}

inline int32_t launch_argmax(const ls_spec_argmax_params& p, ls_stream_t stream) {
  constexpr int32_t kMostRows = 65535;  // of a grid's y
  if (p.rows < 1 || p.rows > kMostRows || p.valid < 1) return LS_ERR_UNSUPPORTED;
  const auto chunks = [&](int vectors) { return ceil_div(p.valid, chunk_ids(vectors)); };
  switch (p.vectors) {
    case 1: return launch_argmax_chunks<1>(p, chunks(1), stream);
    case 2: return launch_argmax_chunks<2>(p, chunks(2), stream);
    case 4: return launch_argmax_chunks<4>(p, chunks(4), stream);
    case 8: return launch_argmax_chunks<8>(p, chunks(8), stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::spec
