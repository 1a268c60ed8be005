// The ceilings of streaming reads and of copies: 16-byte accesses, several in flight per thread.
#include "kernels_core.h"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::core {

static_assert(sizeof(ls_core_stream_params) == 40, "src/sys.rs describes this layout");

constexpr int kThreads = 512;

template <bool kCopies>
__global__ void __launch_bounds__(kThreads, 2048 / kThreads) stream(const ls_core_stream_params p) {
  // Of a thread; addresses to write to take the registers of the other half.
  constexpr int kInFlight = kCopies ? 4 : 8;
  pdl::wait();
  const auto* from = static_cast<const uint4*>(p.from);
  const int64_t vectors = p.bytes / kVectorBytes;
  const int64_t stride = int64_t(gridDim.x) * kThreads;
  uint32_t seen = 0;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += kInFlight * stride) {
    uint4 held[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      held[j] = i + j * stride < vectors ? load_global(from + i + j * stride) : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if constexpr (kCopies) {
        if (i + j * stride < vectors) store_global(static_cast<uint4*>(p.to) + i + j * stride, held[j]);
      } else {
        seen |= held[j].x & held[j].y & held[j].z & held[j].w;
      }
    }
  }
  // Memory that is only read is zeroed by the caller, so this never happens; without it there would be no loads.
  if (seen == 0xffffffffu) *p.sink = seen;
}

}  // namespace lockstep::core

extern "C" int32_t ls_core_stream_smxx(const ls_core_stream_params* p, ls_stream_t stream) {
  using namespace lockstep;
  const auto kernel = p->to ? core::stream<true> : core::stream<false>;
  return launch(kernel, p->blocks, core::kThreads, 0, stream, false, *p);
}
