// Linear layers by WGMMA, bf16; forms that take long to compile have files of their own.
#include "stream.cuh"

namespace lockstep::dense::sm90 {
int32_t launch_segments(const Layer& layer, const Cut& cut, ls_stream_t stream);
int32_t launch_gated(const Layer& layer, const Cut& cut, ls_stream_t stream);
int32_t launch_small(const Layer& layer, const Cut& cut, ls_stream_t stream);
int32_t launch_many(const Layer& layer, const Cut& cut, ls_stream_t stream);
int32_t launch_many_gated(const Layer& layer, const Cut& cut, ls_stream_t stream);
}  // namespace lockstep::dense::sm90

extern "C" int32_t ls_dense_linear_sm90(const ls_dense_linear_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  const Layer layer(*p);
  const bool gated = p->epilogue == LS_DENSE_SILU_MUL, many = p->columns > 64;
  const sm90::Cut cut = {p->columns, p->blocks, p->groups, p->programmatic != 0};
  const auto with = [&](auto launch) { return launch(layer, cut, stream); };
  if (p->tile_rows == 64) return gated || many ? LS_ERR_UNSUPPORTED : with(sm90::launch_small);
  if (p->tile_rows != 128) return LS_ERR_UNSUPPORTED;
  if (many) return gated ? with(sm90::launch_many_gated) : with(sm90::launch_many);
  if (gated) return with(sm90::launch_gated);
  return layer.segments > 1 ? with(sm90::launch_segments) : with(sm90::launch_few<2, Kind::Linear, 1>);
}
