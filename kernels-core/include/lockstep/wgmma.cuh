// wgmma.m64nNk16 with fp32 accumulators and both operands in shared memory: one instruction per function.
//
// The accumulator of thread i of the warpgroup (warp w = i / 32, g = i % 32 / 4, t = i % 4) holds, for every
// eight columns j = 0, 8, ..., N - 8:
//   d[j / 2], d[j / 2 + 1]     = D[16 w + g][j + 2t], D[16 w + g][j + 2t + 1]
//   d[j / 2 + 2], d[j / 2 + 3] = D[16 w + g + 8][j + 2t], D[16 w + g + 8][j + 2t + 1]
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "lockstep/mbarrier.cuh"

namespace lockstep {

// Describes a K-major operand without swizzle. It is made of core matrices of 8 rows x 16 bytes, each 128
// contiguous bytes; `leading` bytes lie between the two that are neighbours along K, `stride` bytes between
// those that are neighbours along M or N.
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* shared, uint32_t leading, uint32_t stride) {
  const auto encode = [](uint32_t bytes) { return uint64_t((bytes & 0x3ffffu) >> 4); };
  return encode(shared_address(shared)) | encode(leading) << 16 | encode(stride) << 32;
}

// Descriptors of operands in rows of 128 bytes, of which piece i of 16 bytes lies where piece i ^ row % 8 would: what a
// tensor copy with a swizzle of 128 bytes writes. Eight rows are followed by the next eight, from a multiple of 1024.
// Rows are M or N if K runs along them (K-major), else K; then all 64 of M lie in one row.
class WgmmaSwizzled {
 public:
  // The same for all threads of the warp: kept in a uniform register, from which the instructions take it.
  explicit __device__ __forceinline__ WgmmaSwizzled(const void* shared)
      : low_(__shfl_sync(0xffffffffu, (shared_address(shared) & 0x3ffffu) >> 4 | 1u << 16, 0)) {}
  // The operand whose first byte, before the swizzle, lies so many bytes further.
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
    constexpr uint32_t kEightRows = 1024 >> 4, kSwizzle128 = 1u << 30;
    uint64_t descriptor;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low_ + (bytes >> 4)), "r"(kEightRows | kSwizzle128));
    return descriptor;
  }

 private:
  uint32_t low_;
};

// Orders this warpgroup's register accesses before the wgmma instructions that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses to accumulators across this point.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// D[64 x N] += A[64 x 16] B[16 x N]; a and b are descriptors. B is K-major, A as well unless it is transposed.
template <typename T, int N, bool kTransposedA = false>
struct Wgmma;

template <typename T, int N, bool kTransposedA = false>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], uint64_t a, uint64_t b) {
  Wgmma<T, N, kTransposedA>::run(d, a, b);
}

