// What a kernel gets: the operands, and what the host can work out of them for all threads.
#pragma once

#include "kernels_conv.h"
#include "lockstep/divide.cuh"
#include "lockstep/slots.cuh"

namespace lockstep::conv {

static_assert(sizeof(ls_conv_params) == 152, "src/sys.rs describes this layout");

constexpr int kMaxThreads = 256;  // of a block

// Strides of rows have 32 bits, so that a row's address is one multiplication; see fits().
struct Params : ls_conv_params {
  Divider ring_divider;  // by ring_rows
  uint32_t out_bytes, x_bytes, ring_row_bytes;

  explicit Params(const ls_conv_params& p)
      : ls_conv_params(p),
        ring_divider(p.ring_rows),
        out_bytes(uint32_t(2 * p.out_stride)),
        x_bytes(uint32_t(2 * p.x_stride)),
        ring_row_bytes(uint32_t(2 * p.ring_row_stride)) {}

  static bool fits(const ls_conv_params& p) {
    const auto short_enough = [](int64_t stride) { return 0 <= stride && stride < int64_t(1) << 31; };
    return short_enough(p.out_stride) && short_enough(p.x_stride) && short_enough(p.ring_row_stride);
  }
};

// The same address, a whole one: otherwise the compiler adds the parts that rows share to every row, last.
template <typename Byte>
__device__ __forceinline__ Byte* settled(Byte* at) {
  size_t global = __cvta_generic_to_global(at);
  asm volatile("" : "+l"(global));
  return static_cast<Byte*>(__cvta_global_to_generic(global));
}

template <typename Byte>
__device__ __forceinline__ Byte* column_of(Byte* base, uint32_t channel) {
  return settled(base + uint64_t(channel) * 2);
}

template <typename Byte>
__device__ __forceinline__ Byte* row_of(Byte* base, uint32_t row, uint32_t bytes) {
  return base + uint64_t(row) * bytes;
}

}  // namespace lockstep::conv
