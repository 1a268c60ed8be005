// Normal-ish numbers, four of a Philox block: sums of bytes and two fp32 steps, so that every backend has
// their bits.
#pragma once

#include "kernels_dense.h"
#include "lockstep/launch.cuh"
#include "lockstep/philox.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::dense {

static_assert(sizeof(ls_dense_random_fill_params) == 48, "src/sys.rs describes this layout");

constexpr int kFillThreads = 256;
constexpr int kFillVectors = 4;     // of a thread; neighbours write side by side
constexpr int kNumbersOfBlock = 4;  // of a Philox block

// A 16-byte vector of elements, and one of its elements alone.
template <typename Element>
struct Filled;

template <>
struct Filled<__nv_bfloat16> {
  static constexpr int kCount = kVectorBf16;
  static __device__ __forceinline__ uint4 packed(const float (&y)[kCount]) { return pack_bf16(y); }
  static __device__ __forceinline__ __nv_bfloat16 rounded(float y) { return __float2bfloat16_rn(y); }
};

template <>
struct Filled<float> {
  static constexpr int kCount = kVectorBytes / int(sizeof(float));
  static __device__ __forceinline__ uint4 packed(const float (&y)[kCount]) {
    return make_uint4(__float_as_uint(y[0]), __float_as_uint(y[1]), __float_as_uint(y[2]),
                      __float_as_uint(y[3]));
  }
  static __device__ __forceinline__ float rounded(float y) { return y; }
};

// The sum of a word's bytes less its mean. The bits of 2^23 + sum are those of 2^23, plus the sum: exact.
__device__ __forceinline__ float centred(uint32_t word) {
  constexpr uint32_t kEachByte = 0x01010101u, kBitsOfBase = 0x4B000000u;
  constexpr float kBase = 0x1p23f, kMean = 510.0f;
  return __fsub_rn(__uint_as_float(__dp4a(word, kEachByte, kBitsOfBase)), kBase + kMean);
}

template <typename Element>
__global__ void __launch_bounds__(kFillThreads) random_fill(const ls_dense_random_fill_params p) {
  using Vector = Filled<Element>;
  const uint2 seed = make_uint2(uint32_t(p.seed), uint32_t(p.seed >> 32));
  const uint64_t len = uint64_t(p.len), first = uint64_t(p.first);
  const uint64_t tile = uint64_t(blockIdx.x) * (kFillThreads * kFillVectors) + threadIdx.x;
  Element* const out = static_cast<Element*>(p.out);
#pragma unroll
  for (int i = 0; i < kFillVectors; ++i) {
    const uint64_t at = (tile + uint32_t(i * kFillThreads)) * Vector::kCount;
    if (at >= len) return;
    float y[Vector::kCount];
#pragma unroll
    for (int j = 0; j < Vector::kCount; j += kNumbersOfBlock) {
      const uint64_t block = (first + at + uint32_t(j)) / kNumbersOfBlock;
      const uint4 words = philox::stream_block(seed, p.stream, block);
      y[j] = centred(words.x);
      y[j + 1] = centred(words.y);
      y[j + 2] = centred(words.z);
      y[j + 3] = centred(words.w);
    }
#pragma unroll
    for (int j = 0; j < Vector::kCount; ++j) y[j] = __fadd_rn(p.mean, __fmul_rn(y[j], p.unit));
    if (len - at >= uint64_t(Vector::kCount)) {
      store_global(out + at, Vector::packed(y));
    } else {
#pragma unroll
      for (int j = 0; j < Vector::kCount; ++j) {
        if (at + uint32_t(j) < len) out[at + uint32_t(j)] = Vector::rounded(y[j]);
      }
    }
  }
}

template <typename Element>
inline int32_t launch_random_fill(const ls_dense_random_fill_params& p, ls_stream_t stream) {
  constexpr int64_t kLongest = int64_t(1) << 42, kOfBlock = int64_t(kFillThreads) * kFillVectors;
  constexpr int64_t kAligned = kVectorBf16;
  if (p.len < 0 || p.len > kLongest || p.first < 0 || p.first > kLongest || p.first % kAligned != 0) {
    return LS_ERR_UNSUPPORTED;
  }
  if (p.len == 0) return LS_OK;
  const int64_t vectors = ceil_div<int64_t>(p.len, Filled<Element>::kCount);
  const dim3 grid(static_cast<unsigned>(ceil_div(vectors, kOfBlock)));
  return launch(random_fill<Element>, grid, kFillThreads, 0, stream, false, p);
}

}  // namespace lockstep::dense
