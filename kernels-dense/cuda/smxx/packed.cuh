// Neighbouring bf16 values as they lie in memory.
#pragma once

#include <cstring>

#include "lockstep/vec.cuh"

namespace lockstep::dense {

template <int kWords>
struct AccessOf;
template <>
struct AccessOf<2> {
  using Type = uint2;
};
template <>
struct AccessOf<4> {
  using Type = uint4;
};

// kCount values, 4 or 8, loaded and stored by one access.
template <int kCount>
struct Packed {
  using Access = typename AccessOf<kCount / 2>::Type;

  uint32_t words[kCount / 2];

  __device__ __forceinline__ void load(const char* at) { take(*reinterpret_cast<const Access*>(at)); }
  __device__ __forceinline__ void store(char* at) const {
    Access all;
    memcpy(&all, words, sizeof all);
    *reinterpret_cast<Access*>(at) = all;
  }

  // Exact in fp32. `i` must be a constant after unrolling.
  __device__ __forceinline__ float at(int i) const {
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
  static __device__ __forceinline__ Packed rounded(const float (&y)[kCount]) {
    Packed packed;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) packed.words[i] = pack_bf16(y[2 * i], y[2 * i + 1]);
    return packed;
  }

 private:
  __device__ __forceinline__ void take(Access all) { memcpy(words, &all, sizeof all); }
};

}  // namespace lockstep::dense
