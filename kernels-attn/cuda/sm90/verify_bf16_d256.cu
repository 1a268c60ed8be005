#include "verify.cuh"

namespace lockstep::attn::sm90 {
template int32_t launch_verify<256>(const ls_attn_params&, ls_stream_t);
}
