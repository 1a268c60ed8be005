// The zero-centred norm, bf16.
#include "norm.cuh"

extern "C" int32_t ls_dense_norm_smxx(const ls_dense_norm_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  if (!short_strides({p->out_stride, p->x_stride})) return LS_ERR_UNSUPPORTED;
  NormParams all = {};
  all.left = {static_cast<char*>(p->out), static_cast<const char*>(p->x), static_cast<const char*>(p->weight),
              bytes_of(p->x_stride)};
  all.out_bytes = bytes_of(p->out_stride);
  const NormLaunch launch = {p->rows, p->n, p->vectors_per_thread, p->programmatic != 0, stream};
  return launch_width<Kind::Plain>(all, launch, p->eps);
}
