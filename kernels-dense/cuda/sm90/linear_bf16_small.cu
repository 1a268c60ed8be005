// Linear layers by WGMMA, bf16: weights too small for tiles of 128 features.
#include "stream.cuh"

namespace lockstep::dense::sm90 {
int32_t launch_small(const Layer& layer, const Cut& cut, ls_stream_t stream) {
  return launch_few<1, Kind::Linear, 2>(layer, cut, stream);
}
}  // namespace lockstep::dense::sm90
