// Tiles of products by mma.sync: the same chains of k16 steps and the same segments as the Hopper path, for every device.
//
// A block has 16 features for each warp (as many of gate and of up), up to 64 columns and a range of k, so that segments
// are added where they arise. Which rows of which weight meet which rows of x, and where the sums go, is the operands'.
#pragma once

#include "layer.cuh"
#include "lockstep/async.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/mbarrier.cuh"
#include "lockstep/mma.cuh"
#include "lockstep/pdl.cuh"

namespace lockstep::dense {

constexpr int kVectors = kRowBytes / kVectorBytes;  // 8: of a row's part of a step
constexpr int kMostShared = 99 * 1024;              // what compute capability 8.6 has

// kN: columns.
template <int kN, Kind kKind, int kWarps, int kStages>
struct Tile {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kFeatures = 16 * kWarps;
  static constexpr int kTiles = kKind == Kind::Gated ? 2 : 1;
  static constexpr int kEights = kN / 8;
  static_assert(kFeatures % kVectors == 0 && kN % kVectors == 0, "the swizzle's period");

  struct Stage {
    uint8_t weights[kTiles * kFeatures][kRowBytes];  // [features, 64], piece i at i ^ row % 8
    uint8_t rows[kN][kRowBytes];                     // [columns, 64], likewise
  };
  static constexpr size_t kBytes = kStages * sizeof(Stage);
  static_assert(kBytes <= kMostShared);

  using Sums = float[kTiles][kEights][4];  // see mma.cuh

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
};

// What the operands of a block are:
//   layer             k, n, steps and segments, and where sums are stored
//   first_feature     of the output
//   columns           at most kN; often fewer, if kRagged
//   weight(feature, up)   a row of the weight, null where there is none; `up`: of the second tile
//   x(column)         a row of x, for column < columns
//   out(column)       the row of the output
template <int kN, Kind kKind, int kWarps, int kStages, typename Operands>
struct Products {
  using T = Tile<kN, kKind, kWarps, kStages>;
  using Stage = typename T::Stage;
  using Sums = typename T::Sums;

  const Operands& operands;
  Stage* const stages;
  const int warp;
  const Pairs pairs;
  int begin, end;  // steps

  __device__ __forceinline__ Products(const Operands& operands, Stage* stages, int begin, int end)
      : operands(operands), stages(stages), warp(threadIdx.x / 32), pairs(threadIdx.x % 32), begin(begin), end(end) {}
  __device__ __forceinline__ Products(const Operands& operands, Stage* stages)
      : Products(operands, stages, 0, operands.layer.steps) {}

  static __device__ __forceinline__ uint32_t place(const uint8_t* rows, int row, int vector) {
    return shared_address(rows) + row * kRowBytes + ((vector ^ row) % kVectors) * kVectorBytes;
  }
  __device__ __forceinline__ void bring(uint8_t* to, int row, int vector, int step, const __nv_bfloat16* from) const {
    const int k = step * kStep + vector * kVectorBf16;
    const bool there = from != nullptr && k < operands.layer.k;
    cp_async_16(place(to, row, vector), there ? from + k : operands.layer.weight, there);
  }

  __device__ __forceinline__ void bring_weights(int step) const {
    Stage& stage = stages[(step - begin) % kStages];
    for (int i = threadIdx.x; i < T::kTiles * T::kFeatures * kVectors; i += T::kThreads) {
      const int row = i / kVectors, feature = operands.first_feature + row % T::kFeatures;
      const bool up = kKind == Kind::Gated && row >= T::kFeatures;
      bring(stage.weights[0], row, i % kVectors, step, operands.weight(feature, up));
    }
  }
  __device__ __forceinline__ void bring_rows(int step) const {
    Stage& stage = stages[(step - begin) % kStages];
    const int rows = Operands::kRagged ? ceil_div(operands.columns, 8) * 8 : kN;
    for (int i = threadIdx.x; i < rows * kVectors; i += T::kThreads) {
      const int row = i / kVectors;
      bring(stage.rows[0], row, i % kVectors, step, row < operands.columns ? operands.x(row) : nullptr);
    }
  }

