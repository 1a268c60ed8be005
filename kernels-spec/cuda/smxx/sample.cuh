// Four small grids in a row: shape, narrow, list, choose. All are launched always, since what a slot asks for is device
// data; blocks with nothing to do end at once.
//
// What each kind of row costs, in instructions an id, beside the reads of its logits (H200: 4.55 TB/s from memory are 26
// instructions an id that all its multiprocessors can do meanwhile):
//
//   greedy        one read    4     order, comparison
//   no filters    one read   20     the above; a quarter of Philox (12), the least noise against the largest logit (3)
//   few top-k     one read    6     the above; the largest of patches. A block reads about k patches again, and sorts
//   top-p alone   three      57 + 40   weight (37: division, exponential, units), bin and additions (20); then what comes
//                                   before the border draws, and what lies in its bin is listed
//
// The second read leaves out patches that weigh nothing, the third those that do not reach the border.
#pragma once

#include "choose.cuh"
#include "passes.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_rules) == 112, "src/sys.rs describes this layout");
static_assert(sizeof(ls_spec_sample_params) == 320, "src/sys.rs describes this layout");

template <int kVectors>
int32_t launch_all(const ls_spec_sample_params& p, ls_stream_t stream) {
  const int chunks = ceil_div(p.valid, chunk_ids(kVectors));
  const dim3 grid(chunks, p.rows.row_count);
  const bool aligned = aligned_rows(p.logits, p.logits_stride);
  int32_t status = launch(shape<kVectors>, grid, kThreads, 0, stream, p.programmatic != 0, p, aligned);
  if (status == LS_OK) status = launch(narrow<kVectors>, grid, kThreads, 0, stream, true, p, aligned);
  if (status == LS_OK) status = launch(list<kVectors>, grid, kThreads, 0, stream, true, p, aligned);
  if (status != LS_OK) return status;
  return launch(choose, p.rows.row_count, kChooseThreads, 0, stream, true, p, aligned, chunks);
}

int32_t launch_passes(const ls_spec_sample_params& p, ls_stream_t stream) {
  constexpr int32_t kMostRows = 65535;  // of a grid's y
  constexpr int32_t kMostIds = 1 << 23;
  const int32_t rows = p.rows.row_count;
  if (rows < 1 || rows > kMostRows || p.valid < 1 || p.valid > kMostIds) return LS_ERR_UNSUPPORTED;
  switch (p.vectors) {
    case 1: return launch_all<1>(p, stream);
    case 2: return launch_all<2>(p, stream);
    case 4: return launch_all<4>(p, stream);
    case 8: return launch_all<8>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

inline int32_t launch_sample(const ls_spec_sample_params& p, ls_stream_t stream) {
  return p.kind == LS_SPEC_SAMPLE ? launch_passes(p, stream) : LS_ERR_UNSUPPORTED;
}

}  // namespace lockstep::spec
