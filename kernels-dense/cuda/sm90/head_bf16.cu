// Logits and their argmax by WGMMA, bf16.
#include "stream.cuh"

extern "C" int32_t ls_dense_head_sm90(const ls_dense_head_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  const Layer layer(*p);
  const sm90::Cut cut = {p->columns, p->blocks, 1, p->programmatic != 0};
  switch (p->columns) {
    case 96: return sm90::launch_columns<96, 2, Kind::Head, 1>(layer, cut, stream);
    case 128: return sm90::launch_columns<128, 2, Kind::Head, 1>(layer, cut, stream);
    default: return sm90::launch_few<2, Kind::Head, 1>(layer, cut, stream);
  }
}
