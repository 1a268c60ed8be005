// Attention by mma.sync: eight warps compute, four bring keys and values.
#pragma once

#include "compute.cuh"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "produce.cuh"

namespace lockstep::attn {

template <int kD, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    verify(const __grid_constant__ Params p, const int stages) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  auto& shared = *reinterpret_cast<Shared<kD, kRows>*>(bytes);
  const uint32_t ring = shared_address(bytes) + uint32_t(sizeof shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      shared.full[i].init(32 * kProducers);
      shared.free[i].init(kWarps * kWarpArrivals);
    }
  }
  __syncthreads();
  pdl::wait();
  pdl::launch_dependents();
  const int warp = threadIdx.x / 32;
  if (warp >= kWarps) {
    produce<kD, kRows>(p, shared, ring, stages, warp - kWarps);
  } else {
    Computer<kD, kRows>(p, shared, ring, stages).run();
  }
}

template <int kD, int kRows>
int32_t launch_rows(const ls_attn_params& p, ls_stream_t stream) {
  using S = Shape<kD, kRows>;
  constexpr int kFixed = sizeof(Shared<kD, kRows>);
  int device, room;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status != cudaSuccess) return int32_t(status);
  const int fitting = (room - kFixed) / S::kPieceBytes, stages = fitting < kMaxStages ? fitting : kMaxStages;
  // Both halves of a tile's keys are there at a time.
  if (stages < 2) return LS_ERR_UNSUPPORTED;
  const int bytes = kFixed + stages * S::kPieceBytes;
  const auto kernel = verify<kD, kRows>;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return int32_t(status);
  const dim3 grid(p.blocks, ceil_div(p.block_rows, kRows));
  return launch(kernel, grid, kThreads, bytes, stream, p.programmatic != 0, Params(p), stages);
}

template <int kD>
int32_t launch_verify(const ls_attn_params& p, ls_stream_t stream) {
  if (p.block_rows <= 8) return launch_rows<kD, 8>(p, stream);
  if (p.block_rows <= 16) return launch_rows<kD, 16>(p, stream);
  if (p.block_rows <= 24) return launch_rows<kD, 24>(p, stream);
  if (p.block_rows <= 32) return launch_rows<kD, 32>(p, stream);
  if (p.block_rows <= 48) {
    const int32_t status = launch_rows<kD, 48>(p, stream);
    if (status != LS_ERR_UNSUPPORTED) return status;
  }
  // More do not fit the registers, or these not a small chip's shared memory: keys and values are read twice.
  return launch_rows<kD, 32>(p, stream);
}

}  // namespace lockstep::attn
