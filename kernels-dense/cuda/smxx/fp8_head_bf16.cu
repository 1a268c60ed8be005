// A head whose weight is E4M3 codes, on rows of bf16.
#include "fp8_head.cuh"

extern "C" int32_t ls_dense_fp8_head_smxx(const ls_dense_fp8_head_params* p, ls_stream_t stream) {
  using namespace lockstep::dense;
  if (p->rows < 0 || p->k < 1 || p->k % 16 != 0 || p->features < 1 || p->features % 8 != 0) return LS_ERR_UNSUPPORTED;
  if (p->rows == 0) return LS_OK;
  switch (p->columns) {
    case 8: return launch_fp8_head<8>(*p, stream);
    case 16: return launch_fp8_head<16>(*p, stream);
    case 32: return launch_fp8_head<32>(*p, stream);
    case 64: return launch_fp8_head<64>(*p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}
