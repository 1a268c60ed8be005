// What follows the gated delta net: each head of 128 normed by itself, times silu(gate).
//
// A head lies in one warp, so there is no barrier. silu of the gate does not depend on the sum and is worked out
// while the shuffles are on their way; the rare cases of the root, in a branch behind both, keep it there.
#pragma once

#include "kernels_dense.h"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "rows.cuh"
#include "sums.cuh"

namespace lockstep::dense {

static_assert(sizeof(ls_dense_gated_norm_params) == 96, "src/sys.rs describes this layout");

constexpr int kHeadDim = 128;
constexpr int kElements = kHeadDim / kWarp;  // of a thread: 4
constexpr int kHeads = 4;                    // of a block, one warp each
constexpr int kMaxHeads = 1 << 17;           // of a row: a grid's y axis ends at 65535

// Strides in bytes.
struct GatedParams {
  char* out;
  const char* x;
  const char* gate;
  const float* weight;
  uint32_t out_row, out_head, x_row, x_head, gate_row, gate_head;
  uint32_t heads;
  float eps;
};

// Grid: x = rows, y = groups of heads.
__global__ void __launch_bounds__(kWarp* kHeads) gated_norm(const GatedParams p) {
  using Vector = Packed<kElements>;

  const uint32_t row = blockIdx.x, own = blockIdx.y * kHeads + threadIdx.x / kWarp;
  // Warps beyond the heads compute the last one again: a branch would part the loads of all the others.
  const uint32_t head = min(own, p.heads - 1);
  const uint32_t element = threadIdx.x % kWarp * kElements, column = element * 2;
  // A plain load: the compiler moves those of the read-only path behind the wait.
  const float4 w = *reinterpret_cast<const float4*>(p.weight + element);
  const char* const x_at = row_of(row_of(p.x + column, row, p.x_row), head, p.x_head);
  const char* const gate_at = row_of(row_of(p.gate + column, row, p.gate_row), head, p.gate_head);
  // What comes next begins with weights at most, and waits for all of this.
  pdl::launch_dependents();
  pdl::wait();
  Vector x, gate;
  x.load(x_at);
  gate.load(gate_at);
  float sum[1] = {sum_of_squares(x)};
  float gates[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) gates[i] = silu(gate.at(i));
  sum_of_lanes<kWarp>(sum);
  const float scale = scale_of(sum[0], 1.0f / kHeadDim, p.eps);
  const float weight[kElements] = {w.x, w.y, w.z, w.w};
  float y[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    y[i] = __fmul_rn(__fmul_rn(__fmul_rn(x.at(i), scale), weight[i]), gates[i]);
  }
  if (own == head) Vector::rounded(y).store(row_of(row_of(p.out + column, row, p.out_row), head, p.out_head));
}

}  // namespace lockstep::dense
