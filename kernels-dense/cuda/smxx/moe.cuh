// The mixture of experts: logits, routes and lists, gate and up of the experts, down of the experts, and the sum of a
// row's outputs. Five launches.
#pragma once

#include "experts.cuh"

namespace lockstep::dense {

// Rows that are computed together, and how many columns a block has for them.
struct Mixture {
  const ls_dense_moe_params& p;
  int32_t first, rows;
  ls_stream_t stream;

  bool programmatic() const { return p.programmatic != 0; }
  int32_t width() const { return ceil_div(p.experts + 1, 8) * 8; }
  int32_t pairs() const { return rows * p.top_k; }
  int32_t group_count() const { return routed_groups(p.experts, pairs(), p.columns); }
  const __nv_bfloat16* x() const { return static_cast<const __nv_bfloat16*>(p.x) + first * p.x_stride; }
  Group* groups() const { return reinterpret_cast<Group*>(p.groups); }

  Layer router_layer() const {
    ls_dense_head_params head = {};
    head.logits = p.logits, head.logits_stride = width();
    head.x = x(), head.x_stride = p.x_stride;
    head.weight = p.router, head.weight_stride = p.router_stride;
    head.rows = rows, head.k = p.hidden, head.features = width(), head.valid = p.experts + 1;
    head.segment = p.router_segment;
    return Layer(head);
  }

