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

/* What a thread block owns: the keys of a leaf, 2048, or all of a sequence. No output bit depends on it. */
#define LS_ATTN_SHARE_LEAF 1
#define LS_ATTN_SHARE_GROUP 2
#define LS_ATTN_SHARE_SEQUENCE 3
#define LS_ATTN_SHARE_BY_LENGTHS 4

/* A tile: 128 keys, from a multiple of 128. A row block: 64 / (q_heads / kv_heads) rows of a sequence, those of one
 * K/V head's query heads.
 *
 * The list of work of a round, made once and read by the verification of every layer. int32_t words:
 *   [8]                     items, pieces, share (never BY_LENGTHS), 0, 0, 0, 0, 0
 *   [sequences, 4]          first piece, pieces of a K/V head's row block, first tile, behind the last; without
 *                           pieces there is nothing to merge
 *   [items, 12]             sequence, kv_head, row block, first tile, behind the last, piece or -1, slot, start,
 *                           first row, rows, 0, 0. Room for
 *                           (sequences + 1) * kv_heads * row blocks of max_rows + max_pieces of them
 * Tiles are cut at multiples of the share; piece i of a row block is number
 *   (first piece) + (kv_head * row blocks + row block) * pieces + i.
 * No tiles: zeros go to `rows` rows from `first row`. Sequence number `sequences`: the rows that nobody owns. */
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
  int32_t leaf_tiles;     /* of a leaf: a function of kv_heads                                           */
  int32_t block_positions; /* rows of a sequence in a row block: 64 * kv_heads / q_heads                  */
  int32_t max_pieces;     /* that the workspace holds                                                    */
  int32_t programmatic;   /* 1: may begin while the preceding kernel still runs                          */
} ls_attn_work_params;

typedef struct ls_attn_params {
  void* out;              /* [rows, q_heads, head_dim]   bf16                                            */
  const int32_t* work;    /* [work]                                                                      */
  float* partials;        /* [max_pieces, block_rows, head_dim]  O of a piece, in fragments (finish.cuh);
                           * anything before and after                                                   */
  float* stats;           /* [max_pieces, block_rows, 2] its maximum and sum; anything before and after  */
  float* scratch;         /* [blocks, 2, block_rows, head_dim]   anything before, between and after      */
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
  int32_t leaf_tiles;     /* of a leaf: a function of kv_heads                                           */
  int32_t block_rows;     /* rows and heads of a row block, at most, rounded up to 8                     */
  int32_t blocks;         /* thread blocks that share the list                                           */
  int32_t max_pieces;     /* 0: no piece can be on the list                                              */
  int32_t programmatic;   /* 1: may begin while the preceding kernel still runs                          */
} ls_attn_params;

/* Norm, rotary and the write of keys and values, for all rows. */
int32_t ls_attn_append_smxx(const ls_attn_append_params* p, ls_stream_t stream);
/* Checks the sequences of a round and lists its work. */
int32_t ls_attn_work_smxx(const ls_attn_work_params* p, ls_stream_t stream);
/* Attention of each sequence's new rows, by mma.sync, and the merge of what its list has in pieces. */
int32_t ls_attn_verify_smxx(const ls_attn_params* p, ls_stream_t stream);
/* The same by WGMMA and bulk tensor copies. */
int32_t ls_attn_verify_sm90(const ls_attn_params* p, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
