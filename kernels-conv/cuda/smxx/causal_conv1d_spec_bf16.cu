// Decode and verification rows, bf16.
#include "launch.cuh"

extern "C" int32_t ls_conv_verify_smxx(const ls_conv_params* p, ls_stream_t stream) {
  using namespace lockstep::conv;
  return launch_verify<Work::Full>(*p, stream);
}
