// Bytes of a word: one instruction per function.
#pragma once

#include <cstdint>

namespace lockstep {

// prmt.b32: byte i of the result is the byte of {a, b} that nibble i of `selector` numbers, a's first; with 8 added to the
// nibble, that byte's sign in all eight bits.
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

}  // namespace lockstep
