// Heads of 256 elements, bf16.
#include "verify.cuh"

template int32_t lockstep::attn::launch_verify<256>(const ls_attn_params& p, ls_stream_t stream);
