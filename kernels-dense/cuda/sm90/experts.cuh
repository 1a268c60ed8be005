// Linear layers of many experts in one launch, as a stream: a warp brings tiles of weights through a ring, two or four
// warps multiply.
//
// Blocks stay and walk through the tiles of all groups, so that memory waits neither for a tile's end nor for a block's
// start. A few of them share a multiprocessor: tiles are small, and one that begins or ends leaves the others
// streaming.
#pragma once

#include "lockstep/async.cuh"
#include "lockstep/mma.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/tensor_map.cuh"
#include "shared.cuh"
#include "smxx/mixture.cuh"

namespace lockstep::dense::sm90 {

// Of a multiprocessor: what shared memory has room for.
constexpr int expert_blocks(int columns) { return columns <= 16 ? 3 : 2; }

// kN: columns. kWarps: that multiply; each has 16 of a tile's rows of the weight.
template <int kN, int kWarps>
struct ExpertShared {
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kTileRows = 16 * kWarps;
  static constexpr int kBytes = kTileRows * kRowBytes;
  // As many bytes on their way.
  static constexpr int kStages = 20 / kWarps;
  // Rows come for several steps at once: a copy of many bytes takes no longer than one of few.
  static constexpr int kPartSteps = kN == 8 ? 8 : 4;
  // With a gap: eight rows lie in different banks.
  static constexpr int kPitch = kPartSteps * kRowBytes + kVectorBytes;

  uint8_t weights[kStages][kBytes];  // [stage][tile's rows, 64], swizzled
  uint8_t rows[2][kN][kPitch];       // [part][columns, 64 * kPartSteps]
  Barrier full[kStages], empty[kStages];
  Barrier rows_full[2], rows_empty[2];
};

// A tile of a group.
struct Task {
  Group group;
  int tile;
  bool shared;
};

// Tasks stand in a row: groups of the shared expert, then the others; tiles of a group beside each other, so that all
// groups of an expert find its weights in the L2 cache.
template <int kWarps, Kind kKind>
struct Tasks {
  // Half of a tile are gate rows if there are up rows.
  static constexpr int kFeatures = kKind == Kind::Gated ? 8 * kWarps : 16 * kWarps;

  const Experts& e;
  int shared_tiles, routed_tiles, shared_tasks, tasks;

  __device__ __forceinline__ Tasks(const Experts& e, int group_count)
      : e(e),
        shared_tiles(ceil_div(e.shared.n, kFeatures)),
        routed_tiles(ceil_div(e.routed.n, kFeatures)),
        shared_tasks(e.shared_groups * shared_tiles),
        tasks(shared_tasks + group_count * routed_tiles) {}

  // No rows where there is no such task; then there is none behind it.
  __device__ __forceinline__ Task at(int index) const {
    Task task = {};
    task.shared = index < shared_tasks;
    if (task.shared) {
      const int group = index / shared_tiles;
      task.tile = index - group * shared_tiles;
      task.group.first = group * e.columns;
      task.group.count = min(e.columns, e.rows - task.group.first);
    } else if (index < tasks) {
      const int group = (index - shared_tasks) / routed_tiles;
      task.tile = index - shared_tasks - group * routed_tiles;
      const int4 read = __ldcg(reinterpret_cast<const int4*>(e.groups) + group);
      task.group = {read.x, read.y, read.z, 0};
    }
    return task;
  }
  __device__ __forceinline__ int pair(const Task& task, int column) const {
    const int index = task.group.first + column;
    return task.shared ? e.rows * e.top_k + index : __ldcg(e.members + index);
  }
  __device__ __forceinline__ const Layer& layer(const Task& task) const { return task.shared ? e.shared : e.routed; }
};

// One warp: a lane brings the weights, each the row of a column.
template <int kN, int kWarps, Kind kKind>
struct ExpertProducer {
  using S = ExpertShared<kN, kWarps>;

  const Tasks<kWarps, kKind>& tasks;
  const CUtensorMap &routed, &shared;
  S& s;
  const int lane;
  const uint64_t once;

