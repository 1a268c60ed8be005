// Two norms side by side, bf16.
#include "norm.cuh"

extern "C" int32_t ls_dense_concat_norm_smxx(const ls_dense_concat_norm_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  if (!short_strides({p->out_stride, p->left_stride, p->right_stride})) return LS_ERR_UNSUPPORTED;
  char* const out = static_cast<char*>(p->out);
  NormParams all = {};
  all.left = {out, static_cast<const char*>(p->left), static_cast<const char*>(p->left_weight),
              bytes_of(p->left_stride)};
  all.right = {out + bytes_of(p->n), static_cast<const char*>(p->right), static_cast<const char*>(p->right_weight),
               bytes_of(p->right_stride)};
  all.out_bytes = bytes_of(p->out_stride);
  const NormLaunch launch = {p->rows, p->n, p->vectors_per_thread, p->programmatic != 0, stream};
  return launch_width<Kind::Concat>(all, launch, p->eps);
}
