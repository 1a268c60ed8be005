// A block's part of a row of logits: loads, order, and the largest of them.
//
// A grid has a block for every chunk of every row, so that one pass streams all logits at the rate of the memory
// whatever the batch: 32 rows of 248,320 are 31.8 MB, 7.0 us at 4.55 TB/s. What leaves a chunk is a maximum or a sum of
// integers, which have no order: neither chunks nor threads can change a bit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "lockstep/slots.cuh"

namespace lockstep::spec {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes;
constexpr int kGroup = 4;                    // neighbouring ids of one thread: one load, one block of noise
constexpr int kStep = kThreads * kGroup;     // ids of a block's step
constexpr int kPatch = kLanes * kGroup;      // ids of a warp's step
constexpr uint32_t kWholeWarp = 0xffffffffu;

// Larger floats have larger numbers, both zeros one; NaN must be kept out.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float unordered(uint32_t order) {
  return __uint_as_float(order >> 31 != 0 ? order ^ 0x80000000u : ~order);
}

// A value and its id in one: the largest is the largest value, of the smallest id on a tie. 0 is nothing.
__device__ __forceinline__ uint64_t packed(uint32_t order, uint32_t id) { return uint64_t(order) << 32 | ~id; }
__device__ __forceinline__ uint32_t id_of(uint64_t best) { return ~uint32_t(best); }
__device__ __forceinline__ float value_of(uint64_t best) { return unordered(uint32_t(best >> 32)); }

__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// The largest of a warp's values, for every lane.
__device__ __forceinline__ uint64_t warp_max(uint64_t value) {
  const uint32_t high = __reduce_max_sync(kWholeWarp, uint32_t(value >> 32));
  return uint64_t(high) << 32 | __reduce_max_sync(kWholeWarp, uint32_t(value >> 32) == high ? uint32_t(value) : 0u);
}

// The largest of a block's values, for every thread. `shared` may be used again behind the next barrier.
//
// Short on purpose, as what is run once: a launch of a few blocks waits for its instructions more than for its numbers.
template <int kBlock>
__device__ __forceinline__ uint64_t block_max(uint64_t value, uint64_t (&shared)[kBlock / kLanes]) {
  value = warp_max(value);
  if (threadIdx.x % kLanes == 0) shared[threadIdx.x / kLanes] = value;
  __syncthreads();
  return warp_max(threadIdx.x % kLanes < kBlock / kLanes ? shared[threadIdx.x % kLanes] : 0);
}

// The sum of a block's values, for every thread.
template <int kBlock>
__device__ __forceinline__ uint64_t block_sum(uint64_t value, uint64_t (&shared)[kBlock / kLanes]) {
#pragma unroll 1
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  __syncthreads();  // an earlier sum has been read
  if (threadIdx.x % kLanes == 0) shared[threadIdx.x / kLanes] = value;
  __syncthreads();
  uint64_t sum = 0;
#pragma unroll 1
  for (int warp = 0; warp < kBlock / kLanes; ++warp) sum += shared[warp];
  return sum;
}

// The largest of a row's chunks.
template <int kBlock>
__device__ __forceinline__ uint64_t row_max(const uint64_t* chunks, int count, uint64_t (&shared)[kBlock / kLanes]) {
  uint64_t best = 0;
  for (int i = threadIdx.x; i < count; i += kBlock) best = larger(best, chunks[i]);
  return block_max<kBlock>(best, shared);
}

// Four neighbours. Ids from `valid` on become NaN. `aligned`: rows begin at multiples of 16 bytes.
__device__ __forceinline__ void load_group(const float* row, int32_t id, int32_t valid, bool aligned, float (&x)[kGroup]) {
  if (aligned && id + kGroup <= valid) {
    const float4 four = *reinterpret_cast<const float4*>(row + id);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[i] = id + i < valid ? row[id + i] : __uint_as_float(0x7fffffffu);
  }
}

// Groups of four neighbouring ids per thread, those of a step side by side in a block. The first begins at `begin`.
template <int kVectors>
__device__ __forceinline__ void load_groups(const float* row, int32_t begin, int32_t valid, bool aligned,
                                            float (&x)[kVectors][kGroup]) {
  const int32_t first = begin + int32_t(threadIdx.x) * kGroup;
  if (aligned && begin + kVectors * kStep <= valid) {  // one branch for the block, and loads without any
#pragma unroll
    for (int step = 0; step < kVectors; ++step) {
      const float4 four = *reinterpret_cast<const float4*>(row + first + step * kStep);
      x[step][0] = four.x, x[step][1] = four.y, x[step][2] = four.z, x[step][3] = four.w;
    }
  } else {
#pragma unroll
    for (int step = 0; step < kVectors; ++step) load_group(row, first + step * kStep, valid, aligned, x[step]);
  }
}

// kVectors groups of four neighbouring ids per thread, those of a step side by side in a block.
template <int kVectors>
struct Chunk {
  float x[kVectors][kGroup];

  __device__ __forceinline__ static int32_t first(int chunk, int step) {
    return (chunk * kVectors + step) * kStep + int32_t(threadIdx.x) * kGroup;
  }

  __device__ __forceinline__ void load(const float* row, int chunk, int32_t valid, bool aligned) {
    load_groups<kVectors>(row, chunk * kVectors * kStep, valid, aligned, x);
  }

  // kMasked: minus infinity cannot win.
  template <bool kMasked>
  __device__ __forceinline__ uint64_t best(int chunk) const {
    uint32_t most = 0;
    int32_t most_id = 0;
#pragma unroll
    for (int step = 0; step < kVectors; ++step) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float value = x[step][i];
        const bool takes_part = kMasked ? value > __uint_as_float(0xff800000u) : value == value;
        const uint32_t order = takes_part ? ordered(value) : 0;
        if (order > most) most = order, most_id = first(chunk, step) + i;  // ids ascend: the first of a tie stays
      }
    }
    return most == 0 ? 0 : packed(most, most_id);
  }
};

// Ids of a chunk for `vectors` groups a thread.
__host__ __device__ constexpr int chunk_ids(int vectors) { return vectors * kStep; }

__host__ __device__ constexpr int32_t patches(int32_t valid) { return (valid + kPatch - 1) / kPatch; }

inline bool aligned_rows(const float* logits, int64_t stride) {
  return reinterpret_cast<uintptr_t>(logits) % 16 == 0 && stride % kGroup == 0;
}

}  // namespace lockstep::spec