  __device__ __forceinline__ void bring_weights(const Task& task, int step, int stage) const {
    Barrier& full = s.full[stage];
    full.arrive_and_expect(S::kBytes);
    const int first = task.tile * Tasks<kWarps, kKind>::kFeatures;
    tensor_load(s.weights[stage], task.shared ? shared : routed, {step * kStep, first, 0, task.group.expert, 0}, full,
                once);
  }
  // Where the row of column `lane` is; null where there is none.
  __device__ __forceinline__ const __nv_bfloat16* row(const Task& task) const {
    if (lane >= task.group.count) return nullptr;
    const Experts& e = tasks.e;
    const int pair = tasks.pair(task, lane);
    const int from = !e.gather ? pair : task.shared ? task.group.first + lane : pair / e.top_k;
    const Layer& layer = tasks.layer(task);
    return layer.x + from * layer.x_stride;
  }
  // From `step` on.
  __device__ __forceinline__ void bring_rows(const Task& task, const __nv_bfloat16* row, int step, int part) const {
    const uint32_t bytes = min(S::kPartSteps, tasks.layer(task).steps - step) * kRowBytes;
    Barrier& full = s.rows_full[part];
    if (lane == 0) full.arrive_and_expect(task.group.count * bytes);
    __syncwarp();
    if (row != nullptr) bulk_load(s.rows[part][lane], row + step * kStep, bytes, full);
  }

  // A task's first weights: a lane fills a stage.
  __device__ __forceinline__ void begin(const Task& task) const {
    if (task.group.count > 0 && lane < min(S::kStages, tasks.layer(task).steps)) bring_weights(task, lane, lane);
    __syncwarp();
  }
  // If the first task is known before the preceding kernel is done.
  __device__ __forceinline__ bool begin_early(bool listed) const {
    if (!listed && int(blockIdx.x) >= tasks.shared_tasks) return false;
    begin(tasks.at(blockIdx.x));
    return true;
  }

  __device__ __forceinline__ void run(bool begun) const {
    int index = blockIdx.x;
    Task task = tasks.at(index);
    // Before it is known where the rows are.
    if (!begun) begin(task);
    const __nv_bfloat16* from = row(task);
    int there = S::kStages;  // steps whose weights are on their way
    Cursor<S::kStages> at;
    Cursor<2> part;
    while (task.group.count > 0) {
      index += gridDim.x;
      const Task next = tasks.at(index);
      const __nv_bfloat16* next_from = nullptr;
      const int steps = tasks.layer(task).steps;
#pragma unroll 1
      for (int step = 0; step < steps; ++step, at.advance()) {
        if (step % S::kPartSteps == 0) {
          s.rows_empty[part.stage].wait(part.parity ^ 1);
          bring_rows(task, from, step, part.stage);
          part.advance();
        }
        if (step >= there) {
          s.empty[at.stage].wait(at.parity ^ 1);
          if (lane == 0) bring_weights(task, step, at.stage);
          __syncwarp();
        }
        // What says where the next rows are has come by then.
        if (step == steps / 2) next_from = row(next);
      }
      there = 0, task = next, from = next_from;
    }
  }
};

template <int kN, int kWarps, Kind kKind>
struct ExpertConsumer {
  using S = ExpertShared<kN, kWarps>;
  static constexpr int kEights = kN / 8;
  // Whether there are registers for all columns of the next step.
  static constexpr bool kAhead = kEights <= 2;
  using Sums = float[kEights][4];  // see mma.cuh

  // A step's operands of this warp. Those of the next step come while these are multiplied.
  struct Operands {
    uint32_t weights[4][4];                     // [k16]
    uint32_t rows[kAhead ? kEights : 1][2][4];  // [eight columns, two k16]
    uint32_t rows_at;                           // where the lane's row of the first eight lies
  };

  const Tasks<kWarps, kKind>& tasks;
  S& s;
  const int warp;
  const Pairs pairs;
  Cursor<S::kStages> at;
  Cursor<2> part;

  __device__ __forceinline__ ExpertConsumer(const Tasks<kWarps, kKind>& tasks, S& s)
      : tasks(tasks), s(s), warp(threadIdx.x / 32), pairs(threadIdx.x % 32) {}

  static __device__ __forceinline__ void load_rows(uint32_t (&rows)[2][4], uint32_t at, int eight) {
#pragma unroll
    for (int two = 0; two < 2; ++two) ldmatrix_x4(rows[two], at + 8 * eight * S::kPitch + 4 * two * kVectorBytes);
  }

