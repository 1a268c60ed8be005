/* Gated Delta Net verify-and-commit: one fp32 state and a journal of raw inputs per slot. See the crate's
 * README for what a launch does and for layouts. */
#ifndef KERNELS_GDN_H
#define KERNELS_GDN_H

#include "lockstep/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Heads of 128 elements, v_heads a multiple of k_heads. All strides in elements. `state`, `journal`, `q`, `k`
 * and `v` are aligned to 16 bytes and their strides are multiples of 4. Written operands overlap no others. */
typedef struct ls_gdn_params {
  void* out;              /* [rows, v_heads, 128]                bf16                                    */
  float* state;           /* [slots, v_heads, 128, 128]          v, then k; packed but for the slots     */
  void* journal;          /* [slots, journal_rows, width]        bf16 k, v, a, b; position p in row p % journal_rows */
  const int32_t* folded;  /* [slots]                             tokens inside the state                 */
  const int32_t* committed; /* [slots]                           fold: tokens to bring the state to      */
  const void* q;          /* [rows, k_heads, 128]                bf16, raw from the convolution          */
  const void* k;          /* [rows, k_heads, 128]                bf16                                    */
  const void* v;          /* [rows, v_heads, 128]                bf16                                    */
  const void* a;          /* [rows, v_heads]                     bf16, head stride 1                     */
  const void* b;          /* [rows, v_heads]                     bf16, head stride 1                     */
  const float* a_log;     /* [v_heads]                                                                   */
  const float* dt_bias;   /* [v_heads]                                                                   */
  ls_rows rows;           /* fold: only slots, faults, sequences and slot_count                          */
  int64_t out_row_stride;
  int64_t out_head_stride;
  int64_t state_slot_stride;
  int64_t journal_slot_stride;
  int64_t journal_row_stride;
  int64_t q_row_stride;
  int64_t q_head_stride;
  int64_t k_row_stride;
  int64_t k_head_stride;
  int64_t v_row_stride;
  int64_t v_head_stride;
  int64_t a_row_stride;
  int64_t b_row_stride;
  float query_scale;      /* 1 / sqrt(128), rounded once                                                 */
  int32_t k_heads;
  int32_t v_heads;
  int32_t journal_rows;
  int32_t flush_after;    /* verify: store the state where more than this many tokens were pending       */
  int32_t tile;           /* smxx: value elements of a block, 16, 32 or 64. Never changes a bit          */
  int32_t multiprocessors; /* of the device: sm90 fills them. Never changes a bit                        */
  int32_t programmatic;   /* 1: may begin while the preceding kernel still runs                          */
} ls_gdn_params;

/* Replays what is pending, stores by the flush rule, runs and journals the new rows. */
int32_t ls_gdn_verify_smxx(const ls_gdn_params* p, ls_stream_t stream);
/* Replays what is pending, runs the rows, always stores, journals nothing. */
int32_t ls_gdn_prefill_smxx(const ls_gdn_params* p, ls_stream_t stream);
/* Replays folded[slot] .. committed[slot] of the given slots and stores. */
int32_t ls_gdn_fold_smxx(const ls_gdn_params* p, ls_stream_t stream);

/* The same verification by persistent blocks, with the next state on its way by bulk copies. Pointers of the
 * state are multiples of 16 bytes for every slot. */
int32_t ls_gdn_verify_sm90(const ls_gdn_params* p, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
