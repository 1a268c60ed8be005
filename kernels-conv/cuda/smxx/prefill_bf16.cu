// Prefill chunks of any length, bf16.
#include "launch.cuh"

extern "C" int32_t ls_conv_prefill_smxx(const ls_conv_params* p, ls_stream_t stream) {
  using namespace lockstep::conv;
  constexpr int kChannels = 8, kRows = 8;
  return launch_width<Kind::Prefill, kChannels, kRows, Work::Full>(*p, stream);
}
