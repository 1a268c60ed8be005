// What experts said, residual and norm, bf16.
#include "norm.cuh"

namespace lockstep::dense {

int32_t launch_combination_and_norm(const Combination& c, const NormBehind& norm, bool programmatic,
                                    ls_stream_t stream) {
  if (!short_strides({c.out_stride, norm.out_stride})) return LS_ERR_UNSUPPORTED;
  NormParams all = {};
  all.left = {reinterpret_cast<char*>(norm.out), nullptr, reinterpret_cast<const char*>(norm.weight), 0};
  all.residual = reinterpret_cast<char*>(c.out);
  all.out_bytes = bytes_of(norm.out_stride);
  all.residual_bytes = bytes_of(c.out_stride);
  all.combination = c;
  const NormLaunch launch = {c.rows, c.hidden, norm.vectors_per_thread, programmatic, stream};
  return launch_width<Kind::Combination>(all, launch, norm.eps);
}

}  // namespace lockstep::dense
