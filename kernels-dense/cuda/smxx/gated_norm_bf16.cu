// The gated norm of heads of 128, bf16.
#include "gated_norm.cuh"

extern "C" int32_t ls_dense_gated_norm_smxx(const ls_dense_gated_norm_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  if (!short_strides({p->out_row_stride, p->out_head_stride, p->x_row_stride, p->x_head_stride, p->gate_row_stride,
                      p->gate_head_stride})) {
    return LS_ERR_UNSUPPORTED;
  }
  if (p->heads < 1 || p->heads > kMaxHeads || p->rows < 0) return LS_ERR_UNSUPPORTED;
  if (p->rows == 0) return LS_OK;
  const GatedParams all = {static_cast<char*>(p->out),
                           static_cast<const char*>(p->x),
                           static_cast<const char*>(p->gate),
                           p->weight,
                           bytes_of(p->out_row_stride),
                           bytes_of(p->out_head_stride),
                           bytes_of(p->x_row_stride),
                           bytes_of(p->x_head_stride),
                           bytes_of(p->gate_row_stride),
                           bytes_of(p->gate_head_stride),
                           uint32_t(p->heads),
                           p->eps};
  const dim3 grid(p->rows, lockstep::ceil_div(p->heads, kHeads));
  return lockstep::launch(gated_norm, grid, kWarp * kHeads, 0, stream, p->programmatic != 0, all);
}
