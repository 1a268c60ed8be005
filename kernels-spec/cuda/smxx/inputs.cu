// Row lists of the next pass.
#include "inputs.cuh"

extern "C" int32_t ls_spec_inputs_smxx(const ls_spec_inputs_params* p, ls_stream_t stream) {
  return lockstep::spec::launch_inputs(*p, stream);
}
