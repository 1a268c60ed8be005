// Linear layers by WGMMA, bf16: weights whose k is cut into segments.
#include "stream.cuh"

namespace lockstep::dense::sm90 {
int32_t launch_segments(const Layer& layer, const Cut& cut, ls_stream_t stream) {
  return launch_few<2, Kind::Linear, 2>(layer, cut, stream);
}
}  // namespace lockstep::dense::sm90
