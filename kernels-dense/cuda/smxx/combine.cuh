// The last step of a mixture of experts: what the experts said of a row, added up, and the norm that may follow.
#pragma once

#include <cuda_bf16.h>

#include "lockstep/launch.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::dense {

struct Combination {
  const __nv_bfloat16* outputs;  // [pairs + rows, hidden]
  const float* weights;          // [rows, top_k + 1]
  __nv_bfloat16* out;            // [rows, hidden]
  int64_t out_stride;
  int32_t rows, hidden, top_k;

  // Of eight elements of a row, from `at` on: the experts of the route in its order, then the shared one.
  __device__ __forceinline__ void sum(int row, int at, float (&sum)[kVectorBf16]) const {
    const float* const of_row = weights + int64_t(row) * (top_k + 1);
    const auto add = [&](int pair, float weight) {
      const uint4 y = load_global(outputs + int64_t(pair) * hidden + at);
#pragma unroll
      for (int i = 0; i < kVectorBf16; ++i) sum[i] = __fmaf_rn(weight, bf16_at(y, i), sum[i]);
    };
#pragma unroll
    for (int i = 0; i < kVectorBf16; ++i) sum[i] = 0.0f;
#pragma unroll 8
    for (int rank = 0; rank < top_k; ++rank) add(row * top_k + rank, of_row[rank]);
    add(rows * top_k + row, of_row[top_k]);
  }
};

// The zero-centred norm of the new rows.
struct NormBehind {
  __nv_bfloat16* out;  // [rows, hidden]
  const __nv_bfloat16* weight;
  int64_t out_stride;
  float eps;
  int32_t vectors_per_thread;
};

int32_t launch_combination_and_norm(const Combination& c, const NormBehind& norm, bool programmatic, ls_stream_t stream);

}  // namespace lockstep::dense
