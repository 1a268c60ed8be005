// 16-byte accesses, and the eight bf16 values they hold.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace lockstep {

constexpr int kVectorBytes = 16;
constexpr int kVectorBf16 = kVectorBytes / int(sizeof(__nv_bfloat16));  // 8

// ld.global: for memory that kernels write (activations, counters, caches).
__device__ __forceinline__ uint4 load_global(const void* at) { return *static_cast<const uint4*>(at); }

// ld.global.nc: for weights only, since the read-only path does not see writes of the same launch chain.
__device__ __forceinline__ uint4 load_constant(const void* at) {
  return __ldg(static_cast<const uint4*>(at));
}

__device__ __forceinline__ void store_global(void* at, uint4 value) { *static_cast<uint4*>(at) = value; }

// Element `i` of eight packed bf16 values, exact in fp32. `i` must be a constant after unrolling.
__device__ __forceinline__ float bf16_at(const uint4& packed, int i) {
  const uint32_t word = i < 2 ? packed.x : i < 4 ? packed.y : i < 6 ? packed.z : packed.w;
  return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

// Two fp32 values rounded to nearest even, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint4 pack_bf16(const float (&v)[kVectorBf16]) {
  return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                    pack_bf16(v[6], v[7]));
}

}  // namespace lockstep
