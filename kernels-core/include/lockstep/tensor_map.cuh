// Tensor maps, made on the host: what bulk tensor copies take their addresses from.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep {

// A bf16 tensor of five dimensions, the fastest first and without gaps; its boxes have 64 elements of the fastest,
// `box_rows` of the second and `box_blocks` of the third, in rows of 128 bytes, swizzled as wgmma_swizzled() describes.
struct TensorMap {
  const void* base;  // aligned to 16 bytes
  uint64_t sizes[5];
  uint64_t strides[4];  // of the dimensions behind the fastest, in bytes: multiples of 16 below 2^40
  uint32_t box_rows;
  // Twice the box's rows where neighbours are read soon: weights that stream along K.
  CUtensorMapL2promotion fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

  uint32_t box_blocks = 1;

  // Returns a status as launchers do.
  int32_t encode(CUtensorMap& map) const {
    // Looked up where it is used: this library must load where there is no driver.
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) return int32_t(error);
    if (found != cudaDriverEntryPointSuccess) return int32_t(cudaErrorSymbolNotFound);
    const uint32_t box[5] = {64, box_rows, box_blocks, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<void*>(base), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, fetch,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? 0 : int32_t(cudaErrorInvalidValue);
  }
};

}  // namespace lockstep
