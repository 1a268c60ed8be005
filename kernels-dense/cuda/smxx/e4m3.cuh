// E4M3 codes: a sign, four bits of exponent with bias 7, three of mantissa. No infinity; 0x7f and 0xff are NaN.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

#include "lockstep/bytes.cuh"

namespace lockstep::dense::e4m3 {

constexpr float kLargest = 448.0f;

// What is not NaN, to the nearest code, of two the even one; beyond the largest number, that number. cpu/fp8.rs has the
// same steps.
__device__ __forceinline__ uint32_t encode(float x) {
  constexpr uint32_t kBitsOfLargest = 0x43e00000u, kBitsOfLeastNormal = 0x3c800000u, kBiases = (127 - 7) << 3;
  constexpr float kUnitIsLeast = 0x1p14f;  // its last bit is 2^-9, the least number there is
  const uint32_t bits = __float_as_uint(x), size = bits & 0x7fffffffu, sign = (bits >> 24) & 0x80u;
  if (size >= kBitsOfLargest) return sign | 0x7eu;
  if (size >= kBitsOfLeastNormal) return sign | (((size + 0x7ffffu + ((size >> 20) & 1u)) >> 20) - kBiases);
  return sign | (__float_as_uint(__fadd_rn(__uint_as_float(size), kUnitIsLeast)) - __float_as_uint(kUnitIsLeast));
}

// The four codes of a word, exact: the first two in `low`, the others in `high`. A NaN comes out as 480.
//
// A code's exponent and mantissa where bf16 has its own are 2^-120 of the number, subnormal ones too.
__device__ __forceinline__ void decode(uint32_t codes, uint32_t& low, uint32_t& high) {
  constexpr uint32_t kSignedLow = 0x9180u, kSignedHigh = 0xb3a2u;  // each code and, above it, eight times its sign
  constexpr uint32_t kFields = 0x87f087f0u, kTwoTo120 = 0x7b807b80u;
  const auto scaled = [](uint32_t pair) {
    const uint32_t bits = (pair << 4) & kFields, power = kTwoTo120;
    __nv_bfloat162 small, factor;
    memcpy(&small, &bits, sizeof bits);
    memcpy(&factor, &power, sizeof power);
    const __nv_bfloat162 product = __hmul2(small, factor);
    uint32_t result;
    memcpy(&result, &product, sizeof result);
    return result;
  };
  low = scaled(prmt(codes, 0, kSignedLow));
  high = scaled(prmt(codes, 0, kSignedHigh));
}

// Has a bit of kNan where a code is NaN.
constexpr uint32_t kNan = 0x80808080u;
__device__ __forceinline__ uint32_t nan_marks(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

}  // namespace lockstep::dense::e4m3
