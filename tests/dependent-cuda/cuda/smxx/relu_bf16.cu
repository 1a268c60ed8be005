// A kernel that lockstep does not have: 16 bytes a thread.
#include "dependent.h"
#include "lockstep/launch.cuh"
#include "lockstep/vec.cuh"

namespace {

using namespace lockstep;

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) relu(uint4* out, const uint4* x, int64_t vectors) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const uint4 packed = load_global(x + i);
  float v[kVectorBf16];  // [value] of this thread
#pragma unroll
  for (int j = 0; j < kVectorBf16; ++j) v[j] = fmaxf(bf16_at(packed, j), 0.0f);
  store_global(out + i, pack_bf16(v));
}

}  // namespace

extern "C" int32_t dependent_relu_smxx(void* out, const void* x, int64_t count, ls_stream_t stream) {
  if (count % kVectorBf16 != 0) return LS_ERR_UNSUPPORTED;
  const int64_t vectors = count / kVectorBf16;
  const dim3 grid(unsigned(ceil_div<int64_t>(vectors, kThreads)));
  return launch(relu, grid, dim3(kThreads), 0, stream, false, static_cast<uint4*>(out),
                static_cast<const uint4*>(x), vectors);
}
