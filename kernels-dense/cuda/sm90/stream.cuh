// Linear layers by WGMMA: one warp streams the weight through a deep ring, one or two warpgroups multiply.
//
// A weight is read once, at the speed of memory, and everything else hides behind that. What it waits for is known
// before the preceding kernel is done: the ring is full of weights when the first row of x comes.
#pragma once

#include "consume.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/tensor_map.cuh"

namespace lockstep::dense::sm90 {

// One warp: its lanes fill the ring together, a stage each, so that it takes one copy's time; one keeps it full.
template <int kN, int kGroups, Kind kKind>
struct Producer {
  using S = Shared<kN, kGroups, kKind>;

  const Layer& layer;
  const CUtensorMap &weight, &x;
  S& shared;
  const uint64_t once, again;

  __device__ __forceinline__ void bring_weights(const Walk& walk, int stage) const {
    Barrier& full = shared.full[stage];
    full.arrive_and_expect(S::kStepBytes);
    const int k = walk.k();
    uint8_t* const to = shared.weights[stage];
    if constexpr (kKind == Kind::Gated) {
      const int first = walk.item.tile * kTileFeatures;
      tensor_load(to, weight, {k, first, 0, 0, 0}, full, once);
      tensor_load(to + kTileBytes, weight, {k, layer.n + first, 0, 0, 0}, full, once);
    } else {
      tensor_load(to, weight, {k, walk.item.tile * (kGroups * kTileFeatures), 0, 0, 0}, full, once);
    }
  }
  __device__ __forceinline__ void bring_rows(const Walk& walk, int stage) const {
    const int k = walk.k();
    tensor_load(shared.rows[stage], x, {k, 0, 0, 0, 0}, shared.full[stage], again);
  }

  __device__ __forceinline__ void run(const Deal& deal) const {
    const Share share(deal);
    const int lane = threadIdx.x % 32;
    const Walk own(share, lane);
    const bool fills = lane < S::kStages && own.there();
    if (fills) bring_weights(own, lane);
    pdl::wait();
    pdl::launch_dependents();
    if (fills) bring_rows(own, lane);
    if (lane != 0) return;
    Walk ahead(share, S::kStages);
#pragma unroll 1
    for (Cursor<S::kStages> at; ahead.there(); ahead.next(), at.advance()) {
      shared.empty[at.stage].wait(at.parity);
      bring_weights(ahead, at.stage);
      bring_rows(ahead, at.stage);
    }
  }
};

template <int kN, int kGroups, Kind kKind>
__global__ void __launch_bounds__(kGroups* kWarpgroup + 32, 1)
    linear(const Layer layer, const Deal deal, bool keep, const __grid_constant__ CUtensorMap weight,
           const __grid_constant__ CUtensorMap x) {
  using S = Shared<kN, kGroups, kKind>;
  extern __shared__ uint8_t bytes[];
  S& shared = *reinterpret_cast<S*>(bytes + (1024 - shared_address(bytes) % 1024) % 1024);
  if (threadIdx.x == S::kConsumers) prefetch_map(weight), prefetch_map(x);
  if (threadIdx.x < S::kStages) {
    shared.full[threadIdx.x].init(1), shared.empty[threadIdx.x].init(4 * kGroups);
    Barrier::publish();
  }
  __syncthreads();
  if (threadIdx.x >= S::kConsumers) {
    const uint64_t again = policy_read_again();
    Producer<kN, kGroups, kKind>{layer, weight, x, shared, keep ? again : policy_read_once(), again}.run(deal);
  } else {
    pdl::wait();
    Consumer<kN, kGroups, kKind>(layer, shared, deal).run();
  }
}

// A matrix of bf16 for boxes of 64 elements of `box_rows` rows.
inline int32_t matrix_map(const void* base, int32_t rows, int32_t k, int64_t stride, uint32_t box_rows,
                          CUtensorMapL2promotion fetch, CUtensorMap& map) {
  const uint64_t bytes = uint64_t(stride) * 2, all = bytes * rows;
  const TensorMap matrix = {base,     {uint64_t(k), uint64_t(rows), 1, 1, 1}, {bytes, all, all, all},
                            box_rows, fetch};
  return matrix.encode(map);
}

template <int kN, int kGroups, Kind kKind>
int32_t launch_columns(const Layer& all, int32_t blocks, bool programmatic, ls_stream_t stream) {
  using S = Shared<kN, kGroups, kKind>;
  constexpr size_t kBytes = sizeof(S) + 1024;
  static_assert(kBytes <= kMostShared, "kStages counts everything");
  constexpr int kFeatures = kKind == Kind::Gated ? kTileFeatures : kGroups * kTileFeatures;
  const int32_t units = ceil_div(all.n, kFeatures) * all.segments;
  if (blocks < 1 || blocks > units || blocks > LS_DENSE_MAX_BLOCKS) return LS_ERR_UNSUPPORTED;
  if (int64_t(units) * all.segment_steps > INT32_MAX) return LS_ERR_UNSUPPORTED;
  if (all.segments > 1 && units / all.segments > LS_DENSE_MAX_SPLIT_TILES) return LS_ERR_UNSUPPORTED;
  const auto kernel = linear<kN, kGroups, kKind>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kBytes));
  if (error != cudaSuccess) return int32_t(error);
  const Deal deal(all, units, blocks);
  CUtensorMap weight, x;
  constexpr uint32_t kBox = kKind == Kind::Gated ? kTileFeatures : kGroups * kTileFeatures;
  int32_t status = matrix_map(all.weight, all.valid, all.k, all.weight_stride, kBox,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, weight);
  for (int32_t first = 0; first < all.rows && status == LS_OK; first += kN) {
    const Layer layer = all.block(first, all.rows - first < kN ? all.rows - first : kN);
    status = matrix_map(layer.x, layer.rows, layer.k, layer.x_stride, kN, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, x);
    if (status != LS_OK) break;
    // The next rows read the weight again.
    const bool keep = all.rows > kN;
    status = launch(kernel, blocks, S::kConsumers + 32, kBytes, stream, programmatic, layer, deal, keep, weight, x);
  }
  return status;
}

// Up to 64 rows.
template <int kGroups, Kind kKind>
int32_t launch_few(const Layer& layer, int32_t columns, int32_t blocks, bool programmatic, ls_stream_t stream) {
  switch (columns) {
    case 8: return launch_columns<8, kGroups, kKind>(layer, blocks, programmatic, stream);
    case 16: return launch_columns<16, kGroups, kKind>(layer, blocks, programmatic, stream);
    case 24: return launch_columns<24, kGroups, kKind>(layer, blocks, programmatic, stream);
    case 32: return launch_columns<32, kGroups, kKind>(layer, blocks, programmatic, stream);
    case 48: return launch_columns<48, kGroups, kKind>(layer, blocks, programmatic, stream);
    case 64: return launch_columns<64, kGroups, kKind>(layer, blocks, programmatic, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::dense::sm90