  // A warp has 16 rows of the tile: neighbours, or eight of gate and the same eight of up, whose sums then are one
  // thread's.
  __device__ __forceinline__ void load(Operands& to, const Task& task, int step) const {
    const int step_of_part = step % S::kPartSteps;
    if (step_of_part == 0) s.rows_full[part.stage].wait(part.parity);
    s.full[at.stage].wait(at.parity);
    const int among = pairs.lane % 16;
    const int row =
        kKind == Kind::Gated ? (among / 8) * (8 * kWarps) + 8 * warp + among % 8 : 16 * warp + among;
    const uint32_t weights = shared_address(s.weights[at.stage]) + row * kRowBytes;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ldmatrix_x4(to.weights[k], weights + ((2 * k + pairs.lane / 16) ^ (row % 8)) * kVectorBytes);
    }
    to.rows_at = shared_address(s.rows[part.stage][pairs.lane % 8]) + step_of_part * kRowBytes +
                 pairs.lane / 8 * kVectorBytes;
    if constexpr (kAhead) {
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        // Often a few columns of many; the same for all lanes.
        if (8 * eight < task.group.count) load_rows(to.rows[eight], to.rows_at, eight);
      }
    }
  }
  // Adds the products of a step's four k16 steps, ascending.
  __device__ __forceinline__ void multiply(Sums& d, Operands& of, int columns) const {
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      if (8 * eight >= columns) continue;
      uint32_t(&rows)[2][4] = of.rows[kAhead ? eight : 0];
      if constexpr (!kAhead) load_rows(rows, of.rows_at, eight);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t half[2] = {rows[k / 2][k % 2 * 2], rows[k / 2][k % 2 * 2 + 1]};
        mma_m16n8k16<__nv_bfloat16>(d[eight], of.weights[k], half);
      }
    }
  }

  // Segments are added where they arise, ascending.
  __device__ __forceinline__ void sum(const Task& task, Sums& total) {
    const Layer& layer = tasks.layer(task);
    const int steps = layer.steps;
    int left = layer.segment_steps;
    bool first = true;
    Sums d = {};
    Operands now;
    load(now, task, 0);
#pragma unroll 2
    for (int step = 0; step < steps; ++step) {
      const int stage = at.stage, part_stage = part.stage;
      const bool last = step + 1 == steps, last_of_part = (step + 1) % S::kPartSteps == 0 || last;
      at.advance();
      if (last_of_part) part.advance();
      Operands next;
      if (!last) load(next, task, step + 1);
      multiply(d, now, task.group.count);
      // Whoever has issued its products has read its operands.
      __syncwarp();
      if (pairs.lane < kWarpArrivals) {
        s.empty[stage].arrive();
        if (last_of_part) s.rows_empty[part_stage].arrive();
      }
      now = next;
      if (--left > 0 && !last) continue;
      left = layer.segment_steps;
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[eight][i] = first ? d[eight][i] : __fadd_rn(total[eight][i], d[eight][i]);
          d[eight][i] = 0.0f;
        }
      }
      first = false;
    }
  }

  // `to`: the output's rows of this thread's columns.
  __device__ __forceinline__ void finish(const Task& task, const Sums& d, const int (&to)[kEights]) const {
    const Layer& layer = tasks.layer(task);
    const int first = task.tile * Tasks<kWarps, kKind>::kFeatures;
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      if (8 * eight >= task.group.count) continue;
      const float2 low = pairs.trade(d[eight][0], d[eight][1]), high = pairs.trade(d[eight][2], d[eight][3]);
      if (8 * eight + pairs.column() >= task.group.count) continue;
      const uint32_t lower = pack_bf16(low.x, low.y), upper = pack_bf16(high.x, high.y);
      if constexpr (kKind == Kind::Gated) {
        const int feature = first + 8 * warp + pairs.feature();
        if (feature < layer.n) store_gated(layer, feature, to[eight], lower, upper);
      } else {
        const int feature = first + 16 * warp + pairs.feature();
        if (feature < layer.n) store_sums(layer, feature, to[eight], lower);
        if (feature + 8 < layer.n) store_sums(layer, feature + 8, to[eight], upper);
      }
    }
  }

  __device__ __forceinline__ void run() {
    int index = blockIdx.x;
    Task task = tasks.at(index);
    while (task.group.count > 0) {
      index += gridDim.x;
      // Asked for long before they are needed.
      const Task next = tasks.at(index);
      int to[kEights];
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        const int column = 8 * eight + pairs.column();
        to[eight] = column < task.group.count ? tasks.pair(task, column) : 0;
      }
      Sums total = {};
      sum(task, total);
      finish(task, total, to);
      task = next;
    }
  }
};

