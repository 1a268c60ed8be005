// Rows by their strides, which have 32 bits in bytes: a row's address is one multiplication.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

namespace lockstep::dense {

template <typename Byte>
__device__ __forceinline__ Byte* row_of(Byte* base, uint32_t row, uint32_t bytes) {
  return base + uint64_t(row) * bytes;
}

// Whether bytes_of() can tell these strides, in elements.
inline bool short_strides(std::initializer_list<int64_t> strides) {
  for (const int64_t stride : strides) {
    if (stride < 0 || stride >= int64_t(1) << 31) return false;
  }
  return true;
}

__host__ __device__ constexpr uint32_t bytes_of(int64_t stride) { return uint32_t(2 * stride); }

}  // namespace lockstep::dense
