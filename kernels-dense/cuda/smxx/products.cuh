// Linear layers by mma.sync: the same chains of k16 steps and the same segments as the Hopper path, for every device.
//
// A block of four warps has 64 features (64 of gate and 64 of up), up to 64 columns and all of k, so that segments are
// added where they arise. It is there to be right everywhere; the weight is streamed, nothing else is tuned.
#pragma once

#include "layer.cuh"
#include "lockstep/async.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/mbarrier.cuh"
#include "lockstep/mma.cuh"
#include "lockstep/pdl.cuh"

namespace lockstep::dense {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kStages = 4;
constexpr int kVectors = kRowBytes / kVectorBytes;  // 8: of a row's part of a step

template <int kN, Kind kKind>
struct Products {
  static constexpr int kTiles = kKind == Kind::Gated ? 2 : 1;
  static constexpr int kEights = kN / 8;
  using Sums = float[kTiles][kEights][4];  // see mma.cuh

  struct Stage {
    uint8_t weights[kTiles * kTileFeatures][kRowBytes];  // [features, 64], piece i at i ^ row % 8
    uint8_t rows[kN][kRowBytes];                         // [columns, 64], likewise
  };

  const Layer& layer;
  Stage* const stages;
  const int first_feature, first_column, columns;
  const int warp;
  const Pairs pairs;

  __device__ __forceinline__ Products(const Layer& layer, Stage* stages)
      : layer(layer),
        stages(stages),
        first_feature(blockIdx.x * kTileFeatures),
        first_column(blockIdx.y * kN),
        columns(min(kN, layer.rows - first_column)),
        warp(threadIdx.x / 32),
        pairs(threadIdx.x % 32) {}

  static __device__ __forceinline__ uint32_t place(const uint8_t* rows, int row, int vector) {
    return shared_address(rows) + row * kRowBytes + ((vector ^ row) % kVectors) * kVectorBytes;
  }

  __device__ __forceinline__ void bring_weights(int step) const {
    Stage& stage = stages[step % kStages];
    for (int i = threadIdx.x; i < kTiles * kTileFeatures * kVectors; i += kThreads) {
      const int row = i / kVectors, vector = i % kVectors, k = step * kStep + vector * kVectorBf16;
      const int among = first_feature + row % kTileFeatures;
      const int feature = kKind == Kind::Gated && row >= kTileFeatures ? layer.n + among : among;
      const bool there = k < layer.k && among < layer.n && feature < layer.valid;
      const __nv_bfloat16* const from = layer.weight + (there ? feature * layer.weight_stride + k : 0);
      cp_async_16(place(stage.weights[0], row, vector), from, there);
    }
  }
  __device__ __forceinline__ void bring_rows(int step) const {
    Stage& stage = stages[step % kStages];
    for (int i = threadIdx.x; i < kN * kVectors; i += kThreads) {
      const int row = i / kVectors, vector = i % kVectors, k = step * kStep + vector * kVectorBf16;
      const bool there = k < layer.k && row < columns;
      const __nv_bfloat16* const from = layer.x + (there ? (first_column + row) * layer.x_stride + k : 0);
      cp_async_16(place(stage.rows[0], row, vector), from, there);
    }
  }

