// Scripted drafts.
#include "oracle.cuh"

extern "C" int32_t ls_spec_oracle_smxx(const ls_spec_oracle_params* p, ls_stream_t stream) {
  return lockstep::spec::launch_oracle(*p, stream);
}
