// Zero-centred norms: plain, after a residual, and two side by side. One block has one row.
//
// A thread holds kVectors times eight neighbouring elements from their loads to their stores. Small launches are
// latency: all loads stand together, weights before the wait, and one barrier parts the sum from the outputs.
#pragma once

#include "kernels_dense.h"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "rows.cuh"
#include "sums.cuh"

namespace lockstep::dense {

static_assert(sizeof(ls_dense_norm_params) == 64, "src/sys.rs describes this layout");
static_assert(sizeof(ls_dense_add_norm_params) == 80, "src/sys.rs describes this layout");
static_assert(sizeof(ls_dense_concat_norm_params) == 88, "src/sys.rs describes this layout");

constexpr int kGroup = kWarp * kVectorBf16;  // elements that a warp sums by shuffles
constexpr int kMaxWidth = 32 * kGroup;

enum class Kind { Plain, Add, Concat };

// One norm of rows: strides in bytes.
struct Side {
  char* out;
  const char* x;
  const char* weight;
  uint32_t x_bytes;
};

struct NormParams {
  Side left, right;  // right: Kind::Concat only
  char* residual;    // Kind::Add only
  uint32_t out_bytes, residual_bytes;
  uint32_t vectors;  // of a row
  float inverse_n, eps;
};

// Grid: x = rows, y = sides. kGroups groups of 256 elements are dealt to the warps in turn; those behind the row's
// end are zeros.
template <Kind kKind, int kGroups, int kVectors>
__global__ void __launch_bounds__(kWarp* kGroups / kVectors) norm(const NormParams p) {
  constexpr int kWarps = kGroups / kVectors, kThreads = kWarp * kWarps;
  static_assert(kGroups % kVectors == 0, "every warp has as many groups");
  using Vector = Packed<kVectorBf16>;

  const bool right = kKind == Kind::Concat && blockIdx.y != 0;
  const uint32_t row = blockIdx.x, column = threadIdx.x * kVectorBytes;
  const char* const weight = (right ? p.right.weight : p.left.weight) + column;
  const char* const x = row_of((right ? p.right.x : p.left.x) + column, row, right ? p.right.x_bytes : p.left.x_bytes);
  char* const out = row_of((right ? p.right.out : p.left.out) + column, row, p.out_bytes);

  // Plain loads: the compiler moves those of the read-only path behind the wait.
  bool inside[kVectors];
  Vector weights[kVectors], values[kVectors] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    inside[k] = threadIdx.x + k * kThreads < p.vectors;
    weights[k] = {};
    if (inside[k]) weights[k].load(weight + k * kThreads * kVectorBytes);
  }
  // What comes next begins with weights at most, and waits for all of this.
  pdl::launch_dependents();
  pdl::wait();
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (inside[k]) values[k].load(x + k * kThreads * kVectorBytes);
  }
  if constexpr (kKind == Kind::Add) {
    char* const residual = row_of(p.residual + column, row, p.residual_bytes);
    Vector before[kVectors] = {};
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (inside[k]) before[k].load(residual + k * kThreads * kVectorBytes);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float sums[kVectorBf16];
#pragma unroll
      for (int i = 0; i < kVectorBf16; ++i) sums[i] = __fadd_rn(before[k].at(i), values[k].at(i));
      values[k] = Vector::rounded(sums);
      if (inside[k]) values[k].store(residual + k * kThreads * kVectorBytes);
    }
  }

  float sums[kVectors];  // of this warp's groups: warp, warp + kWarps, ...
#pragma unroll
  for (int k = 0; k < kVectors; ++k) sums[k] = sum_of_squares(values[k]);
  sum_of_lanes<kWarp>(sums);
  float sum = sums[0];
  if constexpr (kGroups > 1) {
    __shared__ alignas(16) float groups[kGroups];
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) groups[threadIdx.x / kWarp + k * kWarps] = sums[k];
    }
    __syncthreads();
    sum = sum_of_parts(groups);
  }
  const float scale = scale_of(sum, p.inverse_n, p.eps);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float y[kVectorBf16];
#pragma unroll
    for (int i = 0; i < kVectorBf16; ++i) {
      y[i] = __fmul_rn(__fmul_rn(values[k].at(i), scale), __fadd_rn(1.0f, weights[k].at(i)));
    }
    if (inside[k]) Vector::rounded(y).store(out + k * kThreads * kVectorBytes);
  }
}

// What the three parameter structs share.
struct NormLaunch {
  int32_t rows, n, vectors_per_thread;
  bool programmatic;
  ls_stream_t stream;
};

template <Kind kKind, int kGroups, int kVectors>
int32_t launch_norm(const NormParams& p, const NormLaunch& l) {
  constexpr unsigned kSides = kKind == Kind::Concat ? 2 : 1;
  constexpr unsigned kThreads = kWarp * kGroups / kVectors;
  return launch(norm<kKind, kGroups, kVectors>, dim3(l.rows, kSides), kThreads, 0, l.stream, l.programmatic, p);
}

// More vectors a thread only where four warps are left.
template <Kind kKind, int kGroups>
int32_t launch_groups(const NormParams& p, const NormLaunch& l) {
  if (l.vectors_per_thread == 1) return launch_norm<kKind, kGroups, 1>(p, l);
  if constexpr (kGroups >= 8) {
    if (l.vectors_per_thread == 2) return launch_norm<kKind, kGroups, 2>(p, l);
  }
  if constexpr (kGroups >= 16) {
    if (l.vectors_per_thread == 4) return launch_norm<kKind, kGroups, 4>(p, l);
  }
  return LS_ERR_UNSUPPORTED;
}

template <Kind kKind>
int32_t launch_width(NormParams p, const NormLaunch& l, float eps) {
  if (l.n < 1 || l.n > kMaxWidth || l.n % kVectorBf16 != 0 || l.rows < 0) return LS_ERR_UNSUPPORTED;
  if (l.rows == 0) return LS_OK;
  p.vectors = l.n / kVectorBf16;
  p.inverse_n = 1.0f / float(l.n);
  p.eps = eps;
  const int groups = ceil_div(l.n, kGroup);
  if (groups <= 1) return launch_groups<kKind, 1>(p, l);
  if (groups <= 2) return launch_groups<kKind, 2>(p, l);
  if (groups <= 4) return launch_groups<kKind, 4>(p, l);
  if (groups <= 8) return launch_groups<kKind, 8>(p, l);
  if (groups <= 16) return launch_groups<kKind, 16>(p, l);
  if (groups <= 20) return launch_groups<kKind, 20>(p, l);  // 5120: no group too many
  return launch_groups<kKind, 32>(p, l);
}

}  // namespace lockstep::dense
