// What attention alone uses of compute capability 8.0's matrix loads, asynchronous copies and barriers in shared memory.
#pragma once

#include <cstdint>

#include "lockstep/async.cuh"
#include "lockstep/mbarrier.cuh"

namespace lockstep::attn {

// ldmatrix_x4() of the transposed matrices.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at));
}

__device__ __forceinline__ void st_shared(uint32_t at, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Arrives once all copies that this thread has asked for are there.
__device__ __forceinline__ void cp_async_arrive(Barrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Returns once the barrier's phase of this parity is complete.
__device__ __forceinline__ void wait_for(Barrier& barrier, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  barrier.wait(parity);
#else
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN_%=:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra AGAIN_%=;\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
#endif
}

__device__ __forceinline__ void arrive(Barrier& barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(shared_address(&barrier))
               : "memory");
}

// A barrier of some of the block's warps, apart from __syncthreads().
template <int kThreads>
__device__ __forceinline__ void bar_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

}  // namespace lockstep::attn
