// Matrix loads and asynchronous copies of compute capability 8.0: one instruction per function.
#pragma once

#include <cstdint>

namespace lockstep {

// Four 8x8 matrices of 16-bit elements: lane 8 i + r names row r of matrix i; lane l gets of each the elements
// [l / 4][2 (l % 4)] and the next.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at));
}

// 16 bytes to shared memory past the L1 cache; zeros where not `there`, and then nothing is read.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lockstep
