// Logits and their argmax by WGMMA, bf16.
#include "stream.cuh"

extern "C" int32_t ls_dense_head_sm90(const ls_dense_head_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  return sm90::launch_few<2, Kind::Head, 1>(Layer(*p), p->columns, p->blocks, p->programmatic != 0, stream);
}
