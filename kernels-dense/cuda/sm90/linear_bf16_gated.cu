// Linear layers by WGMMA, bf16: SiLU(gate) * up.
#include "stream.cuh"

namespace lockstep::dense::sm90 {
int32_t launch_gated(const Layer& layer, const Cut& cut, ls_stream_t stream) {
  return launch_few<2, Kind::Gated, 1>(layer, cut, stream);
}
}  // namespace lockstep::dense::sm90
