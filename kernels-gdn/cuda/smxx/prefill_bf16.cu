#include "smxx/prefill.cuh"

extern "C" int32_t ls_gdn_prefill_smxx(const ls_gdn_params* p, ls_stream_t stream) {
  using namespace lockstep::gdn;
  switch (p->tile) {
    case 16: return launch_prefill<1>(*p, stream);
    case 32: return launch_prefill<2>(*p, stream);
    case 64: return launch_prefill<4>(*p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}
