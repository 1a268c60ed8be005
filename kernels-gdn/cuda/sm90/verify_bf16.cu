#include "sm90/persistent.cuh"

extern "C" int32_t ls_gdn_verify_sm90(const ls_gdn_params* p, ls_stream_t stream) {
  return lockstep::gdn::launch_persistent(*p, stream);
}
