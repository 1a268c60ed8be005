/* Linear layers, the head, norms, the embedding and the experts of a decode step, bf16. See the crate's README for the order of sums. */
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

/* out = silu(gate) * up, rounded once. */
typedef struct ls_dense_silu_mul_params {
  void* out;                  /* [rows, n] bf16, row stride out_stride                           */
  const void* gate;           /* [rows, n] bf16, row stride gate_stride                          */
  const void* up;             /* [rows, n] bf16, row stride up_stride                            */
  int64_t out_stride;
  int64_t gate_stride;
  int64_t up_stride;
  int32_t rows;
  int32_t n;                  /* of any width                                                    */
  int32_t programmatic;
} ls_dense_silu_mul_params;

int32_t ls_dense_silu_mul_smxx(const ls_dense_silu_mul_params* p, ls_stream_t stream);

/* out[i] = mean + (the sum of the four bytes of word i, less 510) * unit, rounded after the product, after the sum and
 * to the element's type. Word i is number (first + i) % 4 of the Philox 4x32-10 block that the counter
 * ((first + i) / 4, low half then high half, stream, 1) and the key `seed`, low half first, give. The standard deviation
 * is unit * sqrt(21845). */
typedef struct ls_dense_random_fill_params {
  void* out;                  /* [len]: bf16 or fp32, by the launcher                            */
  int64_t len;                /* at most 2^42, of any length                                     */
  int64_t first;              /* as well, a multiple of 8                                        */
  uint64_t seed;
  uint32_t stream;
  float mean;
  float unit;
} ls_dense_random_fill_params;

int32_t ls_dense_random_fill_bf16_smxx(const ls_dense_random_fill_params* p, ls_stream_t stream);
int32_t ls_dense_random_fill_f32_smxx(const ls_dense_random_fill_params* p, ls_stream_t stream);

/* out = x weight^T and what follows it. A sum is fp32, by mma's k16 steps in ascending order inside segments of
 * `segment` elements of k; segments are added in ascending order. Bits depend on `segment` and on nothing else of what
 * can be chosen here: take it from (k, rows of the weight) alone, as kernels-dense's partition.rs does. */
#define LS_DENSE_STORE 0
#define LS_DENSE_ADD_TO 1     /* out = out + sum, the sum rounded before                         */
#define LS_DENSE_SILU_MUL 2   /* out = silu(gate sum) * up sum, both rounded before              */
#define LS_DENSE_SIGMOID_GATE 3 /* out = sigmoid(gate of the row) * sum, the sum rounded before    */

/* Words at the head of the workspace that are zero before a first run and after every run: one for each block, one for
 * the grid, one for each tile of each group. A workspace serves one stream, and nothing but linear layers, heads and experts. */
#define LS_DENSE_ZEROED_WORDS 2048
#define LS_DENSE_MAX_BLOCKS 1024
#define LS_DENSE_MAX_SPLIT_TILES 512

typedef struct ls_dense_linear_params {
  void* out;                  /* [rows, n] bf16, row stride out_stride; read too by ADD_TO       */
  const void* x;              /* [rows, k] bf16, row stride x_stride                             */
  const void* weight;         /* [n, k] bf16, row stride weight_stride; SILU_MUL: [2n, k], gate, then up */
  const float* gate;          /* [rows], aligned to 4 bytes; read by SIGMOID_GATE only           */
  uint32_t* flags;            /* [LS_DENSE_ZEROED_WORDS]; sm90 only                              */
  float* scratch;             /* sm90 only: tile_rows * columns floats for each block and, of more than one
                               * segment, for each (tile, segment) of each group                 */
  int64_t out_stride;
  int64_t x_stride;
  int64_t weight_stride;
  int32_t rows;
  int32_t k;                  /* a multiple of 8                                                 */
  int32_t n;                  /* a multiple of 8                                                 */
  int32_t epilogue;           /* LS_DENSE_STORE, ...                                             */
  int32_t segment;            /* a multiple of 64                                                */
  int32_t columns;            /* rows of x computed together: 8, 16, 32, 64; sm90 24, 48, 96, 128,
                               * 192, 256 too. Of SILU_MUL smxx has 32 at most                 */
  int32_t tile_rows;          /* sm90 only: 64 or 128 rows of the weight at a time; SILU_MUL has 128,
                               * half of them gate rows. Never changes a bit                     */
  int32_t blocks;             /* sm90 only: of each group; at most one for each (tile, segment). Never changes a bit */
  int32_t groups;             /* sm90 only: of `columns` rows, that stand beside each other in a launch; others follow.
                               * 1 up to 64 columns but with tile_rows of 64 or segments. Never changes a bit */
  int32_t programmatic;       /* 1: may begin, and load weights, while the preceding kernel still runs */
} ls_dense_linear_params;

