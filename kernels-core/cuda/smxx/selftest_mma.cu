// a b^T by mma.sync, straight from global memory: the reference side of "mma equals wgmma".
#include "kernels_core.h"
#include "lockstep/launch.cuh"
#include "lockstep/mma.cuh"
#include "lockstep/pdl.cuh"

namespace lockstep::core {

static_assert(sizeof(ls_core_product_params) == 48, "src/sys.rs describes this layout");

constexpr int kWarps = 4;
constexpr int kWarpRows = 16;
constexpr int kColumns = 8;
constexpr int kStep = 16;

template <typename T>
__global__ void __launch_bounds__(kWarps * 32) product_mma(const ls_core_product_params p) {
  pdl::wait();
  const int warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  const int64_t row = int64_t(blockIdx.y) * (kWarps * kWarpRows) + warp * kWarpRows + g;
  const int64_t column = int64_t(blockIdx.x) * kColumns;
  const T* a = static_cast<const T*>(p.a) + row * p.k + 2 * t;             // [16, k] of this warp
  const T* b = static_cast<const T*>(p.b) + (column + g) * p.k + 2 * t;    // [8, k]
  const auto pair = [](const T* at) { return *reinterpret_cast<const uint32_t*>(at); };
  float d[4] = {};                                                         // [16, 8] of this warp
  for (int k = 0; k < p.k; k += kStep) {
    const int64_t below = int64_t(8) * p.k;
    const uint32_t a_step[4] = {pair(a + k), pair(a + below + k), pair(a + k + 8), pair(a + below + k + 8)};
    const uint32_t b_step[2] = {pair(b + k), pair(b + k + 8)};
    mma_m16n8k16<T>(d, a_step, b_step);
  }
  float* out = p.out + row * p.n + column + 2 * t;
  out[0] = d[0];
  out[1] = d[1];
  out[int64_t(8) * p.n] = d[2];
  out[int64_t(8) * p.n + 1] = d[3];
}

}  // namespace lockstep::core

extern "C" int32_t ls_core_product_smxx(const ls_core_product_params* p, ls_stream_t stream) {
  using namespace lockstep;
  const dim3 grid(p->n / core::kColumns, p->m / (core::kWarps * core::kWarpRows));
  const auto kernel = p->fp16 ? core::product_mma<__half> : core::product_mma<__nv_bfloat16>;
  return launch(kernel, grid, core::kWarps * 32, 0, stream, false, *p);
}
