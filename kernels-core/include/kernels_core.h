/* The facts that the exactness contract stands on, as launchers: `doctor` and the tests compare them. */
#ifndef KERNELS_CORE_H
#define KERNELS_CORE_H

#include "lockstep/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out = a b^T with fp32 accumulators, k16 steps in ascending order. */
typedef struct ls_core_product_params {
  float* out;     /* [m, n]  accumulators as they are                            */
  const void* a;  /* [m, k]  bf16, or fp16 where `fp16` is not zero              */
  const void* b;  /* [n, k]                                                      */
  int32_t m;      /* multiple of 64                                              */
  int32_t n;      /* multiple of tile_n                                          */
  int32_t k;      /* multiple of 16                                              */
  int32_t tile_n; /* columns of one instruction: 8, 16, 24, 32, 48, 64, 96, 128, 192 or 256; smxx: 8 */
  int32_t fp16;
} ls_core_product_params;

/* mma.sync.m16n8k16 */
int32_t ls_core_product_smxx(const ls_core_product_params* p, ls_stream_t stream);
/* wgmma.m64nNk16, both operands in shared memory */
int32_t ls_core_product_sm90(const ls_core_product_params* p, ls_stream_t stream);

/* Which function of math.cuh or philox.cuh. */
#define LS_CORE_EXP 0
#define LS_CORE_SIGMOID 1
#define LS_CORE_SILU 2
#define LS_CORE_RSQRT 3
/* out[i] = the bits of id i at position 7 under seed (x[i], ~x[i]) */
#define LS_CORE_PHILOX_BITS 4
/* out[i] = uniform(x[i]) */
#define LS_CORE_PHILOX_UNIFORM 5
/* 1 / x for x in [1, 2]: the step inside sigmoid and silu */
#define LS_CORE_RECIPROCAL 6
#define LS_CORE_SOFTPLUS 7
/* Noise from the bits x */
#define LS_CORE_EXPONENTIAL 8
#define LS_CORE_GUMBEL 9

typedef struct ls_core_math_params {
  uint32_t* out;     /* [count]  bit patterns */
  const uint32_t* x; /* [count]  bit patterns */
  int64_t count;
  int32_t function;
} ls_core_math_params;

int32_t ls_core_math_smxx(const ls_core_math_params* p, ls_stream_t stream);

/* Reads `bytes` (a multiple of 16) with 16-byte loads and nothing else: the streaming ceiling. */
typedef struct ls_core_read_params {
  const void* from;
  int64_t bytes;
  uint32_t* sink;  /* [1]  never written, but the compiler cannot know */
  int32_t blocks;  /* of 512 threads                                   */
} ls_core_read_params;

int32_t ls_core_read_smxx(const ls_core_read_params* p, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
