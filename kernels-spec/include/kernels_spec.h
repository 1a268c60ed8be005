/* The glue of speculative decoding. See the crate's README and docs/layouts.md for what each operation means. */
#ifndef KERNELS_SPEC_H
#define KERNELS_SPEC_H

#include "lockstep/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All pointers are device memory; strides are in elements. What is written overlaps nothing else. In every ls_rows
 * the faults are those of the slots. `programmatic` = 1: may begin while the preceding kernel still runs. */

/* What is remembered of every slot. */
typedef struct ls_spec_slots {
  int32_t* tokens;       /* [slot_count, positions], stride tokens_stride                            */
  int32_t* committed;    /* [slot_count], as the next seven                                          */
  int32_t* folded;
  int32_t* drafted;
  int32_t* proposed;
  int32_t* limit;        /* positions below have pages                                               */
  int32_t* length_limit; /* positions below may have tokens                                          */
  int32_t* prompt;
  int32_t* state;        /* 0 empty, 1 running, 2 eos, 3 stop, 4 length, 5 aborted, 6 faulted        */
  uint64_t* faults;      /* [slot_count + 1]                                                         */
  int64_t tokens_stride;
  int32_t slot_count;
  int32_t positions;
} ls_spec_slots;

/* Row lists of the next pass. */
#define LS_SPEC_TARGET 0
#define LS_SPEC_PREFILL 1
#define LS_SPEC_DRAFT 2
#define LS_SPEC_CHAIN 3
#define LS_SPEC_LAST 4

typedef struct ls_spec_inputs_params {
  ls_spec_slots slots;
  ls_rows from;             /* LAST: the list; DRAFT: the target's pass (slots and start only)          */
  int32_t* list_slots;      /* [sequences]                                                              */
  int32_t* list_start;      /* [sequences]                                                              */
  int32_t* list_offsets;    /* [sequences + 1]; CHAIN reads all three first                             */
  int32_t* ids;             /* [rows], -1 in rows of nobody; not LAST                                   */
  const int32_t* sequences; /* [sequences] slots, negative = padding; not LAST                          */
  const int32_t* wanted;    /* [sequences] TARGET: drafts at most; PREFILL: prompt tokens at most       */
  int32_t kind;
  int32_t sequence_count;
  int32_t row_count;
  int32_t max_rows;
  int32_t ring_rows;        /* DRAFT                                                                    */
  int32_t programmatic;
} ls_spec_inputs_params;

int32_t ls_spec_inputs_smxx(const ls_spec_inputs_params* p, ls_stream_t stream);

/* The steps of settling, any of them in one launch, in this order. */
#define LS_SPEC_ACCEPT 1
#define LS_SPEC_STOP 2
#define LS_SPEC_ADVANCE 4
#define LS_SPEC_EMIT 8
#define LS_SPEC_PROPOSE 16

typedef struct ls_spec_settle_params {
  ls_spec_slots slots;
  ls_rows rows;
  int32_t* accepted;             /* [sequences]; not PROPOSE                                            */
  const int32_t* choice;         /* ACCEPT: [rows]; PROPOSE: one per sequence, or null                   */
  const int32_t* eos;            /* STOP: [slot_count, max_eos], -1 = unused                            */
  const int32_t* stops;          /* STOP: [slot_count, max_stops, max_stop_length], -1 behind the end   */
  uint64_t* count_rounds;        /* ADVANCE: [slot_count, max_rows + 1], or null: no statistics         */
  uint64_t* count_verified;      /* ADVANCE: [slot_count, max_rows]                                     */
  uint64_t* count_accepted;      /* ADVANCE: [slot_count, max_rows]                                     */
  int32_t* emitted;              /* EMIT: [sequences, max_rows + 2]                                     */
  int64_t eos_stride;
  int64_t stops_slot_stride;
  int64_t stops_stride;
  int64_t rounds_stride;
  int64_t verified_stride;
  int64_t accepted_stride;
  int64_t emitted_stride;
  int32_t steps;                 /* LS_SPEC_ACCEPT | ...                                                */
  int32_t max_eos;
  int32_t max_stops;
  int32_t max_stop_length;
  int32_t flush_after;           /* ADVANCE                                                             */
  int32_t prefill;               /* ADVANCE: 1 = a prompt chunk                                         */
  int32_t programmatic;
} ls_spec_settle_params;

