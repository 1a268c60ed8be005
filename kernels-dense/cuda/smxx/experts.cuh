// Linear layers of many experts in one launch: a block has one tile of one expert's weight, and the rows that chose it.
//
// Blocks of a group stand beside each other, and groups of an expert too: what rows of more than one group need of a
// weight is still in the L2 cache.
#pragma once

#include "route.cuh"

namespace lockstep::dense {

struct GroupRows {
  static constexpr bool kRagged = true;
  Layer layer;
  int first_feature, columns;
  const int32_t *from, *to;  // [columns], in shared memory

  __device__ __forceinline__ const __nv_bfloat16* weight(int among, bool up) const {
    const int feature = up ? layer.n + among : among;
    return among < layer.n ? layer.weight + feature * layer.weight_stride : nullptr;
  }
  __device__ __forceinline__ const __nv_bfloat16* x(int column) const {
    return layer.x + from[column] * layer.x_stride;
  }
  __device__ __forceinline__ int out(int column) const { return to[column]; }
};

template <int kN, Kind kKind, int kWarps, int kStages>
__global__ void __launch_bounds__(32 * kWarps) experts(const Experts e) {
  using P = Products<kN, kKind, kWarps, kStages, GroupRows>;
  static_assert(kN <= P::T::kThreads, "a thread for each column");
  extern __shared__ uint4 bytes[];
  __shared__ int32_t from[kN], to[kN];
  const bool shared = blockIdx.y < e.shared_groups;
  GroupRows operands = {shared ? e.shared : e.routed, int(blockIdx.x * P::T::kFeatures), 0, from, to};
  const bool inside = operands.first_feature < operands.layer.n;
  const P products(operands, reinterpret_cast<typename P::Stage*>(bytes));
  // Which other weights there are to read is not known yet.
  if (shared && inside) products.bring_first_weights();
  pdl::wait();
  pdl::launch_dependents();
  Group group = {0, int(blockIdx.y * e.columns), 0, 0};
  if (shared) {
    group.count = min(e.columns, e.rows - group.first);
  } else {
    group = e.groups[blockIdx.y - e.shared_groups];
  }
  // All of the block, and nothing is on its way.
  if (!inside || group.count == 0) return;
  operands.columns = group.count;
  if (!shared) {
    operands.layer.weight += group.expert * e.expert_stride;
    products.bring_first_weights();
  }
  if (threadIdx.x < group.count) {
    const int index = group.first + threadIdx.x;
    const int pair = shared ? e.rows * e.top_k + index : e.members[index];
    to[threadIdx.x] = pair;
    from[threadIdx.x] = !e.gather ? pair : shared ? index : pair / e.top_k;
  }
  __syncthreads();
  typename P::Sums sums = {};
  products.run(sums);
  Best best[kN / 8];
  products.finish(sums, best);
}

template <int kN, Kind kKind, int kWarps, int kStages>
int32_t launch_experts(const Experts& e, int32_t groups, bool programmatic, ls_stream_t stream) {
  using T = Tile<kN, kKind, kWarps, kStages>;
  const int32_t n = e.routed.n > e.shared.n ? e.routed.n : e.shared.n;
  return launch_tiles<T>(experts<kN, kKind, kWarps, kStages>, dim3(ceil_div(n, T::kFeatures), groups), programmatic,
                         stream, e);
}

}  // namespace lockstep::dense
