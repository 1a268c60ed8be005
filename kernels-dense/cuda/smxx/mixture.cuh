// What every launch of a mixture of experts is about: the rows, the two layers of all experts, the groups of rows.
#pragma once

#include "layer.cuh"
#include "lockstep/launch.cuh"

namespace lockstep::dense {

// Rows of one expert that are computed together.
struct Group {
  int32_t expert, first, count, nothing;  // members first to first + count; none of a group that is not needed
};

// A layer of each routed expert and of the shared one. Rows of the output are pairs: row * top_k + rank, then, for the
// shared expert, rows * top_k + row.
struct Experts {
  Layer routed, shared;
  int64_t expert_stride;   // of the routed weights
  const int32_t* members;
  const Group* groups;
  int32_t rows, top_k, columns, shared_groups;
  bool gather;             // whether rows of x are rows, and not pairs
};

// At most so many groups of routed experts: with D experts of R rows in all, D + (R - D) / columns, rounded down.
inline int32_t routed_groups(int32_t experts, int32_t pairs, int32_t columns) {
  const int32_t distinct = experts < pairs ? experts : pairs;
  return distinct + (pairs - distinct) / columns;
}

struct Routing {
  const float* logits;  // [segments, rows, width]
  float* weights;       // [rows, top_k + 1]
  int32_t* chosen;      // [rows, top_k]
  int32_t* members;     // [rows * top_k], pairs by expert
  Group* groups;        // [group_count]
  int32_t* routes;      // null where nobody asks
  uint32_t* arrived;
  int64_t routes_stride;
  int32_t rows, experts, width, segments, top_k, columns, group_count;
};

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

  Routing routing() const {
    return {p.logits, p.weights, p.chosen, p.members, groups(), p.routes ? p.routes + first * p.routes_stride : nullptr,
            p.flags + LS_DENSE_MAX_BLOCKS, p.routes_stride, rows, p.experts, width(), router_layer().segments, p.top_k,
            p.columns, group_count()};
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
    const int32_t shared_groups = ceil_div(rows, p.columns);
    return {routed, shared, expert_stride, p.members, groups(), rows, p.top_k, p.columns, shared_groups, gather};
  }
  Experts up() const {
    return experts(up_layer(p.gate_up, p.gate_up_stride, p.intermediate, p.gate_up_segment),
                   up_layer(p.shared_gate_up, p.shared_gate_up_stride, p.shared_intermediate, p.shared_gate_up_segment),
                   p.gate_up_expert_stride, true);
  }
  Experts down() const {
    return experts(down_layer(p.down, p.down_stride, p.intermediate, p.down_segment),
                   down_layer(p.shared_down, p.shared_down_stride, p.shared_intermediate, p.shared_down_segment),
                   p.down_expert_stride, false);
  }
};

// Calls `body` for the rows of each part of a launch.
template <typename Body>
int32_t for_parts(const ls_dense_moe_params& p, ls_stream_t stream, Body body) {
  if (p.experts > LS_DENSE_MOE_MAX_EXPERTS || p.top_k > LS_DENSE_MOE_MAX_TOP_K) return LS_ERR_UNSUPPORTED;
  if (p.rows == 0) return LS_OK;
  if (p.rows_at_once < 1 || int64_t(p.rows_at_once) * p.top_k > LS_DENSE_MOE_MAX_PAIRS) return LS_ERR_UNSUPPORTED;
  int32_t status = LS_OK;
  for (int32_t first = 0; first < p.rows && status == LS_OK; first += p.rows_at_once) {
    status = body(Mixture{p, first, p.rows - first < p.rows_at_once ? p.rows - first : p.rows_at_once, stream});
  }
  return status;
}

// The launches before and behind the experts' layers.
int32_t launch_router(const Mixture& m);
int32_t launch_route(const Mixture& m);
int32_t launch_combination(const Mixture& m);

}  // namespace lockstep::dense
