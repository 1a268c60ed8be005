/* out[i] = max(x[i], 0) over `count` bf16 values: a multiple of 8, both pointers aligned to 16 bytes. */
#ifndef DEPENDENT_H
#define DEPENDENT_H

#include "lockstep/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

int32_t dependent_relu_smxx(void* out, const void* x, int64_t count, ls_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
