// Verification attention by WGMMA. Keys and values are the operand with 64 rows, the queries of a row block the one
// with 8 to 64: a key is read once for all rows of a sequence and all heads of its group.
#pragma once

#include "consume.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/tensor_map.cuh"
#include "produce.cuh"

namespace lockstep::attn::sm90 {

template <int kD, int kN>
__global__ void __launch_bounds__(kThreads, 1) verify(const Params p, const __grid_constant__ CUtensorMap map) {
  using S = Shared<kD, kN>;
  extern __shared__ uint8_t bytes[];
  S& shared = *reinterpret_cast<S*>(bytes + (1024 - shared_address(bytes) % 1024) % 1024);
  if (threadIdx.x == 0) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
    for (int i = 0; i < S::kStages; ++i) shared.full[i].init(1), shared.empty[i].init(2);
    Barrier::publish();
  }
  for (int i = threadIdx.x; i < 3 * kN; i += kThreads) shared.top[i / kN][i % kN] = kNoScore;
  __syncthreads();
  pdl::wait();
  pdl::launch_dependents();
  if (threadIdx.x < kWarpgroup) {
    give_registers<40>();
    // A prefill's row blocks read the same keys.
    const bool once = p.rows.max_rows <= p.block_positions;
    if (threadIdx.x < 32) Producer<kD, kN>(p, map, shared, once ? policy_read_once() : policy_read_again()).run();
  } else {
    take_registers<232>();
    Consumer<kD, kN>(p, shared).run();
  }
}

inline int32_t tensor_map(const ls_attn_params& p, CUtensorMap& map) {
  const auto bytes = [](int64_t stride) { return uint64_t(stride) * 2; };
  const TensorMap pool = {p.pool,
                          {uint64_t(p.head_dim), uint64_t(p.page_rows), uint64_t(p.kv_heads), 2, uint64_t(p.pages)},
                          {bytes(p.row_stride), bytes(p.head_stride), bytes(p.kv_stride), bytes(p.page_stride)},
                          uint32_t(p.page_rows < kPieceKeys ? p.page_rows : kPieceKeys)};
  return pool.encode(map);
}

template <int kD, int kN>
int32_t launch_verify(const ls_attn_params& p, ls_stream_t stream) {
  constexpr size_t kBytes = sizeof(Shared<kD, kN>) + 1024;
  static_assert(kBytes <= kMostShared, "kTail");
  CUtensorMap map;
  const int32_t status = tensor_map(p, map);
  if (status != LS_OK) return status;
  const auto kernel = verify<kD, kN>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kBytes));
  if (error != cudaSuccess) return int32_t(error);
  return launch(kernel, p.blocks, kThreads, kBytes, stream, p.programmatic != 0, Params(p), map);
}

template <int kD>
int32_t launch_verify(const ls_attn_params& p, ls_stream_t stream) {
  if (p.block_rows <= 8) return launch_verify<kD, 8>(p, stream);
  if (p.block_rows <= 16) return launch_verify<kD, 16>(p, stream);
  if (p.block_rows <= 24) return launch_verify<kD, 24>(p, stream);
  if (p.block_rows <= 32) return launch_verify<kD, 32>(p, stream);
  if (p.block_rows <= 48) return launch_verify<kD, 48>(p, stream);
  return launch_verify<kD, 64>(p, stream);
}

}  // namespace lockstep::attn::sm90
