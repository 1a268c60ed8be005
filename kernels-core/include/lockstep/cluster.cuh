// Clusters: blocks that run at the same time and reach into each other's shared memory. Hopper.
#pragma once

#include "lockstep/mbarrier.cuh"

namespace lockstep {

// The cluster's barrier, of all threads that have not exited. It orders no writes: a release would be a fence of the
// whole device, about half a microsecond. What blocks send each other is counted by barriers in shared memory.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where block `rank` of the cluster has what this one has at `own`.
__device__ __forceinline__ uint32_t cluster_address(const void* own, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
  return there;
}
// Stores 16 bytes in another block and reports them to a barrier there; both are cluster_address()es.
__device__ __forceinline__ void cluster_store(uint32_t to, float4 value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
               : "memory");
}

}  // namespace lockstep
