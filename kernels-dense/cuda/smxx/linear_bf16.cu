// Linear layers by mma.sync, bf16.
#include "dense.cuh"

extern "C" int32_t ls_dense_linear_smxx(const ls_dense_linear_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  const Layer layer(*p);
  return p->epilogue == LS_DENSE_SILU_MUL
             ? launch_products<Kind::Gated>(layer, p->columns, p->programmatic != 0, stream)
             : launch_products<Kind::Linear>(layer, p->columns, p->programmatic != 0, stream);
}
