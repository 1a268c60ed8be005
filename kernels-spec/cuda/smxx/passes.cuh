// The passes that sampling, drafts and the chain share. sample.cu has them.
#pragma once

#include "kernels_spec.h"
#include "lockstep/launch.cuh"
#include "logits.cuh"

namespace lockstep::spec {

// Shape, narrow, list and choose.
int32_t launch_passes(const ls_spec_sample_params& p, ls_stream_t stream);

}  // namespace lockstep::spec
