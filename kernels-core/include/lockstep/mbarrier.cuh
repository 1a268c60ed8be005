// Barriers in shared memory that count arrivals and bytes, and bulk copies that report to them. Hopper.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace lockstep {

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Arrivals of a warp. One lane speaks for all, behind their __syncwarp; compute-sanitizer's racecheck does not follow
// that chain, so in a checked build every lane arrives for itself.
#ifdef LS_CHECKED
constexpr int kWarpArrivals = 32;
#else
constexpr int kWarpArrivals = 1;
#endif

// One phase completes when the expected arrivals and bytes have come; the next one begins at once. Phases are
// told apart by their parity, so nobody may be more than one phase behind.
struct Barrier {
  uint64_t word;

  __device__ __forceinline__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
  }
  // By one thread, after its inits and before the block's barrier: bulk copies see the barrier as well.
  static __device__ __forceinline__ void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // Arrives at what block `rank` of the cluster has in the same place. Orders this block's accesses only: with a release
  // to the cluster it would be a fence of the whole device, a microsecond for every arrival.
  __device__ __forceinline__ void arrive_at(uint32_t rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(rank)
        : "memory");
  }
  // Arrives, and lets the phase wait for this many bytes of bulk copies.
  __device__ __forceinline__ void arrive_and_expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  // Returns once the phase of this parity is complete.
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra AGAIN_%=;\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// Between this thread's (or, behind a block's barrier, the block's) accesses to shared memory and the asynchronous
// proxy's: bulk copies into the same memory, wgmma that reads it.
__device__ __forceinline__ void fence_before_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies `bytes` (a multiple of 16) to shared memory; both addresses are aligned to 16.
__device__ __forceinline__ void bulk_load(void* to, const void* from, uint32_t bytes, Barrier& done) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&done))
               : "memory");
}

// Has a tensor map at hand when the first copy asks for it.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies one box of a tensor map of five dimensions to shared memory, aligned as the map's swizzle wants it.
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap& map, const int32_t (&at)[5], Barrier& done,
                                            uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(to)),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared_address(&done)),
      "l"(cache_policy)
      : "memory");
}

// The same to several blocks of the cluster, a bit for each: the same place in each, and the same place's barrier.
__device__ __forceinline__ void tensor_load_to_many(void* to, const CUtensorMap& map, const int32_t (&at)[5],
                                                    Barrier& done, uint16_t blocks, uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, %9;" ::"r"(shared_address(to)),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(shared_address(&done)), "h"(blocks),
      "l"(cache_policy)
      : "memory");
}

// How long the L2 cache should keep what a bulk copy reads.
__device__ __forceinline__ uint64_t policy_read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t policy_read_again() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Moves registers between the warpgroups of a block: what some give away, others may take. All warps of a group
// call it; the counts are multiples of 8.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace lockstep
