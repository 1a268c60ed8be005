// The loads and stores of a verification without its arithmetic: what the bench holds the kernel against.
#include "launch.cuh"

extern "C" int32_t ls_conv_traffic_smxx(const ls_conv_params* p, ls_stream_t stream) {
  using namespace lockstep::conv;
  return launch_verify<Work::TrafficOnly>(*p, stream);
}
