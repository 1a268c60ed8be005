// Verification by WGMMA, bf16; the heads' sizes have files of their own.
#include "merge.cuh"

namespace lockstep::attn::sm90 {
template <int kD>
int32_t launch_verify(const ls_attn_params& p, ls_stream_t stream);
extern template int32_t launch_verify<128>(const ls_attn_params& p, ls_stream_t stream);
extern template int32_t launch_verify<256>(const ls_attn_params& p, ls_stream_t stream);
}  // namespace lockstep::attn::sm90

extern "C" int32_t ls_attn_verify_sm90(const ls_attn_params* p, ls_stream_t stream) {
  using namespace lockstep::attn::sm90;
  int32_t status = LS_ERR_UNSUPPORTED;
  if (p->head_dim == 128) status = launch_verify<128>(*p, stream);
  if (p->head_dim == 256) status = launch_verify<256>(*p, stream);
  return status != LS_OK || p->max_pieces == 0 ? status : lockstep::attn::launch_merge(*p, stream);
}
