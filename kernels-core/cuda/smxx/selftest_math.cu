// The scalar functions over arrays of bit patterns, to be compared with kernels_core::ref_math.
#include "kernels_core.h"
#include "lockstep/launch.cuh"
#include "lockstep/math.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/philox.cuh"

namespace lockstep::core {

static_assert(sizeof(ls_core_math_params) == 32, "src/sys.rs describes this layout");

__device__ __forceinline__ uint32_t apply(int32_t function, uint32_t x, int64_t index) {
  const float value = __uint_as_float(x);
  switch (function) {
    case LS_CORE_EXP: return __float_as_uint(exp(value));
    case LS_CORE_SIGMOID: return __float_as_uint(sigmoid(value));
    case LS_CORE_SILU: return __float_as_uint(silu(value));
    case LS_CORE_RSQRT: return __float_as_uint(rsqrt(value));
    case LS_CORE_PHILOX_BITS:
      return philox::bits(make_uint2(x, ~x), 7, uint32_t(index), philox::Use::Draw);
    case LS_CORE_RECIPROCAL: return __float_as_uint(detail::reciprocal_one_to_two(value));
    case LS_CORE_SOFTPLUS: return __float_as_uint(softplus(value));
    case LS_CORE_EXPONENTIAL: return __float_as_uint(philox::exponential(x));
    case LS_CORE_GUMBEL: return __float_as_uint(philox::gumbel(x));
    default: return __float_as_uint(philox::uniform(x));
  }
}

__global__ void __launch_bounds__(256) math(const ls_core_math_params p) {
  pdl::wait();
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.count) p.out[i] = apply(p.function, p.x[i], i);
}

}  // namespace lockstep::core

extern "C" int32_t ls_core_math_smxx(const ls_core_math_params* p, ls_stream_t stream) {
  using namespace lockstep;
  if (p->function < LS_CORE_EXP || p->function > LS_CORE_GUMBEL) return LS_ERR_UNSUPPORTED;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(p->count, 256)));
  return launch(core::math, grid, 256, 0, stream, false, *p);
}
