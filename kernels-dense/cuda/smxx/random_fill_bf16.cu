// Random numbers, bf16.
#include "random_fill.cuh"

extern "C" int32_t ls_dense_random_fill_bf16_smxx(const ls_dense_random_fill_params* p, ls_stream_t stream) {
  return lockstep::dense::launch_random_fill<__nv_bfloat16>(*p, stream);
}
