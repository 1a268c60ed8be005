// Random numbers, fp32: what the engine keeps in fp32 is random too.
#include "random_fill.cuh"

extern "C" int32_t ls_dense_random_fill_f32_smxx(const ls_dense_random_fill_params* p, ls_stream_t stream) {
  return lockstep::dense::launch_random_fill<float>(*p, stream);
}
