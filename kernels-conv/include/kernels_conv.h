/* Causal depthwise conv1d over a position-addressed ring. See the crate's README for layouts. */
#ifndef KERNELS_CONV_H
#define KERNELS_CONV_H

#include "lockstep/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All strides in elements. Every pointer is aligned to 16 bytes, `channels` and every stride are multiples
 * of 8, strides of rows are below 2^31. `out`, `ring` and `x` do not overlap. */
typedef struct ls_conv_params {
  void* out;            /* [rows, channels]             bf16, row stride out_stride             */
  void* ring;           /* [slots, ring_rows, channels] bf16, row p % ring_rows = x of position p */
  const void* x;        /* [rows, channels]             bf16, row stride x_stride               */
  const void* weight;   /* [channels, width]            bf16, packed; tap j meets position p - width + 1 + j */
  const void* bias;     /* [channels]                   bf16, or null                           */
  ls_rows rows;
  int64_t out_stride;
  int64_t x_stride;
  int64_t ring_slot_stride;
  int64_t ring_row_stride;
  int32_t channels;
  int32_t width;           /* 2, 3 or 4                                                        */
  int32_t ring_rows;
  int32_t silu;            /* 0 or 1                                                           */
  int32_t rows_per_thread;     /* verify: 1, 2 or 4; prefill: ignored. Never changes a bit     */
  int32_t channels_per_thread; /* verify: 2, 4 or 8; prefill: 8. Never changes a bit           */
  int32_t lanes;               /* threads of a block along the channels: 32, 64, 128 or 256    */
  int32_t programmatic;    /* 1: may begin while the preceding kernel still runs               */
} ls_conv_params;

/* Rows of a decode or verification round: rows.max_rows small, ring_rows >= width - 1 + rows.max_rows. */
int32_t ls_conv_verify_smxx(const ls_conv_params* p, ls_stream_t stream);

/* Rows of a prefill chunk of any length, ring_rows >= width - 1. */
int32_t ls_conv_prefill_smxx(const ls_conv_params* p, ls_stream_t stream);

/* For the bench: the loads and stores of verify on the same grid, without its arithmetic. `out` is garbage. */
int32_t ls_conv_traffic_smxx(const ls_conv_params* p, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
