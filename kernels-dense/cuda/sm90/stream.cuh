// Linear layers by WGMMA: a warp streams the weight through a deep ring, another one x, one or two warpgroups multiply.
//
// A weight is read once, at the speed of memory, and everything else hides behind that. What it waits for is known
// before the preceding kernel is done: the ring is full of weights when the first row of x comes.
#pragma once

#include "consume.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/tensor_map.cuh"

namespace lockstep::dense::sm90 {

// Two warps with a thread each: one brings the weights, which wait for nobody, the other one rows of x.
template <int kN, int kGroups, Kind kKind, int kResident>
struct Producer {
  using S = Shared<kN, kGroups, kKind, kResident>;

  const Layer& layer;
  const CUtensorMap &weight, &x;
  S& shared;
  const Deal& deal;

  __device__ __forceinline__ void bring_weights(const Walk& walk, int stage, uint64_t policy) const {
    Barrier& there = shared.weights_there[stage];
    there.arrive_and_expect(S::kWeightBytes);
    const int k = walk.k();
    uint8_t* const to = shared.weights[stage];
    if constexpr (kKind == Kind::Gated) {
      const int first = walk.item.tile * kTileFeatures;
      tensor_load(to, weight, {k, first, 0, 0, 0}, there, policy);
      tensor_load(to + kTileBytes, weight, {k, layer.n + first, 0, 0, 0}, there, policy);
    } else {
      tensor_load(to, weight, {k, walk.item.tile * (kGroups * kTileFeatures), 0, 0, 0}, there, policy);
    }
  }

