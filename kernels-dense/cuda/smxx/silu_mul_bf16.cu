// The gated activation of stored sums, bf16: what the epilogue of a linear layer does with its own.
#include "kernels_dense.h"
#include "lockstep/launch.cuh"
#include "lockstep/math.cuh"
#include "lockstep/pdl.cuh"
#include "packed.cuh"
#include "rows.cuh"

namespace lockstep::dense {

static_assert(sizeof(ls_dense_silu_mul_params) == 64, "src/sys.rs describes this layout");

constexpr int kSiluMulThreads = 128;  // of a block, one vector each

// Grid: x = rows, y = tiles of a row.
__global__ void __launch_bounds__(kSiluMulThreads) silu_mul(const ls_dense_silu_mul_params p) {
  const uint32_t row = blockIdx.x, vector = blockIdx.y * kSiluMulThreads + threadIdx.x;
  pdl::wait();
  pdl::launch_dependents();
  if (vector >= uint32_t(p.n) / kVectorBf16) return;
  const uint32_t column = vector * kVectorBytes;
  Packed<kVectorBf16> gate, up;
  gate.load(row_of(static_cast<const char*>(p.gate) + column, row, bytes_of(p.gate_stride)));
  up.load(row_of(static_cast<const char*>(p.up) + column, row, bytes_of(p.up_stride)));
  float y[kVectorBf16];
#pragma unroll
  for (int i = 0; i < kVectorBf16; ++i) y[i] = __fmul_rn(silu(gate.at(i)), up.at(i));
  Packed<kVectorBf16>::rounded(y).store(row_of(static_cast<char*>(p.out) + column, row, bytes_of(p.out_stride)));
}

}  // namespace lockstep::dense

extern "C" int32_t ls_dense_silu_mul_smxx(const ls_dense_silu_mul_params* p, ls_stream_t stream) {
  using namespace lockstep;
  if (!dense::short_strides({p->out_stride, p->gate_stride, p->up_stride})) return LS_ERR_UNSUPPORTED;
  if (p->n < 1 || p->n % kVectorBf16 != 0 || p->n >= 1 << 25 || p->rows < 0) return LS_ERR_UNSUPPORTED;
  if (p->rows == 0) return LS_OK;
  const dim3 grid(p->rows, ceil_div(p->n / kVectorBf16, dense::kSiluMulThreads));
  return launch(dense::silu_mul, grid, dense::kSiluMulThreads, 0, stream, p->programmatic != 0, *p);
}