int32_t ls_spec_settle_smxx(const ls_spec_settle_params* p, ls_stream_t stream);

/* Drafts from a table of what comes, right as often as asked: for tests and measurements. */
typedef struct ls_spec_oracle_params {
  ls_spec_slots slots;
  uint32_t* rounds;              /* [slot_count] times a slot was asked for drafts, counted here        */
  const int32_t* truth;          /* [slot_count, positions], row stride truth_stride; negative: unknown */
  const float* rate;             /* [slot_count] the chance of a draft to be right                      */
  const int32_t* pattern;        /* [pattern] drafts that may be right, by round; or null               */
  const int32_t* sequences;      /* [sequences] slots, negative = padding                               */
  const int32_t* drafts;         /* [sequences] drafts wanted                                           */
  int64_t truth_stride;
  uint64_t seed;
  int32_t sequence_count;
  int32_t max_drafts;
  int32_t valid;                 /* ids below exist                                                     */
  int32_t pattern_count;         /* 0 without a pattern                                                 */
  int32_t programmatic;
} ls_spec_oracle_params;

int32_t ls_spec_oracle_smxx(const ls_spec_oracle_params* p, ls_stream_t stream);

/* Hidden rows. All strides and the width in bytes; `unit` divides them and every pointer. */
#define LS_SPEC_CARRY 0
#define LS_SPEC_KEEP 1
#define LS_SPEC_TAKE_LAST 2

typedef struct ls_spec_hidden_params {
  void* out;                     /* CARRY: [rows, width]; TAKE_LAST: a row per sequence                  */
  void* ring;                    /* CARRY reads, KEEP writes: [slot_count, ring_rows, width]            */
  const void* hidden;            /* [rows, width], CARRY: those of the target's pass                     */
  const int32_t* committed;      /* KEEP: [slot_count]                                                  */
  ls_rows rows;
  ls_rows forward;               /* CARRY                                                               */
  int64_t out_stride;
  int64_t ring_slot_stride;
  int64_t ring_stride;
  int64_t hidden_stride;
  int64_t width;
  int32_t ring_rows;
  int32_t kind;
  int32_t unit;                  /* bytes of an access: 2, 4 or 16                                      */
  int32_t programmatic;
} ls_spec_hidden_params;

int32_t ls_spec_hidden_smxx(const ls_spec_hidden_params* p, ls_stream_t stream);

/* The largest logit of each row: fp32, smallest id on a tie, NaN never; -1 where there is only NaN. */
typedef struct ls_spec_argmax_params {
  int32_t* choice;               /* [rows]                                                              */
  const float* logits;           /* [rows, vocab], row stride logits_stride, aligned to 4 bytes         */
  uint64_t* best;                /* [rows, chunks] workspace, anything before and after                 */
  int64_t logits_stride;
  int32_t rows;
  int32_t vocab;
  int32_t valid;                 /* ids at and beyond are never chosen                                  */
  int32_t vectors;               /* 1, 2, 4 or 8: a chunk is 1024 times as many ids. Never changes a bit */
  int32_t programmatic;
} ls_spec_argmax_params;

int32_t ls_spec_argmax_smxx(const ls_spec_argmax_params* p, ls_stream_t stream);

/* How each slot draws; all [slot_count] but the bias. */
typedef struct ls_spec_rules {
  const float* repetition;
  const float* presence;
  const float* frequency;
  const int32_t* bias_ids;       /* [slot_count, max_bias], -1 = unused                                 */
  const float* bias_values;      /* [slot_count, max_bias]                                              */
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const uint32_t* seed_lo;
  const uint32_t* seed_hi;
  int64_t bias_ids_stride;
  int64_t bias_values_stride;
  int32_t max_bias;
} ls_spec_rules;