int32_t ls_dense_linear_smxx(const ls_dense_linear_params* p, ls_stream_t stream);
int32_t ls_dense_linear_sm90(const ls_dense_linear_params* p, ls_stream_t stream);

/* Logits in fp32, and the smallest id of each row's largest; -1 where all are NaN. Ids from `valid` on never win, and
 * their logits are -inf. */
typedef struct ls_dense_head_params {
  float* logits;              /* [rows, vocab], row stride logits_stride; may be null. Columns of ids that are not
                               * listed stay as they are                                         */
  int32_t* argmax;            /* [rows]; may be null                                             */
  const void* x;              /* [rows, k] bf16, row stride x_stride                             */
  const void* weight;         /* [features, k] bf16, row stride weight_stride; without ids, rows from valid on are not
                               * read                                                            */
  const int32_t* ids;         /* [features]: what rows of the weight stand for, each id once, and those outside of
                               * [0, valid) are left out. Null where all of the vocabulary is there */
  uint32_t* flags;            /* as above                                                        */
  float* scratch;             /* sm90: as above, then 2 * columns floats for each block;
                               * smxx: 2 * rows floats for each 64 ids                           */
  int64_t logits_stride;
  int64_t x_stride;
  int64_t weight_stride;
  int32_t rows;
  int32_t k;                  /* a multiple of 8                                                 */
  int32_t features;           /* rows of the weight, a multiple of 8                             */
  int32_t valid;
  int32_t segment;            /* as above                                                        */
  int32_t columns;            /* 8, 16, 32, 64; sm90 24, 48, 96, 128 too                         */
  int32_t blocks;             /* sm90 only, of tiles of 128 ids                                  */
  int32_t programmatic;
} ls_dense_head_params;

int32_t ls_dense_head_smxx(const ls_dense_head_params* p, ls_stream_t stream);
int32_t ls_dense_head_sm90(const ls_dense_head_params* p, ls_stream_t stream);

/* Rows as E4M3 codes and one scale each: weight = E4M3(x / scale), scale = max(|x|) / 448, at least 2^-126; both
 * quotients in fp32, codes rounded to nearest even and saturating. Where a row has something that is not finite, its
 * scale is NaN and its codes are 0. E4M3: a sign, four bits of exponent with bias 7, three of mantissa; subnormal numbers
 * have exponent 0, there is no infinity, 0x7f and 0xff are NaN and are never written. */
typedef struct ls_dense_quantize_params {
  uint8_t* weight;            /* [rows, k] codes, row stride weight_stride, a multiple of 16     */
  float* scales;              /* [rows]                                                          */
  const void* table;          /* [table_rows, k] bf16, row stride table_stride                   */
  const int32_t* ids;         /* [rows]: rows of the table; outside of it stands a row of zeros. Null: row i is i */
  int64_t weight_stride;
  int64_t table_stride;
  int32_t rows;
  int32_t k;                  /* a multiple of 16                                                */
  int32_t table_rows;
  int32_t programmatic;
} ls_dense_quantize_params;

int32_t ls_dense_quantize_smxx(const ls_dense_quantize_params* p, ls_stream_t stream);

/* Logits by rows of codes: scale * sum, the sum in fp32 over the exact values of the codes. One chain of mma's k16 steps,
 * ascending; positions 2t, 2t + 1, 2t + 8 and 2t + 9 of a step are elements 4t to 4t + 3 of its 16. A code that is NaN
 * makes the logits of its row NaN. */
typedef struct ls_dense_fp8_head_params {
  float* logits;              /* [rows, vocab], row stride logits_stride; -inf from valid on without ids; columns of ids
                               * that are not listed stay as they are                            */
  const void* x;              /* [rows, k] bf16, row stride x_stride                             */
  const uint8_t* weight;      /* [features, k] codes, row stride weight_stride, a multiple of 16; without ids, rows from
                               * valid on are not read                                           */
  const float* scales;        /* [features]                                                      */
  const int32_t* ids;         /* [features]: as for a head                                       */
  int64_t logits_stride;
  int64_t x_stride;
  int64_t weight_stride;
  int32_t rows;
  int32_t k;                  /* a multiple of 16                                                */
  int32_t features;           /* rows of the weight, a multiple of 8                             */
  int32_t valid;
  int32_t columns;            /* rows of x computed together: 8, 16, 32, 64. Never changes a bit */
  int32_t tile_rows;          /* rows of the weight at a time: 64 or 128. Never changes a bit    */
  int32_t programmatic;       /* 1: may begin, and load codes, while the preceding kernel still runs */
} ls_dense_fp8_head_params;

