// Logits and their argmax by mma.sync, bf16.
#include "dense.cuh"

namespace lockstep::dense {

// One warp for a row: the best of its tiles.
__global__ void __launch_bounds__(32) choose_best(const Layer layer, int32_t tiles) {
  pdl::wait();
  pdl::launch_dependents();
  const Best* const from = reinterpret_cast<const Best*>(layer.scratch);  // [tile, row]
  Best best = nobody();
  for (int tile = threadIdx.x; tile < tiles; tile += 32) {
    const Best other = from[int64_t(tile) * layer.rows + blockIdx.x];
    improve(best, other.value, other.id);
  }
  improve_across<1, 16>(best);
  if (threadIdx.x == 0) layer.argmax[blockIdx.x] = id_of(best);
}

}  // namespace lockstep::dense

extern "C" int32_t ls_dense_head_smxx(const ls_dense_head_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  const Layer layer(*p);
  const bool programmatic = p->programmatic != 0;
  const int32_t status = launch_products<Kind::Head>(layer, p->columns, programmatic, stream);
  if (status != LS_OK || layer.argmax == nullptr || layer.rows == 0) return status;
  const int32_t tiles = lockstep::ceil_div(layer.n, kTileFeatures);
  return lockstep::launch(choose_best, layer.rows, 32, 0, stream, programmatic, layer, tiles);
}