// `listed`: the groups were written before the preceding kernel, which lets this one begin only behind its own wait for
// them. So they may be read, and weights asked for by them, before this kernel's wait.
template <int kN, int kWarps, Kind kKind>
__global__ void __launch_bounds__(ExpertShared<kN, kWarps>::kThreads, expert_blocks(kN))
    experts(const Experts e, int group_count, bool listed, const __grid_constant__ CUtensorMap routed,
            const __grid_constant__ CUtensorMap shared) {
  using S = ExpertShared<kN, kWarps>;
  static_assert(kN <= 32 && S::kStages <= 32, "a lane brings a row, and fills a stage");
  extern __shared__ uint8_t bytes[];
  S& s = *reinterpret_cast<S*>(bytes + (1024 - shared_address(bytes) % 1024) % 1024);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 32 * kWarps) prefetch_map(routed), prefetch_map(shared);
  if (threadIdx.x < S::kStages) {
    s.full[threadIdx.x].init(1), s.empty[threadIdx.x].init(kWarps * kWarpArrivals);
    Barrier::publish();
  }
  if (threadIdx.x < 2) {
    s.rows_full[threadIdx.x].init(1), s.rows_empty[threadIdx.x].init(kWarps * kWarpArrivals);
    Barrier::publish();
  }
  __syncthreads();
  const Tasks<kWarps, kKind> tasks(e, group_count);
  // Kept by the L2 cache, weights would push out what is read again.
  const ExpertProducer<kN, kWarps, kKind> producer = {tasks, routed, shared, s, lane, policy_read_once()};
  const bool begun = warp == kWarps && producer.begin_early(listed);
  pdl::wait();
  pdl::launch_dependents();
  if (warp == kWarps) {
    producer.run(begun);
  } else {
    ExpertConsumer<kN, kWarps, kKind>(tasks, s).run();
  }
}

// `count` matrices of `blocks` times n features, one behind the other; a box has the same features of all blocks.
inline int32_t stack_map(const Layer& layer, int32_t blocks, int32_t count, int64_t stride, uint32_t box_rows,
                         CUtensorMap& map) {
  const uint64_t row = uint64_t(layer.weight_stride) * 2, block = row * layer.n, matrix = uint64_t(stride) * 2;
  const TensorMap stack = {layer.weight,
                           {uint64_t(layer.k), uint64_t(layer.n), uint64_t(blocks), uint64_t(count), 1},
                           {row, block, matrix, matrix * count},
                           box_rows,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                           uint32_t(blocks)};
  return stack.encode(map);
}

template <int kN, int kWarps, Kind kKind>
int32_t launch_experts(const Mixture& m, const Experts& e, bool listed) {
  using S = ExpertShared<kN, kWarps>;
  constexpr size_t kBytes = sizeof(S) + 1024;
  static_assert(expert_blocks(kN) * (kBytes + 1024) <= 228 * 1024, "with what each block needs for itself");
  const auto kernel = experts<kN, kWarps, kKind>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kBytes));
  if (error != cudaSuccess) return int32_t(error);
  constexpr int32_t kFeatures = Tasks<kWarps, kKind>::kFeatures, kBlocks = kKind == Kind::Gated ? 2 : 1;
  CUtensorMap routed, shared;
  int32_t status = stack_map(e.routed, kBlocks, m.p.experts, e.expert_stride, kFeatures, routed);
  if (status != LS_OK) return status;
  const int64_t whole = e.shared.valid * e.shared.weight_stride;
  status = stack_map(e.shared, kBlocks, 1, whole, kFeatures, shared);
  if (status != LS_OK) return status;
  const int32_t tasks =
      e.shared_groups * ceil_div(e.shared.n, kFeatures) + m.group_count() * ceil_div(e.routed.n, kFeatures);
  // As many tasks for each block, if rows share no expert.
  const int32_t turns = ceil_div(tasks, m.p.multiprocessors * expert_blocks(kN));
  return launch(kernel, ceil_div(tasks, turns), S::kThreads, kBytes, m.stream, m.programmatic(), e, m.group_count(),
                listed, routed, shared);
}

template <int kN>
int32_t launch_gate_up(const Mixture& m) {
  if constexpr (kN == 8) {
    if (m.p.tile_rows == 32) return launch_experts<kN, 2, Kind::Gated>(m, m.up(), false);
  }
  return launch_experts<kN, 4, Kind::Gated>(m, m.up(), false);
}

template <int kN>
int32_t launch_mixture(const Mixture& m) {
  int32_t status = launch_router(m);
  if (status == LS_OK) status = launch_route(m);
  if (status == LS_OK) status = launch_gate_up<kN>(m);
  if (status == LS_OK) status = launch_experts<kN, 4, Kind::Linear>(m, m.down(), m.programmatic());
  return status == LS_OK ? launch_combination(m) : status;
}

}  // namespace lockstep::dense::sm90
