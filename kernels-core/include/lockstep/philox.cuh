// Philox 4x32-10 and the noise of kernels_core::philox.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "lockstep/math.cuh"

namespace lockstep::philox {

// What a random number is for: separate uses of one (seed, position) must not share numbers.
enum class Use : uint32_t { Draw = 0, Draft = 1, Accept = 2, Residual = 3 };

__device__ __forceinline__ uint4 philox4x32_10(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t low0 = 0xD2511F53u * counter.x, high0 = __umulhi(0xD2511F53u, counter.x);
    const uint32_t low1 = 0xCD9E8D57u * counter.z, high1 = __umulhi(0xCD9E8D57u, counter.z);
    counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

// 32 random bits for a vocabulary id. Four neighbouring ids share one block.
__device__ __forceinline__ uint32_t bits(uint2 seed, uint32_t position, uint32_t id, Use what) {
  const uint4 block = philox4x32_10(make_uint4(id >> 2, position, uint32_t(what), 0), seed);
  const uint32_t lane = id & 3;
  return lane == 0 ? block.x : lane == 1 ? block.y : lane == 2 ? block.z : block.w;
}

// 128 random bits: block `block` of stream `stream`; never one that bits() reads.
__device__ __forceinline__ uint4 stream_block(uint2 seed, uint32_t stream, uint64_t block) {
  constexpr uint32_t kNoDraw = 1;
  return philox4x32_10(make_uint4(uint32_t(block), uint32_t(block >> 32), stream, kNoDraw), seed);
}

// A uniform number in (0, 1): (bits + 1/2) 2^-32, rounded once to fp32 and held below 1.
__device__ __forceinline__ float uniform(uint32_t bits) {
  const double exact = (double(bits) + 0.5) * 0x1p-32;  // 33 significant bits: exact
  return fminf(__double2float_rn(exact), 0x1.fffffep-1f);
}

// An exponential number of mean 1, and a standard Gumbel number: the bits of kernels_core::philox.
__device__ __forceinline__ float exponential(uint32_t bits) { return -ln_one_minus(uniform(bits)); }
__device__ __forceinline__ float gumbel(uint32_t bits) { return -ln(exponential(bits)); }

}  // namespace lockstep::philox
