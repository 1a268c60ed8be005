// Accept, stop, advance, emit, propose.
#include "settle.cuh"

extern "C" int32_t ls_spec_settle_smxx(const ls_spec_settle_params* p, ls_stream_t stream) {
  return lockstep::spec::launch_settle(*p, stream);
}
