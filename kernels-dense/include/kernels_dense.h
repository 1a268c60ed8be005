/* Norms and the embedding of a decode step, bf16. See the crate's README for the order of sums. */
#ifndef KERNELS_DENSE_H
#define KERNELS_DENSE_H

#include "lockstep/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All strides in elements. Every pointer is aligned to 16 bytes, widths and strides are multiples of 8, strides
 * are below 2^31, widths at most 8192 where a row is normed. What is written overlaps nothing else. No rows: no
 * launch. Weights may be loaded before the preceding kernel is done, if `programmatic` is 1. */

/* out = x * r(x) * (1 + weight), r(x) = 1 / sqrt(mean(x^2) + eps). */
typedef struct ls_dense_norm_params {
  void* out;                  /* [rows, n] bf16, row stride out_stride                           */
  const void* x;              /* [rows, n] bf16, row stride x_stride                             */
  const void* weight;         /* [n]       bf16, stored around zero                              */
  int64_t out_stride;
  int64_t x_stride;
  int32_t rows;
  int32_t n;
  float eps;
  int32_t vectors_per_thread; /* 1, 2 (n > 1024) or 4 (n > 2048). Never changes a bit            */
  int32_t programmatic;       /* 1: may begin while the preceding kernel still runs              */
} ls_dense_norm_params;

int32_t ls_dense_norm_smxx(const ls_dense_norm_params* p, ls_stream_t stream);

/* residual = residual + x, rounded; then the norm of the rounded residual. */
typedef struct ls_dense_add_norm_params {
  void* residual;             /* [rows, n] bf16, read and written, row stride residual_stride    */
  void* out;                  /* [rows, n] bf16, row stride out_stride                           */
  const void* x;              /* [rows, n] bf16, row stride x_stride                             */
  const void* weight;         /* [n]       bf16, stored around zero                              */
  int64_t residual_stride;
  int64_t out_stride;
  int64_t x_stride;
  int32_t rows;
  int32_t n;
  float eps;
  int32_t vectors_per_thread; /* as above                                                        */
  int32_t programmatic;
} ls_dense_add_norm_params;

int32_t ls_dense_add_norm_smxx(const ls_dense_add_norm_params* p, ls_stream_t stream);

/* Two norms side by side in one row. */
typedef struct ls_dense_concat_norm_params {
  void* out;                  /* [rows, 2n] bf16, row stride out_stride: left, then right        */
  const void* left;           /* [rows, n]  bf16, row stride left_stride                         */
  const void* left_weight;    /* [n]        bf16, stored around zero                             */
  const void* right;          /* [rows, n]  bf16, row stride right_stride                        */
  const void* right_weight;   /* [n]        bf16, stored around zero                             */
  int64_t out_stride;
  int64_t left_stride;
  int64_t right_stride;
  int32_t rows;
  int32_t n;
  float eps;
  int32_t vectors_per_thread; /* as above                                                        */
  int32_t programmatic;
} ls_dense_concat_norm_params;

int32_t ls_dense_concat_norm_smxx(const ls_dense_concat_norm_params* p, ls_stream_t stream);

/* out = x * r(x) * weight * silu(gate), for each head of 128 by itself; at most 131072 heads. */
typedef struct ls_dense_gated_norm_params {
  void* out;                  /* [rows, heads, 128] bf16                                         */
  const void* x;              /* [rows, heads, 128] bf16                                         */
  const void* gate;           /* [rows, heads, 128] bf16                                         */
  const float* weight;        /* [128]              fp32, stored around one                      */
  int64_t out_row_stride;
  int64_t out_head_stride;
  int64_t x_row_stride;
  int64_t x_head_stride;
  int64_t gate_row_stride;
  int64_t gate_head_stride;
  int32_t rows;
  int32_t heads;
  float eps;
  int32_t programmatic;
} ls_dense_gated_norm_params;

int32_t ls_dense_gated_norm_smxx(const ls_dense_gated_norm_params* p, ls_stream_t stream);

/* out[i] = table[ids[i]], zeros for an id outside of the table. */
typedef struct ls_dense_embed_params {
  void* out;                  /* [rows, n]  bf16, row stride out_stride                          */
  const int32_t* ids;         /* [rows], aligned to 4 bytes                                      */
  const void* table;          /* [vocab, n] bf16, row stride table_stride                        */
  int64_t out_stride;
  int64_t table_stride;
  int32_t rows;
  int32_t n;                  /* of any width                                                    */
  int32_t vocab;
  int32_t programmatic;
} ls_dense_embed_params;

int32_t ls_dense_embed_smxx(const ls_dense_embed_params* p, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
