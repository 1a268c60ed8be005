// Division by a number that the host knows: a multiplication on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep {

// Exact for dividends below 2^31.
struct Divider {
  uint32_t divisor, magic;  // floor(2^32 / divisor), or what comes closest

  __host__ explicit Divider(uint32_t divisor)
      : divisor(divisor), magic(divisor == 1 ? 0xffffffffu : uint32_t((uint64_t(1) << 32) / divisor)) {}

  // The quotient; `rest` is what remains.
  __device__ __forceinline__ uint32_t divide(uint32_t dividend, uint32_t& rest) const {
    // At most one too small: magic loses less than 1, so the product less than dividend / 2^32.
    const uint32_t quotient = __umulhi(dividend, magic);
    rest = dividend - quotient * divisor;
    if (rest < divisor) return quotient;
    rest -= divisor;
    return quotient + 1;
  }
};

}  // namespace lockstep
