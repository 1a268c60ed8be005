// The last step of a row: the division by its sum, and the gate.
#pragma once

#include "list.cuh"
#include "lockstep/math.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::attn {

// Divides by a row's sum, which lies far from both ends of the range: the steps that a compiler emits for such numbers,
// without the call for all others. Rounded to nearest wherever the quotient is a normal number.
struct Divisor {
  float sum, inverse;

  explicit __device__ __forceinline__ Divisor(float sum) : sum(sum) {
    float guess;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(sum));
    inverse = __fmaf_rn(guess, __fmaf_rn(-sum, guess, 1.0f), guess);
  }

  __device__ __forceinline__ float divide(float x) const {
    // So that the remainders of small numbers are exact.
    const bool small = fabsf(x) < 0x1p-60f;
    const float y = small ? __fmul_rn(x, 0x1p64f) : x;
    float q = __fmul_rn(y, inverse);
#pragma unroll
    for (int i = 0; i < 2; ++i) q = __fmaf_rn(__fmaf_rn(-q, sum, y), inverse, q);
    if (small) q = __fmul_rn(q, 0x1p-64f);
    return fabsf(x) == INFINITY ? x : q;
  }
};

// Writes elements `column` and `column + 1` of a row's query head.
__device__ __forceinline__ void write_out(const Params& p, int64_t row, int64_t head, int32_t column, float2 out,
                                          const Divisor& by) {
  float x = 0.0f, y = 0.0f;
  if (by.sum != 0.0f) {
    // Plus zero: the sign of a zero depends on which tiles without a visible key were worked on.
    x = by.divide(__fadd_rn(out.x, 0.0f)), y = by.divide(__fadd_rn(out.y, 0.0f));
    if (p.gate != nullptr) {
      const auto* const gate = static_cast<const __nv_bfloat16*>(p.gate) + row * p.gate_row_stride;
      const uint32_t both = *reinterpret_cast<const uint32_t*>(gate + head * p.gate_head_stride + column);
      x = __fmul_rn(x, sigmoid(__uint_as_float(both << 16)));
      y = __fmul_rn(y, sigmoid(__uint_as_float(both & 0xffff0000u)));
    }
  }
  auto* const to = static_cast<__nv_bfloat16*>(p.out) + row * p.out_row_stride + head * p.out_head_stride + column;
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(x, y);
}

// Zeros in the rows of an item without tiles, by `threads` threads.
template <int kD>
__device__ __forceinline__ void zero_rows(const Params& p, const Item& item, int thread, int threads) {
  constexpr int kVectors = kD / kVectorBf16;
  const int group = int(p.group.divisor);
  auto* const out = static_cast<__nv_bfloat16*>(p.out) + item.kv_head * group * p.out_head_stride;
#pragma unroll 1
  for (int32_t row = 0; row < item.rows; ++row) {
    auto* const to = out + (item.first_row + row) * p.out_row_stride;
#pragma unroll 1
    for (int i = thread; i < group * kVectors; i += threads) {
      store_global(to + i / kVectors * p.out_head_stride + i % kVectors * kVectorBf16, uint4{});
    }
  }
}

}  // namespace lockstep::attn
