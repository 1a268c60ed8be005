// Four small grids in a row: shape, narrow, list, choose. All are launched always, since what a slot asks for is device
// data; blocks with nothing to do end at once.
//
// What it should take at 32 rows of 248,320 ids (H200, 4.55 TB/s from memory; three quarters of the logits stay in the
// L2 cache): shape 8 us, all from memory; narrow 8 us without filters, where noise costs as much as the reads, and 9 with
// them; list 6 us; choose 2 us, or 4 where it sorts. Greedy rows pass through three empty grids, 3 us.
#pragma once

#include "choose.cuh"

namespace lockstep::spec {

static_assert(sizeof(ls_spec_rules) == 112, "src/sys.rs describes this layout");
static_assert(sizeof(ls_spec_sample_params) == 296, "src/sys.rs describes this layout");

template <int kVectors>
int32_t launch_passes(const ls_spec_sample_params& p, ls_stream_t stream) {
  const int chunks = ceil_div(p.valid, chunk_ids(kVectors));
  const dim3 grid(chunks, p.rows.row_count);
  const bool aligned = aligned_rows(p.logits, p.logits_stride);
  int32_t status = launch(shape<kVectors>, grid, kThreads, 0, stream, p.programmatic != 0, p, aligned);
  if (status == LS_OK) status = launch(narrow<kVectors>, grid, kThreads, 0, stream, true, p, aligned);
  if (status == LS_OK) status = launch(list<kVectors>, grid, kThreads, 0, stream, true, p, aligned);
  if (status != LS_OK) return status;
  return launch(choose, p.rows.row_count, kChooseThreads, 0, stream, true, p, aligned, chunks);
}

inline int32_t launch_sample(const ls_spec_sample_params& p, ls_stream_t stream) {
  constexpr int32_t kMostRows = 65535;  // of a grid's y
  constexpr int32_t kMostIds = 1 << 23;
  const int32_t rows = p.rows.row_count;
  if (rows < 1 || rows > kMostRows || p.valid < 1 || p.valid > kMostIds || p.noise < 0 || p.noise > 1) {
    return LS_ERR_UNSUPPORTED;
  }
  switch (p.vectors) {
    case 1: return launch_passes<1>(p, stream);
    case 2: return launch_passes<2>(p, stream);
    case 4: return launch_passes<4>(p, stream);
    case 8: return launch_passes<8>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::spec
