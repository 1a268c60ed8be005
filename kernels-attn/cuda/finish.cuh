// The last step of rows: the division by their sums, and the gate.
#pragma once

#include "list.cuh"
#include "lockstep/math.cuh"
#include "lockstep/vec.cuh"
#include "softmax.cuh"

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

// The transposed matrix of 8x8 16-bit elements, of one that a warp holds as ldmatrix would have given it.
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// A fragment: what a lane has of eight rows and sixteen columns behind a matrix product. Rows 2 t and 2 t + 1 of column
// g, then of column g + 8, where g = lane / 4 and t = lane % 4. Results that wait in memory lie in this order,
// [eight, sixteen, lane]: whoever reads them works on fragments too.
template <int kD>
__device__ __forceinline__ float4* fragment_at(float* of, int eight, int sixteen, int lane) {
  return reinterpret_cast<float4*>(of) + ((eight * (kD / 16) + sixteen) * 32 + lane);
}

// A part's fragment and that of what is before it; factors: of the two rows.
__device__ __forceinline__ float4 folded(const float4& before, const float4& part, const Factors (&of)[2]) {
  return {of[0].apply(before.x, part.x), of[1].apply(before.y, part.y), of[0].apply(before.z, part.z),
          of[1].apply(before.w, part.w)};
}

// Writes eight rows of a row block, those from row 8 * `eight` on, by a whole warp.
class Finisher {
 public:
  __device__ __forceinline__ Finisher(const Params& p, int64_t first_row, int pairs, int32_t kv_head, int eight)
      : gated_(p.gate != nullptr) {
    const int lane = threadIdx.x % 32, number = eight * 8 + lane / 4, column = lane % 4 * 2;
    there_ = number < pairs;
    const Pair pair(p, there_ ? number : 0);
    const int64_t row = first_row + pair.row, head = kv_head * int64_t(p.group.divisor) + pair.head;
    out_ = static_cast<__nv_bfloat16*>(p.out) + row * p.out_row_stride + head * p.out_head_stride + column;
    gate_ = static_cast<const __nv_bfloat16*>(p.gate) + row * p.gate_row_stride + head * p.gate_head_stride + column;
  }

  // What write() needs of the gate, to be asked for early: elements that the lane writes, not those of its fragment.
  __device__ __forceinline__ uint2 gates(int sixteen) const {
    if (!gated_ || !there_) return {};
    const auto* const from = reinterpret_cast<const uint32_t*>(gate_ + sixteen * 16);
    return {from[0], from[4]};
  }

  // A fragment, of whose two rows `by` has the sums.
  __device__ __forceinline__ void write(int sixteen, const float4& x, const uint2& gates, const Divisor (&by)[2]) const {
    const int at = sixteen * 16;
    // Plus zero: the sign of a zero depends on which tiles without a visible key were worked on.
    float y[4] = {by[0].divide(__fadd_rn(x.x, 0.0f)), by[1].divide(__fadd_rn(x.y, 0.0f)),
                  by[0].divide(__fadd_rn(x.z, 0.0f)), by[1].divide(__fadd_rn(x.w, 0.0f))};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const two = &y[2 * half];
      if (gated_) {
        const uint32_t gate = movmatrix_trans(half == 0 ? gates.x : gates.y);
        two[0] = __fmul_rn(two[0], sigmoid(__uint_as_float(gate << 16)));
        two[1] = __fmul_rn(two[1], sigmoid(__uint_as_float(gate & 0xffff0000u)));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) two[i] = by[i].sum != 0.0f ? two[i] : 0.0f;
      const uint32_t out = movmatrix_trans(pack_bf16(two[0], two[1]));
      if (there_) *reinterpret_cast<uint32_t*>(out_ + at + 8 * half) = out;
    }
  }

 private:
  bool gated_;
  bool there_;  // the row that the lane writes
  __nv_bfloat16* out_;
  const __nv_bfloat16* gate_;
};

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
