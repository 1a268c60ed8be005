// The streaming-read ceiling: 16-byte loads, eight in flight per thread, nothing written.
#include "kernels_core.h"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::core {

static_assert(sizeof(ls_core_read_params) == 32, "src/sys.rs describes this layout");

constexpr int kThreads = 512;
constexpr int kInFlight = 8;

__global__ void __launch_bounds__(kThreads, 2048 / kThreads) read(const ls_core_read_params p) {
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
    for (int j = 0; j < kInFlight; ++j) seen |= held[j].x & held[j].y & held[j].z & held[j].w;
  }
  // Memory is zeroed by the caller, so this never happens; without it there would be no loads.
  if (seen == 0xffffffffu) *p.sink = seen;
}

}  // namespace lockstep::core

extern "C" int32_t ls_core_read_smxx(const ls_core_read_params* p, ls_stream_t stream) {
  using namespace lockstep;
  return launch(core::read, p->blocks, core::kThreads, 0, stream, false, *p);
}
