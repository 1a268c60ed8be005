// Sampling: penalties, filters, Gumbel's draw.
#include "sample.cuh"

extern "C" int32_t ls_spec_sample_smxx(const ls_spec_sample_params* p, ls_stream_t stream) {
  return lockstep::spec::launch_sample(*p, stream);
}