  // Adds the products of a step's four k16 steps, ascending.
  __device__ __forceinline__ void multiply(Sums& d, const Stage& stage) const {
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      uint32_t a[kTiles][2][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          ldmatrix_x4(a[tile][k], place(stage.weights[0], tile * kTileFeatures + 16 * warp + pairs.lane % 16,
                                             4 * two + 2 * k + pairs.lane / 16));
        }
      }
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        uint32_t b[4];
        ldmatrix_x4(b, place(stage.rows[0], 8 * eight + pairs.lane % 8, 4 * two + pairs.lane / 8));
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t half[2] = {b[2 * k], b[2 * k + 1]};
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) mma_m16n8k16<__nv_bfloat16>(d[tile][eight], a[tile][k], half);
        }
      }
    }
  }

  __device__ __forceinline__ void run() const {
    // The weights do not wait for the preceding kernel.
    const int ahead = min(kStages - 1, layer.steps);
    for (int step = 0; step < ahead; ++step) bring_weights(step);
    pdl::wait();
    pdl::launch_dependents();
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < ahead) bring_rows(step);
      cp_async_commit_group();  // the first one has all weights so far
    }
    Sums total = {}, d = {};
    int left = layer.segment_steps;
    for (int step = 0; step < layer.steps; ++step) {
      cp_async_wait_group<kStages - 2>();
      __syncthreads();
      const int next = step + kStages - 1;
      if (next < layer.steps) bring_weights(next), bring_rows(next);
      cp_async_commit_group();
      multiply(d, stages[step % kStages]);
      if (--left == 0 || step + 1 == layer.steps) {
        const bool first = step < layer.segment_steps;
        left = layer.segment_steps;
        for_sums([&](int tile, int eight, int i) {
          float& sum = total[tile][eight][i];
          sum = first ? d[tile][eight][i] : __fadd_rn(sum, d[tile][eight][i]);
          d[tile][eight][i] = 0.0f;
        });
      }
    }
    finish(total);
  }

  template <typename Body>
  static __device__ __forceinline__ void for_sums(Body body) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i) body(tile, eight, i);
      }
    }
  }

  __device__ __forceinline__ void finish(const Sums& d) const {
    Best best[kEights];
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      best[eight] = nobody();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int feature = first_feature + 16 * warp + 8 * half + pairs.feature();
        const int column = 8 * eight + pairs.column();
        const float2 sums = pairs.trade(d[0][eight][2 * half], d[0][eight][2 * half + 1]);
        float2 up = {};
        if constexpr (kKind == Kind::Gated) up = pairs.trade(d[1][eight][2 * half], d[1][eight][2 * half + 1]);
        if (feature >= layer.n || column >= columns) continue;
        if constexpr (kKind == Kind::Head) {
          store_logits(layer, feature, first_column + column, sums, best[eight]);
        } else if constexpr (kKind == Kind::Gated) {
          store_gated(layer, feature, first_column + column, pack_bf16(sums.x, sums.y), pack_bf16(up.x, up.y));
        } else {
          store_sums(layer, feature, first_column + column, pack_bf16(sums.x, sums.y));
        }
      }
    }
    if constexpr (kKind == Kind::Head) candidates(best);
  }

  // The best of this block's ids, for choose_best.
  __device__ __forceinline__ void candidates(Best (&best)[kEights]) const {
    if (layer.argmax == nullptr) return;
    __shared__ Best of_warps[kWarps][kN];
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      improve_across<8, 16>(best[eight]);
      if (pairs.lane < 8) of_warps[warp][8 * eight + pairs.column()] = best[eight];
    }
    __syncthreads();
    if (threadIdx.x < columns) {
      Best own = of_warps[0][threadIdx.x];
      for (int i = 1; i < kWarps; ++i) improve(own, of_warps[i][threadIdx.x].value, of_warps[i][threadIdx.x].id);
      Best* const to = reinterpret_cast<Best*>(layer.scratch);  // [tile, row]
      to[int64_t(blockIdx.x) * layer.rows + first_column + threadIdx.x] = own;
    }
  }
};

template <int kN, Kind kKind>
__global__ void __launch_bounds__(kThreads) products(const Layer layer) {
  extern __shared__ uint4 bytes[];
  Products<kN, kKind>(layer, reinterpret_cast<typename Products<kN, kKind>::Stage*>(bytes)).run();
}

template <int kN, Kind kKind>
int32_t launch_products(const Layer& layer, bool programmatic, ls_stream_t stream) {
  constexpr size_t kBytes = kStages * sizeof(typename Products<kN, kKind>::Stage);
  static_assert(kBytes <= 99 * 1024, "what compute capability 8.6 has");
  if (layer.rows == 0) return LS_OK;
  const auto kernel = products<kN, kKind>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kBytes));
  if (error != cudaSuccess) return int32_t(error);
  const dim3 grid(ceil_div(layer.n, kTileFeatures), ceil_div(layer.rows, kN));
  return launch(kernel, grid, kThreads, kBytes, stream, programmatic, layer);
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
