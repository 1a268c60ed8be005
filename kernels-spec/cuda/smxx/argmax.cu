// Argmax of fp32 logits.
#include "argmax.cuh"

extern "C" int32_t ls_spec_argmax_smxx(const ls_spec_argmax_params* p, ls_stream_t stream) {
  return lockstep::spec::launch_argmax(*p, stream);
}
