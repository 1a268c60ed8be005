// Linear layers and the head by mma.sync: all rows of x with all rows of one weight.
//
// It is there to be right everywhere; the weight is streamed, nothing else is tuned.
#pragma once

#include "products.cuh"

namespace lockstep::dense {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kStages = 4;
static_assert(16 * kWarps == kTileFeatures);

struct WholeLayer {
  static constexpr bool kRagged = false;
  const Layer& layer;
  const int first_feature, first_column, columns;

  __device__ __forceinline__ WholeLayer(const Layer& layer, int most)
      : layer(layer),
        first_feature(blockIdx.x * kTileFeatures),
        first_column(blockIdx.y * most),
        columns(min(most, layer.rows - first_column)) {}

  __device__ __forceinline__ const __nv_bfloat16* weight(int among, bool up) const {
    const int feature = up ? layer.n + among : among;
    return among < layer.n && feature < layer.valid ? layer.weight + feature * layer.weight_stride : nullptr;
  }
  __device__ __forceinline__ const __nv_bfloat16* x(int column) const {
    return layer.x + (first_column + column) * layer.x_stride;
  }
  __device__ __forceinline__ int out(int column) const { return first_column + column; }
};

// The best of this block's ids, for choose_best.
template <int kEights>
__device__ __forceinline__ void candidates(const WholeLayer& operands, const Pairs& pairs, Best (&best)[kEights]) {
  const Layer& layer = operands.layer;
  if (layer.argmax == nullptr) return;
  __shared__ Best of_warps[kWarps][8 * kEights];
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    improve_across<8, 16>(best[eight]);
    if (pairs.lane < 8) of_warps[threadIdx.x / 32][8 * eight + pairs.column()] = best[eight];
  }
  __syncthreads();
  if (threadIdx.x < operands.columns) {
    Best own = of_warps[0][threadIdx.x];
    for (int i = 1; i < kWarps; ++i) improve(own, of_warps[i][threadIdx.x].value, of_warps[i][threadIdx.x].id);
    Best* const to = reinterpret_cast<Best*>(layer.scratch);  // [tile, row]
    to[int64_t(blockIdx.x) * layer.rows + operands.first_column + threadIdx.x] = own;
  }
}

template <int kN, Kind kKind>
__global__ void __launch_bounds__(kThreads) products(const Layer layer) {
  using P = Products<kN, kKind, kWarps, kStages, WholeLayer>;
  extern __shared__ uint4 bytes[];
  const WholeLayer operands(layer, kN);
  const P products(operands, reinterpret_cast<typename P::Stage*>(bytes));
  // The weights do not wait for the preceding kernel.
  products.bring_first_weights();
  pdl::wait();
  pdl::launch_dependents();
  typename P::Sums sums = {};
  products.run(sums);
  Best best[kN / 8];
  products.finish(sums, best);
  if constexpr (kKind == Kind::Head) candidates(operands, products.pairs, best);
}

template <int kN, Kind kKind>
int32_t launch_products(const Layer& layer, bool programmatic, ls_stream_t stream) {
  if (layer.rows == 0) return LS_OK;
  const dim3 grid(ceil_div(layer.n, kTileFeatures), ceil_div(layer.rows, kN));
  return launch_tiles<Tile<kN, kKind, kWarps, kStages>>(products<kN, kKind>, grid, programmatic, stream, layer);
}

template <Kind kKind>
int32_t launch_products(const Layer& layer, int32_t columns, bool programmatic, ls_stream_t stream) {
  switch (columns) {
    case 8: return launch_products<8, kKind>(layer, programmatic, stream);
    case 16: return launch_products<16, kKind>(layer, programmatic, stream);
    case 32: return launch_products<32, kKind>(layer, programmatic, stream);
    case 64:
      // Two tiles of sums and two of totals would not fit into the registers.
      if constexpr (kKind != Kind::Gated) return launch_products<64, kKind>(layer, programmatic, stream);
      return LS_ERR_UNSUPPORTED;
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::dense
