// Programmatic dependent launch: one rule, one helper.
//
// Every kernel calls pdl::wait() unconditionally, before its first read of non-constant memory, before any
// global write and before any exit: a grid that skips it lets its successor see the unfinished work of its
// grandparents. Only weights may be loaded earlier.
#pragma once

namespace lockstep::pdl {

// Waits until the preceding grid has completed and its writes are visible; nothing to wait for otherwise.
__device__ __forceinline__ void wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the succeeding grid begin its own prologue. It still waits for this one in its wait(). Before this grid's wait()
// is soonest, for weights; behind it, the successor may also read early what this one's predecessors wrote.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace lockstep::pdl
