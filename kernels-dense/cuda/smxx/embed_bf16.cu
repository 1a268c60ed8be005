// Token ids to rows of the embedding table, bf16.
#include "kernels_dense.h"
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "packed.cuh"
#include "rows.cuh"

namespace lockstep::dense {

static_assert(sizeof(ls_dense_embed_params) == 56, "src/sys.rs describes this layout");

constexpr int kEmbedThreads = 128;  // of a block, one vector each

// Grid: x = rows, y = tiles of a row.
__global__ void __launch_bounds__(kEmbedThreads) embed(const ls_dense_embed_params p) {
  const uint32_t row = blockIdx.x, vector = blockIdx.y * kEmbedThreads + threadIdx.x;
  pdl::wait();
  pdl::launch_dependents();
  if (vector >= uint32_t(p.n) / kVectorBf16) return;
  // Negative ids are large ones here.
  const uint32_t id = p.ids[row];
  const uint32_t column = vector * kVectorBytes;
  Packed<kVectorBf16> values = {};
  if (id < uint32_t(p.vocab)) {
    values.load(row_of(static_cast<const char*>(p.table) + column, id, bytes_of(p.table_stride)));
  }
  values.store(row_of(static_cast<char*>(p.out) + column, row, bytes_of(p.out_stride)));
}

}  // namespace lockstep::dense

extern "C" int32_t ls_dense_embed_smxx(const ls_dense_embed_params* p, ls_stream_t stream) {
  using namespace lockstep;
  if (!dense::short_strides({p->out_stride, p->table_stride})) return LS_ERR_UNSUPPORTED;
  if (p->n < 1 || p->n % kVectorBf16 != 0 || p->n >= 1 << 25 || p->rows < 0) return LS_ERR_UNSUPPORTED;
  if (p->rows == 0) return LS_OK;
  const dim3 grid(p->rows, ceil_div(p->n / kVectorBf16, dense::kEmbedThreads));
  return launch(dense::embed, grid, dense::kEmbedThreads, 0, stream, p->programmatic != 0, *p);
}
