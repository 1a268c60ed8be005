// The mixture of experts whose layers are streams, bf16.
#include "experts.cuh"

extern "C" int32_t ls_dense_moe_sm90(const ls_dense_moe_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  if ((p->hidden | p->intermediate | p->shared_intermediate) % kStep != 0) return LS_ERR_UNSUPPORTED;
  if (p->multiprocessors < 1) return LS_ERR_UNSUPPORTED;
  if (p->tile_rows != 64 && !(p->tile_rows == 32 && p->columns == 8)) return LS_ERR_UNSUPPORTED;
  return for_parts(*p, stream, [](const Mixture& m) {
    switch (m.p.columns) {
      case 8: return sm90::launch_mixture<8>(m);
      case 16: return sm90::launch_mixture<16>(m);
      case 32: return sm90::launch_mixture<32>(m);
      default: return int32_t(LS_ERR_UNSUPPORTED);
    }
  });
}
