// Linear layers by WGMMA, bf16: more than 64 rows at a time.
#include "stream.cuh"

namespace lockstep::dense::sm90 {
template <Kind kKind>
int32_t launch_wide(const Layer& layer, const Cut& cut, ls_stream_t stream) {
  switch (cut.columns) {
    case 96: return launch_columns<96, 2, kKind, 1>(layer, cut, stream);
    case 128: return launch_columns<128, 2, kKind, 1>(layer, cut, stream);
    case 192: return launch_columns<192, 2, kKind, 1>(layer, cut, stream);
    case 256: return launch_columns<256, 2, kKind, 1>(layer, cut, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

int32_t launch_many(const Layer& layer, const Cut& cut, ls_stream_t stream) {
  return launch_wide<Kind::Linear>(layer, cut, stream);
}
int32_t launch_many_gated(const Layer& layer, const Cut& cut, ls_stream_t stream) {
  return launch_wide<Kind::Gated>(layer, cut, stream);
}
}  // namespace lockstep::dense::sm90
