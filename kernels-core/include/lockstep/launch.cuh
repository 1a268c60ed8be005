// How launchers start a grid, and the status they return.
#pragma once

#include <cuda_runtime.h>

#include "lockstep/abi.h"

namespace lockstep {

inline cudaStream_t stream_of(ls_stream_t stream) { return static_cast<cudaStream_t>(stream); }

// `programmatic`: the grid may begin while its predecessor on the stream still runs. Legal for kernels that
// call pdl::wait() before they touch anything the predecessor may write.
template <typename... Parameters, typename... Arguments>
inline int32_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                      ls_stream_t stream, bool programmatic, const Arguments&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(stream);
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  return static_cast<int32_t>(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

template <typename T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace lockstep
