// The sum of a row's squares: pairs by a fused multiply-add, then halves of halves.
//
// A part's sum is that of its first half plus that of its second, down to pairs, for a row filled up with zeros to
// a power of two. So any thread may hold any aligned power of two of neighbouring elements, any number of threads
// may share a row, and no bit depends on it. Zeros behind the row are neutral: no square is below +0.
#pragma once

#include "lockstep/math.cuh"
#include "packed.cuh"

namespace lockstep::dense {

constexpr int kWarp = 32;

// kCount neighbours of one thread.
template <int kCount>
__device__ __forceinline__ float sum_of_squares(const Packed<kCount>& x) {
  float sums[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float even = x.at(2 * i), odd = x.at(2 * i + 1);
    sums[i] = __fmaf_rn(odd, odd, __fmul_rn(even, even));
  }
#pragma unroll
  for (int count = kCount / 4; count > 0; count /= 2) {
#pragma unroll
    for (int i = 0; i < count; ++i) sums[i] = __fadd_rn(sums[2 * i], sums[2 * i + 1]);
  }
  return sums[0];
}

// kLanes neighbouring lanes, each with kSums independent sums; all of them get the results.
template <int kLanes, int kSums>
__device__ __forceinline__ void sum_of_lanes(float (&sums)[kSums]) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(0xffffffffu, sums[i], distance));
    }
  }
}

constexpr int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Parts kFirst to kFirst + kSpan of kParts; those from kParts on are zeros and are left out.
template <int kFirst, int kSpan, int kParts>
__device__ __forceinline__ float sum_of_halves(const float (&parts)[kParts]) {
  if constexpr (kSpan == 1) {
    return parts[kFirst];
  } else if constexpr (kFirst + kSpan / 2 >= kParts) {
    return sum_of_halves<kFirst, kSpan / 2>(parts);
  } else {
    return __fadd_rn(sum_of_halves<kFirst, kSpan / 2>(parts), sum_of_halves<kFirst + kSpan / 2, kSpan / 2>(parts));
  }
}

// The same of parts that lie in shared memory, 16 bytes a load.
template <int kParts>
__device__ __forceinline__ float sum_of_parts(const float (&shared)[kParts]) {
  constexpr int kLoad = kParts % 4 == 0 ? 4 : 1;
  float parts[kParts];
#pragma unroll
  for (int i = 0; i < kParts; i += kLoad) memcpy(parts + i, __builtin_assume_aligned(shared + i, 4 * kLoad), 4 * kLoad);
  return sum_of_halves<0, power_of_two_from(kParts)>(parts);
}

// 1 / sqrt(x), both steps rounded to nearest: rsqrt()'s bits, with its rare cases in one branch. What remains is what
// the compiler itself emits for a root and a reciprocal of numbers far from both ends of the range.
__device__ __forceinline__ float rsqrt_of_mean(float x) {
  constexpr uint32_t kLeast = 0x0d000000, kRange = 0x7f800000 - kLeast;  // 2^-101 to below infinity
  if (__builtin_expect(__float_as_uint(x) - kLeast >= kRange, 0)) return rsqrt(x);
  float guess, inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(x));
  const float near = __fmul_rn(x, guess);
  const float root = __fmaf_rn(__fmaf_rn(-near, near, x), __fmul_rn(guess, 0.5f), near);
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(root));
  return __fmaf_rn(inverse, __fmaf_rn(-root, inverse, 1.0f), inverse);
}

// r(x) = 1 / sqrt(mean + eps), the mean by a multiplication with 1 / n.
__device__ __forceinline__ float scale_of(float sum, float inverse_n, float eps) {
  return rsqrt_of_mean(__fmaf_rn(sum, inverse_n, eps));
}

}  // namespace lockstep::dense
