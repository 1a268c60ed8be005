/* Paged attention for short query blocks over long contexts. See the crate's README for what a launch does, and
 * the documentation of the Rust module `tree` for the order of the sums. */
#ifndef KERNELS_ATTN_H
#define KERNELS_ATTN_H

#include "lockstep/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For all: heads of 128 or 256 elements; q_heads / kv_heads is 1, 2, 3, 4, 6, 8, 12 or 16; pages of 16, 32, 64 or
 * 128 rows. All strides in elements. Operands of bf16 are aligned to 16 bytes and their strides are multiples
 * of 8. Written operands overlap no others. Position p of a slot lies in row p % page_rows of page
 * page_table[slot][p / page_rows]; of a pool [pages, 2, kv_heads, page_rows, head_dim] (0: keys, 1: values) each
 * axis but the last has a stride. */

typedef struct ls_attn_append_params {
  void* q_out;            /* [rows, q_heads, head_dim]   bf16; zeros in skipped rows                     */
  void* pool;             /* [pages, 2, kv_heads, page_rows, head_dim] bf16; at the rows' positions only */
  const void* q;          /* [rows, q_heads, head_dim]   bf16, raw                                       */
  const void* k;          /* [rows, kv_heads, head_dim]  bf16, raw                                       */
  const void* v;          /* [rows, kv_heads, head_dim]  bf16                                            */
  const void* q_norm;     /* [head_dim]                  bf16, centred on zero                           */
  const void* k_norm;     /* [head_dim]                  bf16, centred on zero                           */
  const float* rope;      /* [positions, rotary]         cosines, then sines                             */
  const int32_t* page_table; /* [slots, max_pages]                                                       */
  ls_rows rows;
  int64_t q_out_row_stride;
  int64_t q_out_head_stride;
  int64_t q_row_stride;
  int64_t q_head_stride;
  int64_t k_row_stride;
  int64_t k_head_stride;
  int64_t v_row_stride;
  int64_t v_head_stride;
  int64_t rope_row_stride;
  int64_t page_table_stride;
  int64_t page_stride;
  int64_t kv_stride;      /* from a page's keys to its values                                            */
  int64_t head_stride;
  int64_t row_stride;
  float eps;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t rotary;         /* leading elements of a head that are rotated: even, 0 for none               */
  int32_t pages;
  int32_t page_rows;
  int32_t max_pages;
  int32_t positions;
  int32_t programmatic;   /* 1: may begin while the preceding kernel still runs                          */
} ls_attn_append_params;

/* How a round is dealt to thread blocks; see `work` below. No output bit depends on it. */
#define LS_ATTN_SHARE_LEAF 1
#define LS_ATTN_SHARE_GROUP 2
#define LS_ATTN_SHARE_SEQUENCE 3
#define LS_ATTN_SHARE_BY_LENGTHS 4

/* The list of work of a round, made once and read by the verification of every layer. int32_t words:
 *   [8]                     items, pieces, share (never BY_LENGTHS), 0, 0, 0, 0, 0
 *   [sequences, kv_heads]   arrivals: 0 before and after each verification
 *   [sequences, 4]          first leaf, behind the last, first piece, pieces of a K/V head;
 *                           no piece: one block has the sequence to itself. A first leaf of -1: write zeros
 *   [items, 4]              sequence, kv_head, first leaf, behind the last; ascending. Sequence number
 *                           `sequences`: the rows that nobody owns. Room for (sequences + 1) * kv_heads +
 *                           max_pieces of them
 * An item of a sequence with pieces is one of them: a leaf, or the visible leaves of a group; piece i of head h
 * is number (first piece) + h * pieces + i, and whoever arrives last merges them, leaves ascending into groups,
 * groups ascending. */
typedef struct ls_attn_work_params {
  int32_t* work;          /* [work]                                                                      */
  const int32_t* page_table; /* [slots, max_pages]           checked here for all layers                 */
  ls_rows rows;
  int64_t page_table_stride;
  int32_t kv_heads;
  int32_t pages;
  int32_t page_rows;
  int32_t max_pages;
  int32_t first_key;
  int32_t window;         /* keys that a row sees at most; INT32_MAX: all                                */
  int32_t share;          /* one of LS_ATTN_SHARE_                                                       */
  int32_t blocks;         /* thread blocks that the chip runs at a time                                  */
  int32_t max_pieces;     /* that the workspace holds                                                    */
  int32_t programmatic;   /* 1: may begin while the preceding kernel still runs                          */
} ls_attn_work_params;

/* A prefill reads neither `work` nor `partials` nor `stats`, records the faults that the list records for a
 * verification, and takes any number of rows of a sequence; a verification takes 16. */
typedef struct ls_attn_params {
  void* out;              /* [rows, q_heads, head_dim]   bf16                                            */
  int32_t* work;          /* [work]                      the arrivals are counted up and back to 0       */
  float* partials;        /* [max_pieces, block_rows, head_dim]  O of a piece; anything before and after */
  float* stats;           /* [max_pieces, block_rows, 2] its maximum and sum                             */
  const void* q;          /* [rows, q_heads, head_dim]   bf16, normed and rotated                        */
  const void* gate;       /* [rows, q_heads, head_dim]   bf16, or null                                   */
  const void* pool;       /* [pages, 2, kv_heads, page_rows, head_dim] bf16                              */
  const int32_t* page_table; /* [slots, max_pages]                                                       */
  ls_rows rows;
  int64_t out_row_stride;
  int64_t out_head_stride;
  int64_t q_row_stride;
  int64_t q_head_stride;
  int64_t gate_row_stride;
  int64_t gate_head_stride;
  int64_t page_table_stride;
  int64_t page_stride;
  int64_t kv_stride;      /* from a page's keys to its values                                            */
  int64_t head_stride;
  int64_t row_stride;
  float exponent_scale;   /* log2(e) / sqrt(head_dim), rounded once                                      */
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t pages;
  int32_t page_rows;
  int32_t max_pages;
  int32_t first_key;
  int32_t window;         /* keys that a row sees at most; INT32_MAX: all                                */
  int32_t block_rows;     /* max_rows * q_heads / kv_heads                                               */
  int32_t blocks;         /* thread blocks that the chip runs at a time                                  */
  int32_t programmatic;   /* 1: may begin while the preceding kernel still runs                          */
} ls_attn_params;

/* Norm, rotary and the write of keys and values, for all rows. */
int32_t ls_attn_append_smxx(const ls_attn_append_params* p, ls_stream_t stream);
/* Checks the sequences of a round and lists its work. */
int32_t ls_attn_work_smxx(const ls_attn_work_params* p, ls_stream_t stream);
/* Attention of each sequence's new rows, by mma.sync. */
int32_t ls_attn_verify_smxx(const ls_attn_params* p, ls_stream_t stream);
/* The same function of a row, for many rows of few sequences. */
int32_t ls_attn_prefill_smxx(const ls_attn_params* p, ls_stream_t stream);

/* The same by WGMMA and bulk copies. */
int32_t ls_attn_verify_sm90(const ls_attn_params* p, ls_stream_t stream);
int32_t ls_attn_prefill_sm90(const ls_attn_params* p, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