int32_t ls_dense_fp8_head_smxx(const ls_dense_fp8_head_params* p, ls_stream_t stream);

/* A mixture of experts. Of each row, A(v) rounding to bf16: p = softmax(router x); its route is the top_k experts of the
 * largest p, of equals the smallest id, in this order; w = p / sum of the route's p. out = A(out + A(s)), s the sum of
 * w * A(down A(silu(A(gate x)) * A(up x))) over the route, then of the shared expert, times sigmoid(shared_gate x).
 * Sums as above. A pair is row * top_k + rank, then, for the shared expert, rows * top_k + row. */
#define LS_DENSE_MOE_MAX_EXPERTS 1024
#define LS_DENSE_MOE_MAX_TOP_K 32
#define LS_DENSE_MOE_MAX_PAIRS 8192   /* rows_at_once * top_k                                            */

typedef struct ls_dense_moe_params {
  void* out;                  /* [rows, hidden] bf16, row stride out_stride; read and written    */
  int32_t* routes;            /* [rows, top_k], row stride routes_stride, aligned to 4 bytes; may be null */
  const void* x;              /* [rows, hidden] bf16, row stride x_stride                        */
  const void* router;         /* [experts, hidden] bf16, row stride router_stride                */
  const void* gate_up;        /* [experts, 2 * intermediate, hidden] bf16: gate, then up         */
  const void* down;           /* [experts, hidden, intermediate] bf16                            */
  const void* shared_gate_up; /* [2 * shared_intermediate, hidden] bf16: gate, then up           */
  const void* shared_down;    /* [hidden, shared_intermediate] bf16                              */
  const void* shared_gate;    /* [hidden] bf16                                                   */
  uint32_t* flags;            /* [LS_DENSE_ZEROED_WORDS] as above, of every path                 */
  float* logits;              /* [segments, rows_at_once, width]; this and what follows may be anything before and
                               * after a run. Segments of the router, and width is experts + 1, rounded up to 8 */
  float* weights;             /* [rows_at_once, top_k + 1]: of the route, then of the shared expert */
  int32_t* chosen;            /* [rows_at_once, top_k]                                           */
  int32_t* members;           /* [rows_at_once * top_k]: pairs by expert                         */
  int32_t* groups;            /* [groups, 4], aligned to 16 bytes. With r = rows_at_once * top_k and
                               * d = min(experts, r): d + (r - d) / columns groups               */
  void* inner;                /* [rows_at_once * (top_k + 1), inner_width] bf16                  */
  void* outputs;              /* [rows_at_once * (top_k + 1), hidden] bf16                       */
  int64_t out_stride;
  int64_t routes_stride;
  int64_t x_stride;
  int64_t router_stride;
  int64_t gate_up_expert_stride; /* may be 2^31 and more                                        */
  int64_t gate_up_stride;
  int64_t down_expert_stride;
  int64_t down_stride;
  int64_t shared_gate_up_stride;
  int64_t shared_down_stride;
  int64_t inner_width;        /* the larger one of intermediate and shared_intermediate          */
  int32_t rows;
  int32_t hidden;             /* a multiple of 8, as are the next two                            */
  int32_t intermediate;
  int32_t shared_intermediate;
  int32_t experts;
  int32_t top_k;
  int32_t router_segment;     /* of (hidden, experts)                                            */
  int32_t gate_up_segment;    /* of (hidden, 2 * intermediate)                                   */
  int32_t down_segment;       /* of (intermediate, hidden)                                       */
  int32_t shared_gate_up_segment;
  int32_t shared_down_segment;
  int32_t columns;            /* rows of an expert that are computed together: 8, 16, 32. Never changes a bit */
  int32_t rows_at_once;       /* more rows than that read the experts again. Never changes a bit */
  int32_t tile_rows;          /* sm90 only: rows of gate and up that a block has at a time: 64, or, of 8 columns, 32.
                               * Never changes a bit */
  int32_t multiprocessors;    /* sm90 only: of the device. Never changes a bit                  */
  int32_t programmatic;       /* 1: may begin, and load weights, while the preceding kernel still runs */
} ls_dense_moe_params;

int32_t ls_dense_moe_smxx(const ls_dense_moe_params* p, ls_stream_t stream);
/* Widths are multiples of 64. */
int32_t ls_dense_moe_sm90(const ls_dense_moe_params* p, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
