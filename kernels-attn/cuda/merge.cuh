// What both paths launch behind themselves. Its kernel is built once, for every chip.
#pragma once

#include "kernels_attn.h"

namespace lockstep::attn {

// Folds the pieces of a list into rows, overlapping with the kernel that wrote them; see smxx/merge_bf16.cu.
int32_t launch_merge(const ls_attn_params& p, ls_stream_t stream);

}  // namespace lockstep::attn
