// Where rows go: logits of the router, the route of each row, and the list of who goes to which expert.
#pragma once

#include "lockstep/flags.cuh"
#include "choose.cuh"
#include "products.cuh"

namespace lockstep::dense {

// The router's rows, and behind them that of the shared expert's gate. A block has one segment of k: sums of 512
// products are soon there, and whoever needs a logit adds its segments.
struct RouterRows {
  static constexpr bool kRagged = false;
  Layer layer;
  const __nv_bfloat16* shared_gate;
  int first_feature, first_column, columns;

  __device__ __forceinline__ const __nv_bfloat16* weight(int feature, bool) const {
    const int last = layer.valid - 1;
    return feature < last ? layer.weight + feature * layer.weight_stride : feature == last ? shared_gate : nullptr;
  }
  __device__ __forceinline__ const __nv_bfloat16* x(int column) const {
    return layer.x + (first_column + column) * layer.x_stride;
  }
  __device__ __forceinline__ int out(int column) const { return first_column + column; }
};

constexpr int kRouterWarps = 2;
constexpr int kRouterStages = 9;  // all of a segment's eight steps are on their way at once

template <int kN>
__global__ void __launch_bounds__(32 * kRouterWarps) router(const Layer layer, const __nv_bfloat16* shared_gate) {
  using P = Products<kN, Kind::Head, kRouterWarps, kRouterStages, RouterRows>;
  extern __shared__ uint4 bytes[];
  const int segment = blockIdx.z, begin = segment * layer.segment_steps;
  RouterRows operands = {layer, shared_gate};
  operands.layer.logits += segment * (layer.rows * layer.out_stride);
  operands.first_feature = blockIdx.x * P::T::kFeatures;
  operands.first_column = blockIdx.y * kN;
  operands.columns = min(kN, layer.rows - operands.first_column);
  const P products(operands, reinterpret_cast<typename P::Stage*>(bytes), begin,
                   min(layer.steps, begin + layer.segment_steps));
  products.bring_first_weights();
  // What comes next begins with weights at most, and waits for all of this.
  pdl::launch_dependents();
  pdl::wait();
  typename P::Sums sums = {};
  if (products.end - begin < kRouterStages) {
    products.run_at_once(sums);
  } else {
    products.run(sums);
  }
  Best best[kN / 8];
  products.finish(sums, best);
}

constexpr int kRouteWarps = 8;
constexpr int kRouteThreads = 32 * kRouteWarps;
constexpr int kExpertsOfThread = LS_DENSE_MOE_MAX_EXPERTS / kRouteThreads;
static_assert(kExpertsOfThread * kRouteThreads == LS_DENSE_MOE_MAX_EXPERTS);
static_assert(LS_DENSE_MOE_MAX_EXPERTS <= 1 << 16 && LS_DENSE_MOE_MAX_PAIRS < 1 << 16, "16 bits hold a number of either");

// Of the block that is done last: pairs (row, rank) by expert, in ascending order, and cut into groups.
struct List {
  const Routing& r;
  uint16_t* const ids;       // [pairs]
  int32_t* const counts;     // [experts], then where each one's members go
  uint32_t* const of_warps;  // [kRouteWarps]

  __device__ __forceinline__ void run() const {
    const int pairs = r.rows * r.top_k, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < r.experts; i += kRouteThreads) counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += kRouteThreads) {
      const int id = __ldcg(r.chosen + i);  // of any block
      ids[i] = uint16_t(id);
      atomicAdd(counts + id, 1);
    }
    __syncthreads();
    // Members before an expert in the high half, groups before it in the low one.
    int own[kExpertsOfThread];
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kExpertsOfThread; ++i) {
      const int expert = threadIdx.x * kExpertsOfThread + i;
      own[i] = expert < r.experts ? counts[expert] : 0;
      sum += uint32_t(own[i]) << 16 | uint32_t(ceil_div(own[i], r.columns));
    }
    uint32_t before = sum;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, before, distance);
      if (lane >= distance) before += other;
    }
    if (lane == 31) of_warps[warp] = before;
    before -= sum;
    __syncthreads();
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < kRouteWarps; ++i) {
      if (i == warp) before += all;
      all += of_warps[i];
    }
    int first = before >> 16, group = before & 0xffff;
#pragma unroll
    for (int i = 0; i < kExpertsOfThread; ++i) {
      const int expert = threadIdx.x * kExpertsOfThread + i;
      if (expert < r.experts) counts[expert] = first;
      for (int done = 0; done < own[i]; done += r.columns, ++group) {
        r.groups[group] = {expert, first + done, min(r.columns, own[i] - done), 0};
      }
      first += own[i];
    }
    for (int i = (all & 0xffff) + threadIdx.x; i < r.group_count; i += kRouteThreads) r.groups[i] = {};
    __syncthreads();
    if (warp == 0) place(pairs, lane);
  }

  __device__ __forceinline__ void place(int pairs, int lane) const {
    for (int first = 0; first < pairs; first += 32) {
      const int pair = first + lane;
      const bool live = pair < pairs;
      const int id = live ? ids[pair] : -1;
      const uint32_t same = __match_any_sync(0xffffffffu, id);
      if (live) r.members[counts[id] + __popc(same & ((1u << lane) - 1))] = pair;
      __syncwarp();
      if (live && lane == __ffs(same) - 1) counts[id] += __popc(same);
      __syncwarp();
    }
  }
};

// Of a row that is alone: each of its experts is a group, the smallest id first. `expert` is that of rank `lane`.
__device__ __forceinline__ void list_one(const Routing& r, int lane, int expert) {
  int before = 0;
  for (int rank = 0; rank < r.top_k; ++rank) before += __shfl_sync(0xffffffffu, expert, rank) < expert;
  if (lane >= r.top_k) return;
  r.members[before] = lane;
  r.groups[before] = {expert, before, 1, 0};
}

template <int kEach>
__global__ void __launch_bounds__(kRouteThreads) route(const Routing routing) {
  __shared__ uint16_t ids[LS_DENSE_MOE_MAX_PAIRS];
  __shared__ int32_t counts[LS_DENSE_MOE_MAX_EXPERTS];
  __shared__ uint32_t of_warps[kRouteWarps];
  __shared__ bool last;
  const int row = blockIdx.x * kRouteWarps + threadIdx.x / 32;
  // What comes next begins with weights, and waits for all of this.
  pdl::launch_dependents();
  pdl::wait();
  if (row < routing.rows) {
    const int lane = threadIdx.x % 32, top_k = routing.top_k;
    const Choice choice = RouteOfRow<kEach>{routing, row, lane}.choose();
    float* const weights = routing.weights + int64_t(row) * (top_k + 1);
    if (lane < top_k) {
      weights[lane] = choice.weight;
      routing.chosen[row * top_k + lane] = choice.expert;
      if (routing.routes != nullptr) routing.routes[row * routing.routes_stride + lane] = choice.expert;
    }
    if (lane == 0) weights[top_k] = choice.shared;
    if (routing.rows == 1) return list_one(routing, lane, choice.expert);
  }
  if (routing.rows == 1) return;
  __syncthreads();
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) {
      last = add_acquire_release(routing.arrived, 1) == gridDim.x - 1;
      if (last) *routing.arrived = 0;
    }
    __syncthreads();
    if (!last) return;
  }
  List{routing, ids, counts, of_warps}.run();
}

}  // namespace lockstep::dense
