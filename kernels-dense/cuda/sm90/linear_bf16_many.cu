// Linear layers by WGMMA, bf16: more than 64 rows at a time.
#include "stream.cuh"

namespace lockstep::dense::sm90 {
template <Kind kKind>
int32_t launch_wide(const Layer& layer, int32_t columns, int32_t blocks, bool programmatic, ls_stream_t stream) {
  switch (columns) {
    case 96: return launch_columns<96, 2, kKind, 1>(layer, blocks, programmatic, stream);
    case 128: return launch_columns<128, 2, kKind, 1>(layer, blocks, programmatic, stream);
    case 192: return launch_columns<192, 2, kKind, 1>(layer, blocks, programmatic, stream);
    case 256: return launch_columns<256, 2, kKind, 1>(layer, blocks, programmatic, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

int32_t launch_many(const Layer& layer, int32_t columns, int32_t blocks, bool programmatic, ls_stream_t stream) {
  return launch_wide<Kind::Linear>(layer, columns, blocks, programmatic, stream);
}
int32_t launch_many_gated(const Layer& layer, int32_t columns, int32_t blocks, bool programmatic, ls_stream_t stream) {
  return launch_wide<Kind::Gated>(layer, columns, blocks, programmatic, stream);
}
}  // namespace lockstep::dense::sm90
