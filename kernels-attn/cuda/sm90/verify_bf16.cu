// Verification by WGMMA, bf16; the heads' sizes have files of their own.
#include "merge.cuh"

namespace lockstep::attn {
namespace sm90 {
template <int kD>
int32_t launch_verify(const ls_attn_params& p, ls_stream_t stream);
extern template int32_t launch_verify<128>(const ls_attn_params& p, ls_stream_t stream);
extern template int32_t launch_verify<256>(const ls_attn_params& p, ls_stream_t stream);
}  // namespace sm90

template <int kD>
int32_t launch_both(const ls_attn_params& p, ls_stream_t stream) {
  const int32_t status = sm90::launch_verify<kD>(p, stream);
  return status != LS_OK || p.max_pieces == 0 ? status : launch_merge<kD>(p, stream);
}
}  // namespace lockstep::attn

extern "C" int32_t ls_attn_verify_sm90(const ls_attn_params* p, ls_stream_t stream) {
  using namespace lockstep::attn;
  switch (p->head_dim) {
    case 128: return launch_both<128>(*p, stream);
    case 256: return launch_both<256>(*p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}
