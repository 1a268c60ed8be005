// Words in memory by which blocks of a grid tell each other what they have written.
//
// One thread does it for its block, behind the block's barrier: what the others wrote before counts as written by it,
// and what it sees the others see behind the next barrier. They read past the L1 cache (__ldcg).
#pragma once

#include <cstdint>

namespace lockstep {

__device__ __forceinline__ void store_release(uint32_t* at, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
// The value before.
__device__ __forceinline__ uint32_t add_acquire_release(uint32_t* at, uint32_t value) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
  return before;
}

}  // namespace lockstep
