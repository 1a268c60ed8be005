// The mixture of experts: logits, routes and lists, gate and up of the experts, down of the experts, and the sum of a
// row's outputs. Five launches.
#pragma once

#include "experts.cuh"

namespace lockstep::dense {

struct Combination {
  const __nv_bfloat16* outputs;  // [pairs + rows, hidden]
  const float* weights;          // [rows, top_k + 1]
  __nv_bfloat16* out;            // [rows, hidden]
  int64_t out_stride;
  int32_t rows, hidden, top_k;
};

constexpr int kCombineThreads = 128;
constexpr int kCombineBlocks = 4;  // of a multiprocessor: registers for all of a thread's loads at once

// out += what the experts of the row's route say, in its order, and the shared one; a thread has eight elements.
__global__ void __launch_bounds__(kCombineThreads, kCombineBlocks) combine(const Combination c) {
  const int row = blockIdx.y, at = (blockIdx.x * kCombineThreads + threadIdx.x) * kVectorBf16;
  pdl::launch_dependents();
  pdl::wait();
  if (at >= c.hidden) return;
  const float* const weights = c.weights + int64_t(row) * (c.top_k + 1);
  const auto output = [&](int pair) { return load_global(c.outputs + int64_t(pair) * c.hidden + at); };
  __nv_bfloat16* const out = c.out + row * c.out_stride + at;
  // Asked for first, needed last.
  const uint4 old = load_global(out), shared = output(c.rows * c.top_k + row);
  const float shared_weight = weights[c.top_k];
  float sum[kVectorBf16] = {};
  const auto add = [&](const uint4& y, float weight) {
#pragma unroll
    for (int i = 0; i < kVectorBf16; ++i) sum[i] = __fmaf_rn(weight, bf16_at(y, i), sum[i]);
  };
#pragma unroll 8
  for (int rank = 0; rank < c.top_k; ++rank) add(output(row * c.top_k + rank), weights[rank]);
  add(shared, shared_weight);
  const uint4 rounded = pack_bf16(sum);
#pragma unroll
  for (int i = 0; i < kVectorBf16; ++i) sum[i] = __fadd_rn(bf16_at(old, i), bf16_at(rounded, i));
  store_global(out, pack_bf16(sum));
}

template <int kN>
int32_t launch_router(const Mixture& m) {
  const Layer layer = m.router_layer();
  using RouterTile = Tile<kN, Kind::Head, kRouterWarps, kRouterStages>;
  const dim3 grid(ceil_div(m.width(), RouterTile::kFeatures), ceil_div(m.rows, kN), layer.segments);
  return launch_tiles<RouterTile>(router<kN>, grid, m.programmatic(), m.stream, layer,
                                  static_cast<const __nv_bfloat16*>(m.p.shared_gate));
}

int32_t launch_router(const Mixture& m) {
  switch (m.p.columns) {
    case 8: return launch_router<8>(m);
    case 16: return launch_router<16>(m);
    case 32: return launch_router<32>(m);
    default: return LS_ERR_UNSUPPORTED;
  }
}

int32_t launch_route(const Mixture& m) {
  const auto kernel = m.p.experts <= 256 ? route<8> : route<LS_DENSE_MOE_MAX_EXPERTS / 32>;
  return launch(kernel, ceil_div(m.rows, kRouteWarps), kRouteThreads, 0, m.stream, m.programmatic(), m.routing());
}

int32_t launch_combination(const Mixture& m) {
  const ls_dense_moe_params& p = m.p;
  const Combination combination = {static_cast<const __nv_bfloat16*>(p.outputs),
                                   p.weights,
                                   static_cast<__nv_bfloat16*>(p.out) + m.first * p.out_stride,
                                   p.out_stride,
                                   m.rows,
                                   p.hidden,
                                   p.top_k};
  const dim3 rows(ceil_div(p.hidden, kCombineThreads * kVectorBf16), m.rows);
  return launch(combine, rows, kCombineThreads, 0, m.stream, m.programmatic(), combination);
}

template <int kN>
int32_t launch_mixture(const Mixture& m) {
  int32_t status = launch_router(m);
  if (status != LS_OK || (status = launch_route(m)) != LS_OK) return status;
  const Experts up = m.up(), down = m.down();
  const int32_t groups = up.shared_groups + m.group_count();
  // Half tiles: a row has few experts, and every multiprocessor wants a part of them.
  status = launch_experts<kN, Kind::Gated, 2, 6>(up, groups, m.programmatic(), m.stream);
  if (status != LS_OK) return status;
  status = launch_experts<kN, Kind::Linear, 4, 6>(down, groups, m.programmatic(), m.stream);
  return status == LS_OK ? launch_combination(m) : status;
}

inline int32_t launch_moe(const ls_dense_moe_params& p, ls_stream_t stream) {
  return for_parts(p, stream, [](const Mixture& m) {
    switch (m.p.columns) {
      case 8: return launch_mixture<8>(m);
      case 16: return launch_mixture<16>(m);
      case 32: return launch_mixture<32>(m);
      default: return int32_t(LS_ERR_UNSUPPORTED);
    }
  });
}

}  // namespace lockstep::dense
