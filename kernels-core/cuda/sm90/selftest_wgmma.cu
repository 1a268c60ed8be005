// a b^T by wgmma, tile by tile: the other side of "mma equals wgmma".
#include "kernels_core.h"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/vec.cuh"
#include "lockstep/wgmma.cuh"

namespace lockstep::core::sm90 {

constexpr int kThreads = 128;  // one warpgroup
constexpr int kRows = 64;
constexpr int kStep = 16;
constexpr int kStepVectors = kStep / kVectorBf16;  // 2
constexpr uint32_t kLeading = 128;  // bytes between core matrices along K
constexpr uint32_t kStride = 256;   // bytes between core matrices along M or N

// Where the 16-byte vector (row, half of a k16 step) of an operand lies, in vectors.
__device__ __forceinline__ int core_matrix_vector(int row, int half) {
  return (row / 8) * int(kStride / kVectorBytes) + half * int(kLeading / kVectorBytes) + row % 8;
}

// kSteps k16 steps are queued in one commit group.
template <typename T, int N, int kSteps>
__global__ void __launch_bounds__(kThreads) product_wgmma(const ls_core_product_params p) {
  __shared__ alignas(128) uint4 a_tile[kSteps][kRows * kStepVectors];  // [step][64 x 16]
  __shared__ alignas(128) uint4 b_tile[kSteps][N * kStepVectors];      // [step][N x 16]
  pdl::wait();
  const int64_t first_row = int64_t(blockIdx.y) * kRows;
  const int64_t first_column = int64_t(blockIdx.x) * N;
  const T* a = static_cast<const T*>(p.a) + first_row * p.k;
  const T* b = static_cast<const T*>(p.b) + first_column * p.k;
  float d[N / 2] = {};                                                    // [64, N] of the warpgroup
  for (int k = 0; k < p.k; k += kSteps * kStep) {
    for (int step = 0; step < kSteps; ++step) {
      const int at = k + step * kStep;
      for (int i = threadIdx.x; i < kRows * kStepVectors; i += kThreads) {
        const int row = i / kStepVectors, half = i % kStepVectors;
        a_tile[step][core_matrix_vector(row, half)] =
            load_global(a + int64_t(row) * p.k + at + half * kVectorBf16);
      }
      for (int i = threadIdx.x; i < N * kStepVectors; i += kThreads) {
        const int row = i / kStepVectors, half = i % kStepVectors;
        b_tile[step][core_matrix_vector(row, half)] =
            load_global(b + int64_t(row) * p.k + at + half * kVectorBf16);
      }
    }
    fence_before_bulk();
    __syncthreads();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma_m64k16<T, N>(d, wgmma_descriptor(a_tile[step], kLeading, kStride),
                         wgmma_descriptor(b_tile[step], kLeading, kStride));
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();
    __syncthreads();
  }
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float* out = p.out + (first_row + warp * 16 + g) * p.n + first_column + 2 * t;
#pragma unroll
  for (int j = 0; j < N; j += 8) {
    out[j] = d[j / 2];
    out[j + 1] = d[j / 2 + 1];
    out[int64_t(8) * p.n + j] = d[j / 2 + 2];
    out[int64_t(8) * p.n + j + 1] = d[j / 2 + 3];
  }
}

template <typename T, int kSteps>
int32_t launch_product(const ls_core_product_params& p, ls_stream_t stream) {
  const dim3 grid(p.n / p.tile_n, p.m / kRows);
  const auto with = [&](auto kernel) { return launch(kernel, grid, kThreads, 0, stream, false, p); };
  switch (p.tile_n) {
    case 8: return with(product_wgmma<T, 8, kSteps>);
    case 16: return with(product_wgmma<T, 16, kSteps>);
    case 24: return with(product_wgmma<T, 24, kSteps>);
    case 32: return with(product_wgmma<T, 32, kSteps>);
    case 48: return with(product_wgmma<T, 48, kSteps>);
    case 64: return with(product_wgmma<T, 64, kSteps>);
    case 96: return with(product_wgmma<T, 96, kSteps>);
    case 128: return with(product_wgmma<T, 128, kSteps>);
    case 192: return with(product_wgmma<T, 192, kSteps>);
    case 256: return with(product_wgmma<T, 256, kSteps>);
    default: return LS_ERR_UNSUPPORTED;
  }
}

template <typename T>
int32_t launch_product(const ls_core_product_params& p, ls_stream_t stream) {
  constexpr int kQueued = 4;
  return p.k % (kQueued * kStep) == 0 ? launch_product<T, kQueued>(p, stream) : launch_product<T, 1>(p, stream);
}

}  // namespace lockstep::core::sm90

extern "C" int32_t ls_core_product_sm90(const ls_core_product_params* p, ls_stream_t stream) {
  using namespace lockstep::core::sm90;
  return p->fp16 ? launch_product<__half>(*p, stream) : launch_product<__nv_bfloat16>(*p, stream);
}