/* Ids that one block sorts at most; a row where more lie at the border of its filters takes the long way. */
#define LS_SPEC_CANDIDATES 4096
#define LS_SPEC_BINS 1024
/* Groups of four neighbours that a chunk names as possible winners. */
#define LS_SPEC_FOUND 8
/* The `vectors` of the chunks in which a sequence's residual is raced. */
#define LS_SPEC_RACE_VECTORS 4

/* Why rows are looked at. */
#define LS_SPEC_SAMPLE 0
#define LS_SPEC_DRAW_DRAFT 1
#define LS_SPEC_REJECTION 2

typedef struct ls_spec_sample_params {
  int32_t* choice;               /* [rows]; REJECTION: workspace                                        */
  const float* logits;           /* [rows, vocab], row stride logits_stride, aligned to 4 bytes         */
  const int32_t* tokens;         /* [slot_count, positions], row stride tokens_stride                   */
  const int32_t* prompt;         /* [slot_count]                                                        */
  ls_rows rows;
  ls_spec_rules rules;
  /* Workspace, anything before and after. */
  float* shaped;                 /* [rows, shaped_stride] logits behind penalties and bias              */
  uint64_t* best;                /* [rows, chunks] the largest logit of each chunk                      */
  uint64_t* drawn;               /* [rows, chunks] the score that an id of the chunk has at least       */
  uint64_t* found;               /* [rows, chunks, 8] the chunk's groups of ids that may win            */
  uint32_t* tasks;               /* [rows] what the passes have to do                                   */
  uint32_t* patch_most;          /* [rows, patches] the largest of each 128 neighbours                  */
  uint32_t* bins;                /* [rows, 1024] ids by their distance from the largest                 */
  uint64_t* sums;                /* [rows, 2] the mass of all ids, and of those that are surely kept    */
  uint64_t* candidates;          /* [rows, 4096]                                                        */
  uint32_t* candidate_counts;    /* [rows]                                                              */
  uint64_t* kept;                /* [rows] the mass of what the filters leave                           */
  uint64_t* limits;              /* [rows] and its last rank; DRAW_DRAFT and REJECTION                  */
  uint64_t* most;                /* [rows] the largest logit; as above                                  */
  int64_t logits_stride;
  int64_t tokens_stride;
  int64_t shaped_stride;         /* a multiple of 4                                                     */
  int32_t vocab;                 /* at most 2^23                                                        */
  int32_t valid;
  int32_t positions;
  int32_t vectors;               /* 1, 2 or a multiple of 4; a chunk is 1024 times as many ids             */
  int32_t blocks;                /* that run at once. Neither changes a bit                                */
  int32_t kind;                  /* LS_SPEC_SAMPLE for ls_spec_sample                                   */
  int32_t programmatic;
} ls_spec_sample_params;

int32_t ls_spec_sample_smxx(const ls_spec_sample_params* p, ls_stream_t stream);

typedef struct ls_spec_draw_draft_params {
  ls_spec_sample_params sample;  /* kind = LS_SPEC_DRAW_DRAFT                                           */
  float* probabilities;          /* [slot_count, ring_rows, vocab]                                      */
  int64_t slot_stride;
  int64_t ring_stride;
  int32_t ring_rows;
} ls_spec_draw_draft_params;

int32_t ls_spec_draw_draft_smxx(const ls_spec_draw_draft_params* p, ls_stream_t stream);

typedef struct ls_spec_rejection_params {
  ls_spec_sample_params sample;  /* kind = LS_SPEC_REJECTION; tokens and prompt are those of the slots  */
  ls_spec_slots slots;
  int32_t* accepted;             /* [sequences]                                                         */
  const float* probabilities;    /* [slot_count, ring_rows, vocab]                                      */
  uint64_t* raced;               /* [sequences, chunks] workspace: the winner of each chunk             */
  int64_t slot_stride;
  int64_t ring_stride;
  int32_t ring_rows;
} ls_spec_rejection_params;

int32_t ls_spec_rejection_smxx(const ls_spec_rejection_params* p, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