// N = 8
#define LS_WGMMA(T, TYPE)                                                               \
  template <bool kTransposedA>                                                          \
  struct Wgmma<T, 8, kTransposedA> {                                                    \
    static __device__ __forceinline__ void run(float (&d)[4], uint64_t a, uint64_t b) { \
      asm volatile(                                                                     \
        "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE " {"                 \
        "%0, %1, %2, %3"                                                                \
        "}, %4, %5, 1, 1, 1, %6, 0;"                                                    \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                      \
    }                                                                                   \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 16
#define LS_WGMMA(T, TYPE)                                                                                \
  template <bool kTransposedA>                                                                           \
  struct Wgmma<T, 16, kTransposedA> {                                                                    \
    static __device__ __forceinline__ void run(float (&d)[8], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                      \
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " {"                                 \
        "%0, %1, %2, %3, %4, %5, %6, %7"                                                                 \
        "}, %8, %9, 1, 1, 1, %10, 0;"                                                                    \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                       \
    }                                                                                                    \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 24
#define LS_WGMMA(T, TYPE)                                                                                 \
  template <bool kTransposedA>                                                                            \
  struct Wgmma<T, 24, kTransposedA> {                                                                     \
    static __device__ __forceinline__ void run(float (&d)[12], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                       \
        "wgmma.mma_async.sync.aligned.m64n24k16.f32." TYPE "." TYPE " {"                                  \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"                                                \
        "}, %12, %13, 1, 1, 1, %14, 0;"                                                                   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])                                                \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                        \
    }                                                                                                     \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 32
#define LS_WGMMA(T, TYPE)                                                                                 \
  template <bool kTransposedA>                                                                            \
  struct Wgmma<T, 32, kTransposedA> {                                                                     \
    static __device__ __forceinline__ void run(float (&d)[16], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                       \
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE " {"                                  \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"                            \
        "}, %16, %17, 1, 1, 1, %18, 0;"                                                                   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),        \
          "+f"(d[15])                                                                                     \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                        \
    }                                                                                                     \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 48
#define LS_WGMMA(T, TYPE)                                                                                 \
  template <bool kTransposedA>                                                                            \
  struct Wgmma<T, 48, kTransposedA> {                                                                     \
    static __device__ __forceinline__ void run(float (&d)[24], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                       \
        "wgmma.mma_async.sync.aligned.m64n48k16.f32." TYPE "." TYPE " {"                                  \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"       \
        "%20, %21, %22, %23"                                                                              \
        "}, %24, %25, 1, 1, 1, %26, 0;"                                                                   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),        \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),      \
          "+f"(d[22]), "+f"(d[23])                                                                        \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                        \
    }                                                                                                     \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 64
#define LS_WGMMA(T, TYPE)                                                                                 \
  template <bool kTransposedA>                                                                            \
  struct Wgmma<T, 64, kTransposedA> {                                                                     \
    static __device__ __forceinline__ void run(float (&d)[32], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                       \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {"                                  \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"       \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                                      \
        "}, %32, %33, 1, 1, 1, %34, 0;"                                                                   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),        \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),      \
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),      \
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                                           \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                        \
    }                                                                                                     \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 96
#define LS_WGMMA(T, TYPE)                                                                                 \
  template <bool kTransposedA>                                                                            \
  struct Wgmma<T, 96, kTransposedA> {                                                                     \
    static __device__ __forceinline__ void run(float (&d)[48], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                       \
        "wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE "." TYPE " {"                                  \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"       \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37,"       \
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47"                                                \
        "}, %48, %49, 1, 1, 1, %50, 0;"                                                                   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),        \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),      \
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),      \
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),      \
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),      \
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])                                 \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                        \
    }                                                                                                     \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 128
#define LS_WGMMA(T, TYPE)                                                                                 \
  template <bool kTransposedA>                                                                            \
  struct Wgmma<T, 128, kTransposedA> {                                                                    \
    static __device__ __forceinline__ void run(float (&d)[64], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                       \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {"                                 \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"       \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37,"       \
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55,"       \
        "%56, %57, %58, %59, %60, %61, %62, %63"                                                          \
        "}, %64, %65, 1, 1, 1, %66, 0;"                                                                   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),        \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),      \
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),      \
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),      \
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),      \
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),      \
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),      \
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])       \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                        \
    }                                                                                                     \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 192
#define LS_WGMMA(T, TYPE)                                                                                 \
  template <bool kTransposedA>                                                                            \
  struct Wgmma<T, 192, kTransposedA> {                                                                    \
    static __device__ __forceinline__ void run(float (&d)[96], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                       \
        "wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE "." TYPE " {"                                 \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"       \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37,"       \
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55,"       \
        "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73,"       \
        "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91,"       \
        "%92, %93, %94, %95"                                                                              \
        "}, %96, %97, 1, 1, 1, %98, 0;"                                                                   \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),        \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),      \
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),      \
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),      \
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),      \
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),      \
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),      \
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),      \
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]),      \
          "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),      \
          "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),      \
          "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),      \
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])                                              \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                        \
    }                                                                                                     \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

// N = 256
#define LS_WGMMA(T, TYPE)                                                                                  \
  template <bool kTransposedA>                                                                             \
  struct Wgmma<T, 256, kTransposedA> {                                                                     \
    static __device__ __forceinline__ void run(float (&d)[128], uint64_t a, uint64_t b) {                  \
      asm volatile(                                                                                        \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {"                                  \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"        \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37,"        \
        "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55,"        \
        "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73,"        \
        "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91,"        \
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107,"          \
        "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122,"        \
        "%123, %124, %125, %126, %127"                                                                     \
        "}, %128, %129, 1, 1, 1, %130, 0;"                                                                 \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),  \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),         \
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),       \
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),       \
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),       \
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),       \
          "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),       \
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),       \
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),       \
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]),       \
          "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),       \
          "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]),       \
          "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),       \
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]),       \
          "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), \
          "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),              \
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]),              \
          "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]),              \
          "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])                                           \
        : "l"(a), "l"(b), "n"(int(kTransposedA)));                                                         \
    }                                                                                                      \
  };
LS_WGMMA(__nv_bfloat16, "bf16")
LS_WGMMA(__half, "f16")
#undef LS_WGMMA

}  // namespace lockstep
