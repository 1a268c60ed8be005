// The rejection chain: accept, or draw from what the draft left out.
#include "rejection.cuh"

extern "C" int32_t ls_spec_rejection_smxx(const ls_spec_rejection_params* p, ls_stream_t stream) {
  return lockstep::spec::launch_rejection(*p, stream);
}
