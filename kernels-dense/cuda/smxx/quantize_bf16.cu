// Rows of bf16 to E4M3 codes and a scale each.
#include "e4m3.cuh"
#include "kernels_dense.h"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::dense {

static_assert(sizeof(ls_dense_quantize_params) == 64, "src/sys.rs describes this layout");

constexpr int kQuantizeThreads = 256;
constexpr int kQuantizeWarps = kQuantizeThreads / 32;

__device__ __forceinline__ uint32_t larger_size(uint32_t most, uint32_t pair) {
  return max(most, max(pair & 0x7fffu, (pair >> 16) & 0x7fffu));
}

// One block for a row, which is read twice.
__global__ void __launch_bounds__(kQuantizeThreads) quantize(const ls_dense_quantize_params p) {
  __shared__ uint32_t of_warps[kQuantizeWarps];
  constexpr uint32_t kInfinity = 0x7f80u;
  pdl::wait();
  pdl::launch_dependents();
  const int64_t row = blockIdx.x;
  const int64_t from = p.ids != nullptr ? p.ids[row] : row;
  const bool there = from >= 0 && from < p.table_rows;
  const __nv_bfloat16* const x = static_cast<const __nv_bfloat16*>(p.table) + (there ? from * p.table_stride : 0);
  const int vectors = p.k / kVectorBf16;
  // Sizes of bf16 are in the order of their bits, with NaN at the end.
  uint32_t most = 0;
  for (int i = threadIdx.x; there && i < vectors; i += kQuantizeThreads) {
    const uint4 all = load_global(x + i * kVectorBf16);
    most = larger_size(larger_size(larger_size(larger_size(most, all.x), all.y), all.z), all.w);
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kQuantizeWarps; ++i) most = max(most, of_warps[i]);

  const bool finite = most < kInfinity;
  const float scale = fmaxf(__fdiv_rn(__uint_as_float(most << 16), e4m3::kLargest), 0x1p-126f);
  for (int i = threadIdx.x; i < vectors; i += kQuantizeThreads) {
    uint32_t codes[2] = {};
    if (there && finite) {
      const uint4 all = load_global(x + i * kVectorBf16);
#pragma unroll
      for (int j = 0; j < kVectorBf16; ++j) {
        codes[j / 4] |= e4m3::encode(__fdiv_rn(bf16_at(all, j), scale)) << (8 * (j % 4));
      }
    }
    *reinterpret_cast<uint2*>(p.weight + row * p.weight_stride + i * kVectorBf16) = make_uint2(codes[0], codes[1]);
  }
  if (threadIdx.x == 0) p.scales[row] = finite ? scale : __uint_as_float(0x7fc00000u);
}

}  // namespace lockstep::dense

extern "C" int32_t ls_dense_quantize_smxx(const ls_dense_quantize_params* p, ls_stream_t stream) {
  using namespace lockstep;
  if (p->rows < 0 || p->k < 1 || p->k % kVectorBytes != 0 || p->table_rows < 0) return LS_ERR_UNSUPPORTED;
  if (p->ids == nullptr && p->table_rows < p->rows) return LS_ERR_UNSUPPORTED;
  if (p->rows == 0) return LS_OK;
  return launch(dense::quantize, p->rows, dense::kQuantizeThreads, 0, stream, p->programmatic != 0, *p);
}
