// Four small grids in a row: shape, narrow, list, choose. All are launched always, since what a slot asks for is device
// data; blocks with nothing to do end at once.
//
// What each kind of row costs, in instructions an id, beside the reads of its logits (H200: 4.55 TB/s from memory are 26
// instructions an id that all its multiprocessors can do meanwhile, half as many where they are not of floats):
//
//   greedy        one read    1     comparison
//   no filters    one read   18     the above; a quarter of Philox (9), the least noise against the largest logit (3)
//   few top-k     one read    3     the above; the largest of patches. A block reads about k patches again
//   top-p alone   two more    8 + 60   bin, addition; then weight (37: division, exponential, units), bin, and the draw
//                                   of what comes before the border
//
// The third read looks no closer at patches that weigh nothing.
#pragma once

#include <algorithm>

#include "choose.cuh"
#include "passes.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_rules) == 112, "src/sys.rs describes this layout");
static_assert(sizeof(ls_spec_sample_params) == 352, "src/sys.rs describes this layout");

template <int kBatch>
int32_t launch_all(const ls_spec_sample_params& p, ls_stream_t stream) {
  const int parts = ceil_div(p.valid, chunk_ids(p.vectors)), rows = p.rows.row_count;
  const auto blocks = [&](int vectors, int64_t most) {
    return int(std::min(int64_t(ceil_div(p.valid, chunk_ids(vectors))) * rows, most));
  };
  const bool aligned = aligned_rows(p.logits, p.logits_stride);
  int32_t status = launch(shape<kBatch>, dim3(parts, rows), kThreads, 0, stream, p.programmatic != 0, p, aligned);
  if (status != LS_OK) return status;
  const int narrowing = blocks(narrow_vectors(p.vectors), p.blocks + p.blocks / 2);
  status = launch(narrow<kBatch>, narrowing, kThreads, 0, stream, true, p, aligned, parts);
  if (status != LS_OK) return status;
  status = launch(list<kBatch>, blocks(p.vectors, p.blocks), kThreads, 0, stream, true, p, aligned, parts);
  if (status != LS_OK) return status;
  return launch(choose, rows, kChooseThreads, 0, stream, true, p, aligned, parts);
}

int32_t launch_passes(const ls_spec_sample_params& p, ls_stream_t stream) {
  constexpr int32_t kMostRows = 65535;  // of a grid's y
  constexpr int32_t kMostIds = 1 << 23;
  const int32_t rows = p.rows.row_count;
  if (rows < 1 || rows > kMostRows || p.valid < 1 || p.valid > kMostIds) return LS_ERR_UNSUPPORTED;
  if (p.vectors < 1 || p.vectors > kMostIds / kStep || p.blocks < 1) return LS_ERR_UNSUPPORTED;
  if (p.vectors % 4 == 0) return launch_all<4>(p, stream);
  if (p.vectors % 2 == 0) return launch_all<2>(p, stream);
  return launch_all<1>(p, stream);
}

inline int32_t launch_sample(const ls_spec_sample_params& p, ls_stream_t stream) {
  return p.kind == LS_SPEC_SAMPLE ? launch_passes(p, stream) : LS_ERR_UNSUPPORTED;
}

}  // namespace lockstep::spec