  // A copy that is asked for waits for those before it, x for the weights as well. So only as many are as keep memory
  // busy: x comes soon, and no multiprocessor gets ahead of the others by a long queue.
  __device__ __forceinline__ void run_weights(bool keep) const {
    const uint64_t policy = keep ? policy_read_again() : policy_read_once();
    const Share share(deal);
    int32_t asked = 0;
    Cursor<S::kStages> at, landed;
#pragma unroll 1
    for (Walk walk(share); walk.there(); walk.next(), at.advance()) {
      shared.weights_free[at.stage].wait(at.parity ^ 1);
      if (asked == S::kInFlight) {
        shared.weights_there[landed.stage].wait(landed.parity), landed.advance();
      } else {
        ++asked;
      }
      bring_weights(walk, at.stage, policy);
    }
  }
  // Each block of a team brings some of the rows to all of them.
  __device__ __forceinline__ void run_rows() const {
    const uint64_t policy = policy_read_again();
    const int32_t rows = rows_each(layer.rows, deal.team), own = blockIdx.x % deal.team, first = S::first_row();
    const uint32_t bytes = rows * deal.team * kRowBytes;
    const uint16_t team = (1 << deal.team) - 1;
    const Share share(deal);
    Cursor<S::kStages> at;
#pragma unroll 1
    for (Walk walk(share); walk.there(); walk.next(), at.advance()) {
      (deal.team > 1 ? shared.rows_free : shared.weights_free)[at.stage].wait(at.parity ^ 1);
      Barrier& there = shared.rows_there[at.stage];
      there.arrive_and_expect(bytes);
      uint8_t* const to = shared.rows[at.stage] + own * rows * kRowBytes;
      const int32_t from[5] = {walk.k(), first + own * rows, 0, 0, 0};
      if (deal.team > 1) {
        tensor_load_to_many(to, x, from, there, team, policy);
      } else {
        tensor_load(to, x, from, there, policy);
      }
    }
  }
  // Rows that a block brings; those of a team are whole periods of the swizzle.
  static __host__ __device__ __forceinline__ int32_t rows_each(int32_t rows, int32_t team) {
    if (S::kBeside && rows > kN) rows = kN;
    return team == 1 ? rows : (rows + 8 * team - 1) / (8 * team) * 8;
  }
};

template <int kN, int kGroups, Kind kKind, int kResident>
__global__ void __launch_bounds__(Shared<kN, kGroups, kKind, kResident>::kThreads, kResident)
    linear(const Layer layer, const Deal deal, bool keep, const __grid_constant__ CUtensorMap weight,
           const __grid_constant__ CUtensorMap x) {
  using S = Shared<kN, kGroups, kKind, kResident>;
  extern __shared__ uint8_t bytes[];
  S& shared = *reinterpret_cast<S*>(bytes + (1024 - shared_address(bytes) % 1024) % 1024);
  if (threadIdx.x == S::kConsumers) prefetch_map(weight);
  if (threadIdx.x == S::kConsumers + 32) prefetch_map(x);
  if (threadIdx.x < S::kStages) {
    shared.weights_there[threadIdx.x].init(1), shared.rows_there[threadIdx.x].init(1);
    shared.weights_free[threadIdx.x].init(4 * kGroups), shared.rows_free[threadIdx.x].init(4 * kGroups * deal.team);
    if (threadIdx.x == 0) shared.sums_there.init(1);
    Barrier::publish();
  }
  __syncthreads();
  // Others of the team arrive here, too.
  if (S::kTeams && deal.team > 1) cluster_arrive(), cluster_wait();
  if (threadIdx.x >= S::kConsumers) {
    if constexpr (S::kWide) give_registers<40>();
    const Producer<kN, kGroups, kKind, kResident> producer{layer, weight, x, shared, deal};
    if (threadIdx.x == S::kConsumers) producer.run_weights(keep);
    pdl::wait();
    pdl::launch_dependents();
    if (threadIdx.x == S::kConsumers + 32) producer.run_rows();
  } else {
    if constexpr (S::kWide) take_registers<232>();
    pdl::wait();
    Consumer<kN, kGroups, kKind, kResident>(layer, shared, deal).run();
  }
}

// A matrix of bf16 for boxes of 64 elements of `box_rows` rows.
inline int32_t matrix_map(const void* base, int32_t rows, int32_t k, int64_t stride, uint32_t box_rows,
                          CUtensorMapL2promotion fetch, CUtensorMap& map) {
  const uint64_t bytes = uint64_t(stride) * 2, all = bytes * rows;
  const TensorMap matrix = {base,     {uint64_t(k), uint64_t(rows), 1, 1, 1}, {bytes, all, all, all},
                            box_rows, fetch};
  return matrix.encode(map);
}

// How a launch is cut: rows of x computed together, blocks of each such group of rows, groups beside each other.
struct Cut {
  int32_t columns, blocks, groups;
  bool programmatic;
};
constexpr int32_t kMostGroups = 65535;  // that a grid has room for

template <int kN, int kGroups, Kind kKind, int kResident>
int32_t launch_columns(const Layer& all, const Cut& cut, ls_stream_t stream) {
  using S = Shared<kN, kGroups, kKind, kResident>;
  constexpr size_t kBytes = sizeof(S) + 1024;
  static_assert(kBytes <= S::kMostBytes, "kStages counts everything");
  constexpr int kFeatures = kKind == Kind::Gated ? kTileFeatures : kGroups * kTileFeatures;
  const int32_t tiles = ceil_div(all.n, kFeatures), units = tiles * all.segments;
  const int32_t blocks = cut.blocks, groups = cut.groups;
  if (blocks < 1 || blocks > units || blocks > LS_DENSE_MAX_BLOCKS) return LS_ERR_UNSUPPORTED;
  if (groups < 1 || groups > (S::kBeside ? kMostGroups : 1)) return LS_ERR_UNSUPPORTED;
  if (int64_t(units) * all.segment_steps > INT32_MAX) return LS_ERR_UNSUPPORTED;
  const auto kernel = linear<kN, kGroups, kKind, kResident>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kBytes));
  if (error != cudaSuccess) return int32_t(error);
  const bool clusters = S::kClusters && all.segments > 1 && all.segments <= kMostInCluster && blocks == units;
  const int32_t team = S::kTeams && tiles % 2 == 0 && blocks % 2 == 0 ? 2 : 1;
  // Blocks that begin and end a unit, and add up within their cluster at most, owe nothing to each other.
  const bool adds_up = all.segments > 1 && !clusters;
  if (blocks < units && int64_t(groups) * blocks > LS_DENSE_MAX_BLOCKS) return LS_ERR_UNSUPPORTED;
  if (adds_up && int64_t(groups) * tiles > LS_DENSE_MAX_SPLIT_TILES) return LS_ERR_UNSUPPORTED;
  const Deal deal(all, tiles, blocks, team, clusters);
  CUtensorMap weight, x;
  constexpr uint32_t kBox = kKind == Kind::Gated ? kTileFeatures : kGroups * kTileFeatures;
  int32_t status =
      matrix_map(all.weight, all.valid, all.k, all.weight_stride, kBox, CU_TENSOR_MAP_L2_PROMOTION_NONE, weight);
  const int64_t most = int64_t(groups) * kN;  // rows of a launch
  for (int64_t first = 0; first < all.rows && status == LS_OK; first += most) {
    const Layer layer = all.block(int32_t(first), int32_t(all.rows - first < most ? all.rows - first : most));
    // What lies behind the rows in a stage may be anything: no column knows of another one.
    const uint32_t box = Producer<kN, kGroups, kKind, kResident>::rows_each(layer.rows, team);
    status = matrix_map(layer.x, layer.rows, layer.k, layer.x_stride, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, x);
    if (status != LS_OK) break;
    // Other rows read the weight again.
    const bool keep = all.rows > kN;
    status = launch_clusters(kernel, dim3(blocks, ceil_div(layer.rows, kN)), clusters ? all.segments : team, S::kThreads,
                             kBytes, stream, cut.programmatic, layer, deal, keep, weight, x);
  }
  return status;
}

// Up to 64 rows.
template <int kGroups, Kind kKind, int kResident>
int32_t launch_few(const Layer& layer, const Cut& cut, ls_stream_t stream) {
  switch (cut.columns) {
    case 8: return launch_columns<8, kGroups, kKind, kResident>(layer, cut, stream);
    case 16: return launch_columns<16, kGroups, kKind, kResident>(layer, cut, stream);
    case 24: return launch_columns<24, kGroups, kKind, kResident>(layer, cut, stream);
    case 32: return launch_columns<32, kGroups, kKind, kResident>(layer, cut, stream);
    case 48: return launch_columns<48, kGroups, kKind, kResident>(layer, cut, stream);
    case 64: return launch_columns<64, kGroups, kKind, kResident>(layer, cut, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::dense::sm90
