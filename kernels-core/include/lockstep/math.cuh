// The scalar functions of kernels_core::ref_math, step by step: same bits on the CPU and on every GPU.
//
// Every step is one correctly rounded operation, so no compiler flag can contract or reorder them. NaN is
// the exception: a NaN stays a NaN, but its payload follows the hardware.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep {

namespace detail {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLn2High = 0x1.63p-1f;        // 9 trailing zero bits: n * kLn2High is exact
constexpr float kLn2Low = -0x1.bd0106p-13f;   // ln 2 - kLn2High
constexpr float kRound = 12582912.0f;         // 1.5 * 2^23: adding it rounds to an integer

struct Reduced {
  float shifted;  // kRound + n
  float power;    // e^(x - n ln 2), in [0.70, 1.42]
};

// x = n ln 2 + r, and e^r by its Taylor polynomial of degree 7. |x| <= 104.
__device__ __forceinline__ Reduced reduce_exp(float x) {
  const float shifted = __fmaf_rn(x, kLog2E, kRound);
  const float n = __fadd_rn(shifted, -kRound);
  const float r = __fmaf_rn(n, -kLn2Low, __fmaf_rn(n, -kLn2High, x));
  float p = 1.0f / 5040.0f;
  p = __fmaf_rn(p, r, 1.0f / 720.0f);
  p = __fmaf_rn(p, r, 1.0f / 120.0f);
  p = __fmaf_rn(p, r, 1.0f / 24.0f);
  p = __fmaf_rn(p, r, 1.0f / 6.0f);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  return {shifted, __fmaf_rn(p, r, 1.0f)};
}

__device__ __forceinline__ float pow2(int n) { return __uint_as_float(uint32_t(n + 127) << 23); }

// 1 / d, rounded to nearest, for d in [1, 2]: one Newton step from the hardware's guess, which is at most one
// ulp off. That it rounds right for every such d is a fact of the chip; the self-test tries them all. No
// branch, unlike a division, so that the channels of a thread overlap.
__device__ __forceinline__ float reciprocal_one_to_two(float d) {
  float guess;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(d));
  return __fmaf_rn(guess, __fmaf_rn(-d, guess, 1.0f), guess);
}

}  // namespace detail

// e^x, at most 1.5 ulp off; 0 and infinity beyond the range, NaN stays NaN.
__device__ __forceinline__ float exp(float x) {
  // fmaxf drops a NaN, so it is put back at the end.
  const detail::Reduced e = detail::reduce_exp(fminf(fmaxf(x, -104.0f), 89.0f));
  const int n = int(__float_as_uint(e.shifted) - __float_as_uint(detail::kRound));
  const int half = n >> 1;
  // Two exact scalings, so that a denormal result rounds once.
  const float scaled = __fmul_rn(__fmul_rn(e.power, detail::pow2(half)), detail::pow2(n - half));
  return x != x ? x : scaled;
}

namespace detail {

// e = e^-|x| and r = 1 / (1 + e), |x| held at 87: exp()'s bits without its care for denormal results.
struct Logistic {
  float e, r;
};

__device__ __forceinline__ Logistic logistic(float x) {
  const Reduced y = reduce_exp(fmaxf(-fabsf(x), -87.0f));
  // The low nine bits of kRound are zero, so that shifting its sum with n leaves n in the exponent field.
  const uint32_t scale = (__float_as_uint(y.shifted) << 23) + (127u << 23);
  const float e = __fmul_rn(y.power, __uint_as_float(scale));
  return {e, reciprocal_one_to_two(__fadd_rn(1.0f, e))};
}

}  // namespace detail

namespace detail {

// From e = e^-|x| and 1 / (1 + e).
__device__ __forceinline__ float sigmoid_from(float x, const Logistic& l) {
  const float y = x < 0.0f ? __fmul_rn(l.e, l.r) : l.r;
  return x != x ? x : y;  // fmaxf drops a NaN
}

// From e = e^-|x|, |x| held at 87.
__device__ __forceinline__ float sigmoid_from(float x, float e) {
  return sigmoid_from(x, Logistic{e, reciprocal_one_to_two(__fadd_rn(1.0f, e))});
}

}  // namespace detail