  Layer up_layer(const void* weight, int64_t stride, int32_t inner, int32_t segment) const {
    ls_dense_linear_params up = {};
    up.out = p.inner, up.out_stride = p.inner_width;
    up.x = x(), up.x_stride = p.x_stride;
    up.weight = weight, up.weight_stride = stride;
    up.rows = rows, up.k = p.hidden, up.n = inner, up.segment = segment, up.epilogue = LS_DENSE_SILU_MUL;
    return Layer(up);
  }
  Layer down_layer(const void* weight, int64_t stride, int32_t inner, int32_t segment) const {
    ls_dense_linear_params down = {};
    down.out = p.outputs, down.out_stride = p.hidden;
    down.x = p.inner, down.x_stride = p.inner_width;
    down.weight = weight, down.weight_stride = stride;
    down.rows = rows, down.k = inner, down.n = p.hidden, down.segment = segment, down.epilogue = LS_DENSE_STORE;
    return Layer(down);
  }
  Experts experts(const Layer& routed, const Layer& shared, int64_t expert_stride, bool gather) const {
    return {routed,    shared,   expert_stride,                  p.members, groups(), rows,
            p.top_k, p.columns, ceil_div(rows, p.columns), gather};
  }
};

struct Combination {
  const __nv_bfloat16* outputs;  // [pairs + rows, hidden]
  const float* weights;          // [rows, top_k + 1]
  __nv_bfloat16* out;            // [rows, hidden]
  int64_t out_stride;
  int32_t rows, hidden, top_k;
};

constexpr int kCombineThreads = 128;

// out += what the experts of the row's route say, in its order, and the shared one; a thread has eight elements.
__global__ void __launch_bounds__(kCombineThreads) combine(const Combination c) {
  const int row = blockIdx.y, at = (blockIdx.x * kCombineThreads + threadIdx.x) * kVectorBf16;
  pdl::wait();
  pdl::launch_dependents();
  if (at >= c.hidden) return;
  const float* const weights = c.weights + int64_t(row) * (c.top_k + 1);
  float sum[kVectorBf16] = {};
  const auto add = [&](int pair, float weight) {
    const uint4 y = load_global(c.outputs + int64_t(pair) * c.hidden + at);
#pragma unroll
    for (int i = 0; i < kVectorBf16; ++i) sum[i] = __fmaf_rn(weight, bf16_at(y, i), sum[i]);
  };
#pragma unroll 8
  for (int rank = 0; rank < c.top_k; ++rank) add(row * c.top_k + rank, weights[rank]);
  add(c.rows * c.top_k + row, weights[c.top_k]);
  __nv_bfloat16* const out = c.out + row * c.out_stride + at;
  const uint4 old = load_global(out), rounded = pack_bf16(sum);
#pragma unroll
  for (int i = 0; i < kVectorBf16; ++i) sum[i] = __fadd_rn(bf16_at(old, i), bf16_at(rounded, i));
  store_global(out, pack_bf16(sum));
}

template <int kN>
int32_t launch_mixture(const Mixture& m) {
  const ls_dense_moe_params& p = m.p;
  const bool programmatic = m.programmatic();
  const Layer router_layer = m.router_layer();
  using RouterTile = Tile<kN, Kind::Head, kRouterWarps, kRouterStages>;
  const dim3 grid(ceil_div(m.width(), RouterTile::kFeatures), ceil_div(m.rows, kN), router_layer.segments);
  int32_t status = launch_tiles<RouterTile>(router<kN>, grid, programmatic, m.stream, router_layer,
                                            static_cast<const __nv_bfloat16*>(p.shared_gate));
  if (status != LS_OK) return status;

  const Routing routing = {
      p.logits,  p.weights, p.chosen,  p.members, m.groups(), p.routes ? p.routes + m.first * p.routes_stride : nullptr,
      p.flags + LS_DENSE_MAX_BLOCKS, p.routes_stride, m.rows, p.experts, m.width(), router_layer.segments,
      p.top_k,   p.columns, m.group_count()};
  status = launch(route, ceil_div(m.rows, kRouteWarps), kRouteThreads, 0, m.stream, programmatic, routing);
  if (status != LS_OK) return status;

  const Experts up = m.experts(m.up_layer(p.gate_up, p.gate_up_stride, p.intermediate, p.gate_up_segment),
                               m.up_layer(p.shared_gate_up, p.shared_gate_up_stride, p.shared_intermediate,
                                          p.shared_gate_up_segment),
                               p.gate_up_expert_stride, true);
  const int32_t groups = up.shared_groups + m.group_count();
  // Half tiles: a row has few experts, and every multiprocessor wants a part of them.
  status = launch_experts<kN, Kind::Gated, 2, 6>(up, groups, programmatic, m.stream);
  if (status != LS_OK) return status;

  const Experts down = m.experts(m.down_layer(p.down, p.down_stride, p.intermediate, p.down_segment),
                                 m.down_layer(p.shared_down, p.shared_down_stride, p.shared_intermediate,
                                              p.shared_down_segment),
                                 p.down_expert_stride, false);
  status = launch_experts<kN, Kind::Linear, 4, 6>(down, groups, programmatic, m.stream);
  if (status != LS_OK) return status;

  const Combination combination = {static_cast<const __nv_bfloat16*>(p.outputs),
                                   p.weights,
                                   static_cast<__nv_bfloat16*>(p.out) + m.first * p.out_stride,
                                   p.out_stride,
                                   m.rows,
                                   p.hidden,
                                   p.top_k};
  const dim3 rows(ceil_div(p.hidden, kCombineThreads * kVectorBf16), m.rows);
  return launch(combine, rows, kCombineThreads, 0, m.stream, programmatic, combination);
}

inline int32_t launch_moe(const ls_dense_moe_params& p, ls_stream_t stream) {
  if (p.experts > LS_DENSE_MOE_MAX_EXPERTS || p.top_k > LS_DENSE_MOE_MAX_TOP_K) return LS_ERR_UNSUPPORTED;
  if (p.rows == 0) return LS_OK;
  if (p.rows_at_once < 1 || int64_t(p.rows_at_once) * p.top_k > LS_DENSE_MOE_MAX_PAIRS) return LS_ERR_UNSUPPORTED;
  int32_t status = LS_OK;
  for (int32_t first = 0; first < p.rows && status == LS_OK; first += p.rows_at_once) {
    const Mixture m = {p, first, p.rows - first < p.rows_at_once ? p.rows - first : p.rows_at_once, stream};
    switch (p.columns) {
      case 8: status = launch_mixture<8>(m); break;
      case 16: status = launch_mixture<16>(m); break;
      case 32: status = launch_mixture<32>(m); break;
      default: status = LS_ERR_UNSUPPORTED;
    }
  }
  return status;
}

}  // namespace lockstep::dense
