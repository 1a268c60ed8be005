#include "sm90/persistent.cuh"

extern "C" int32_t ls_gdn_verify_sm90(const ls_gdn_params* p, ls_stream_t stream) {
  using namespace lockstep::gdn;
  switch (p->tile) {
    case 16: return launch_persistent<1>(*p, stream);
    case 32: return launch_persistent<2>(*p, stream);
    case 64: return launch_persistent<4>(*p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}
