/* What every lockstep C header shares: the stream, the status codes, and the rows of a ragged launch. */
#ifndef LOCKSTEP_ABI_H
#define LOCKSTEP_ABI_H

#include <stdint.h>

/* A cudaStream_t (CUstream), spelled without CUDA's headers so that plain C programs can include this. */
typedef void* ls_stream_t;

/* A launcher returns 0, a cudaError_t (> 0) or one of these (< 0). */
#define LS_OK 0
#define LS_ERR_NOT_BUILT (-1)
#define LS_ERR_UNSUPPORTED (-2)

/* Which rows of a launch belong to which sequence. All pointers are device memory, so that lengths and
 * slots may change between replays of one CUDA graph; the numbers are bounds fixed when it is captured.
 * Sequence i owns rows row_offsets[i] .. row_offsets[i + 1], at positions start[i] and up. */
typedef struct ls_rows {
  const int32_t* slots;       /* [sequences]      state slot; negative = skip, write zeros        */
  const int32_t* start;       /* [sequences]      absolute position of the first row              */
  const int32_t* row_offsets; /* [sequences + 1]  ascending from 0; rows beyond the last are zeroed */
  uint64_t* faults;           /* [slot_count + 1] sticky fault words, 0 = fine; last: no such slot */
  int32_t sequences;
  int32_t row_count;          /* rows of the launch                                               */
  int32_t max_rows;           /* rows one sequence may have                                       */
  int32_t slot_count;
} ls_rows;

#endif
