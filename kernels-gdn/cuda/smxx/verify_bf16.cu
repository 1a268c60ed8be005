#include "smxx/rounds.cuh"

extern "C" int32_t ls_gdn_verify_smxx(const ls_gdn_params* p, ls_stream_t stream) {
  return lockstep::gdn::launch_mode<lockstep::gdn::Mode::Verify>(*p, stream);
}
