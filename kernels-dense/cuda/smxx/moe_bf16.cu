// The mixture of experts by mma.sync, bf16.
#include "moe.cuh"

extern "C" int32_t ls_dense_moe_smxx(const ls_dense_moe_params* p, ls_stream_t stream) {
  return lockstep::dense::launch_moe(*p, stream);
}
