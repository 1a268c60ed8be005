// A draft for the rejection chain, and the distribution it is drawn from.
#include "draw_draft.cuh"

extern "C" int32_t ls_spec_draw_draft_smxx(const ls_spec_draw_draft_params* p, ls_stream_t stream) {
  return lockstep::spec::launch_draw_draft(*p, stream);
}