  // Adds the products of a step's four k16 steps, ascending.
  __device__ __forceinline__ void multiply(Sums& d, const Stage& stage) const {
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      uint32_t a[T::kTiles][2][4];
#pragma unroll
      for (int tile = 0; tile < T::kTiles; ++tile) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          ldmatrix_x4(a[tile][k], place(stage.weights[0], tile * T::kFeatures + 16 * warp + pairs.lane % 16,
                                             4 * two + 2 * k + pairs.lane / 16));
        }
      }
#pragma unroll
      for (int eight = 0; eight < T::kEights; ++eight) {
        // A few rows of many: the same for all lanes.
        if (Operands::kRagged && 8 * eight >= operands.columns) continue;
        uint32_t b[4];
        ldmatrix_x4(b, place(stage.rows[0], 8 * eight + pairs.lane % 8, 4 * two + pairs.lane / 8));
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t half[2] = {b[2 * k], b[2 * k + 1]};
#pragma unroll
          for (int tile = 0; tile < T::kTiles; ++tile) mma_m16n8k16<__nv_bfloat16>(d[tile][eight], a[tile][k], half);
        }
      }
    }
  }

  __device__ __forceinline__ int ahead() const { return min(kStages - 1, end - begin); }

  // Weights that do not depend on the preceding kernel may come before pdl::wait().
  __device__ __forceinline__ void bring_first_weights() const {
    for (int step = 0; step < ahead(); ++step) bring_weights(begin + step);
  }

  // After bring_first_weights().
  __device__ __forceinline__ void run(Sums& total) const {
    for (int step = 0; step < kStages - 1; ++step) {
      if (step < ahead()) bring_rows(begin + step);
      cp_async_commit_group();  // the first one has all weights so far
    }
    Sums d = {};
    int left = operands.layer.segment_steps;
    for (int step = begin; step < end; ++step) {
      cp_async_wait_group<kStages - 2>();
      __syncthreads();
      const int next = step + kStages - 1;
      if (next < end) bring_weights(next), bring_rows(next);
      cp_async_commit_group();
      multiply(d, stages[(step - begin) % kStages]);
      if (--left == 0 || step + 1 == end) {
        const bool first = step - begin < operands.layer.segment_steps;
        left = operands.layer.segment_steps;
        T::for_sums([&](int tile, int eight, int i) {
          float& sum = total[tile][eight][i];
          sum = first ? d[tile][eight][i] : __fadd_rn(sum, d[tile][eight][i]);
          d[tile][eight][i] = 0.0f;
        });
      }
    }
  }

  // The same of one segment whose steps all have a stage of their own.
  __device__ __forceinline__ void run_at_once(Sums& total) const {
    for (int step = begin; step < end; ++step) bring_rows(step);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
      if (begin + step < end) multiply(total, stages[step]);
    }
  }

  // Stores the sums; of a head's, `best` gets the best of each column.
  __device__ __forceinline__ void finish(const Sums& d, Best (&best)[T::kEights]) const {
    const Layer& layer = operands.layer;
#pragma unroll
    for (int eight = 0; eight < T::kEights; ++eight) {
      best[eight] = nobody();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int feature = operands.first_feature + 16 * warp + 8 * half + pairs.feature();
        const int column = 8 * eight + pairs.column();
        const float2 sums = pairs.trade(d[0][eight][2 * half], d[0][eight][2 * half + 1]);
        float2 up = {};
        if constexpr (kKind == Kind::Gated) up = pairs.trade(d[1][eight][2 * half], d[1][eight][2 * half + 1]);
        if (feature >= layer.n || column >= operands.columns) continue;
        const int row = operands.out(column);
        if constexpr (kKind == Kind::Head) {
          store_logits(layer, feature, row, sums, best[eight]);
        } else if constexpr (kKind == Kind::Gated) {
          store_gated(layer, feature, row, pack_bf16(sums.x, sums.y), pack_bf16(up.x, up.y));
        } else {
          store_sums(layer, feature, row, pack_bf16(sums.x, sums.y));
        }
      }
    }
  }
};

// Opts in to the tile's shared memory and starts one block for each (x, y, z) of `grid`.
template <typename T, typename... Parameters, typename... Arguments>
int32_t launch_tiles(void (*kernel)(Parameters...), dim3 grid, bool programmatic, ls_stream_t stream,
                     const Arguments&... arguments) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(T::kBytes));
  if (error != cudaSuccess) return int32_t(error);
  return launch(kernel, grid, T::kThreads, T::kBytes, stream, programmatic, arguments...);
}

}  // namespace lockstep::dense