// 1 / (1 + e^-x): with e = e^-|x| it is 1 / (1 + e), or e / (1 + e) for a negative x.
__device__ __forceinline__ float sigmoid(float x) { return detail::sigmoid_from(x, detail::logistic(x)); }

// x / (1 + e^-x), as above. A NaN is not below zero and comes through the numerator.
__device__ __forceinline__ float silu(float x) {
  const detail::Logistic l = detail::logistic(x);
  return __fmul_rn(x < 0.0f ? __fmul_rn(fmaxf(x, -87.0f), l.e) : x, l.r);
}

namespace detail {

// From e = e^-|x|.
__device__ __forceinline__ float softplus_from(float x, float e) {
  const float z = __fdiv_rn(e, __fadd_rn(2.0f, e));
  const float square = __fmul_rn(z, z);
  float p = 2.0f / 15.0f;
  p = __fmaf_rn(p, square, 2.0f / 13.0f);
  p = __fmaf_rn(p, square, 2.0f / 11.0f);
  p = __fmaf_rn(p, square, 2.0f / 9.0f);
  p = __fmaf_rn(p, square, 2.0f / 7.0f);
  p = __fmaf_rn(p, square, 2.0f / 5.0f);
  p = __fmaf_rn(p, square, 2.0f / 3.0f);
  p = __fmaf_rn(p, square, 2.0f);
  return __fmaf_rn(z, p, x > 0.0f ? x : 0.0f);
}

}  // namespace detail

// ln(1 + e^x) = max(x, 0) + ln(1 + e) with e = e^-|x|, and ln(1 + e) = 2 artanh(e / (2 + e)) by its series.
__device__ __forceinline__ float softplus(float x) { return detail::softplus_from(x, exp(-fabsf(x))); }

namespace detail {

struct NearOne {
  float k, f;  // x = 2^k (1 + f)
};

__device__ __forceinline__ NearOne near_one(float x) {
  constexpr uint32_t kRoot = 0x3f3504f3;  // 0.70710677: what lies below belongs to the power before
  const uint32_t bits = __float_as_uint(x) - kRoot;
  const float m = __uint_as_float((bits & 0x7fffffu) + kRoot);
  return {__int2float_rn(int32_t(bits) >> 23), __fadd_rn(m, -1.0f)};
}

// k ln 2 + ln(1 + f), ln(1 + f) = 2 artanh(f / (2 + f)) by its series.
__device__ __forceinline__ float ln_of(float k, float f) {
  const float s = __fdiv_rn(f, __fadd_rn(2.0f, f));
  const float square = __fmul_rn(s, s);
  float p = 2.0f / 13.0f;
  p = __fmaf_rn(p, square, 2.0f / 11.0f);
  p = __fmaf_rn(p, square, 2.0f / 9.0f);
  p = __fmaf_rn(p, square, 2.0f / 7.0f);
  p = __fmaf_rn(p, square, 2.0f / 5.0f);
  p = __fmaf_rn(p, square, 2.0f / 3.0f);
  const float taken = __fmul_rn(s, __fmaf_rn(-square, p, f));
  return __fmaf_rn(k, kLn2High, __fmaf_rn(k, kLn2Low, __fadd_rn(f, -taken)));
}

}  // namespace detail

// ln(x) of a normal positive number.
__device__ __forceinline__ float ln(float x) {
  const detail::NearOne near = detail::near_one(x);
  return detail::ln_of(near.k, near.f);
}

// ln(1 - u) for u in [2^-126, 1 - 2^-24].
__device__ __forceinline__ float ln_one_minus(float u) {
  const detail::NearOne near = detail::near_one(__fadd_rn(1.0f, -u));
  const bool small = u < 0.25f;
  return detail::ln_of(small ? 0.0f : near.k, small ? -u : near.f);
}

// 1 / sqrt(x), both steps rounded to nearest.
__device__ __forceinline__ float rsqrt(float x) { return __fdiv_rn(1.0f, __fsqrt_rn(x)); }

}  // namespace lockstep
