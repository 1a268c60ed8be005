// Carry, keep, take last.
#include "hidden.cuh"

extern "C" int32_t ls_spec_hidden_smxx(const ls_spec_hidden_params* p, ls_stream_t stream) {
  return lockstep::spec::launch_hidden(*p, stream);
}
