// How launchers start a grid, and the status they return.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "lockstep/abi.h"

namespace lockstep {

inline cudaStream_t stream_of(ls_stream_t stream) { return static_cast<cudaStream_t>(stream); }

// Whether the code that the current device runs for `kernel` has pdl::wait() in it: what a driver compiled from PTX
// for an earlier architecture has not, on a device that would start it early all the same. Remembered, as asking takes
// about as long as a launch.
inline bool waits(const void* kernel) {
  constexpr int kPlaces = 256, kWaitsFrom = 90;
  static std::atomic<uint64_t> known[kPlaces];  // device, kernel, answer; one kernel may push out another
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const uint64_t address = reinterpret_cast<uintptr_t>(kernel);
  const uint64_t key = uint64_t(device) << 56 ^ address << 1;
  std::atomic<uint64_t>& place = known[(address >> 4 ^ address >> 12) % kPlaces];
  const uint64_t found = place.load(std::memory_order_relaxed);
  if ((found & ~uint64_t(1)) == key) return (found & 1) != 0;
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return false;
  const bool answer = attributes.ptxVersion >= kWaitsFrom;
  place.store(key | uint64_t(answer), std::memory_order_relaxed);
  return answer;
}

// `programmatic`: the grid may begin while its predecessor on the stream still runs, where there is such a thing. Legal
// for kernels that call pdl::wait() before they touch anything the predecessor may write. `cluster`: so many neighbours
// run at the same time, Hopper.
template <typename... Parameters, typename... Arguments>
inline int32_t launch_clusters(void (*kernel)(Parameters...), dim3 grid, uint32_t cluster, dim3 block,
                               size_t shared_bytes, ls_stream_t stream, bool programmatic,
                               const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  int count = 0;
  if (programmatic && waits(reinterpret_cast<const void*>(kernel))) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  // Asked for where needed only: chips before Hopper have none.
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = cluster;
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  return static_cast<int32_t>(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}
// Without clusters.
template <typename... Parameters, typename... Arguments>
inline int32_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                      ls_stream_t stream, bool programmatic, const Arguments&... arguments) {
  return launch_clusters(kernel, grid, 1, block, shared_bytes, stream, programmatic, arguments...);
}

template <typename T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace lockstep
