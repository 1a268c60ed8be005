// Norm, rotary and the write into the pages, bf16. A warp has a head of a row; that of a key also copies the value.
//
// The sum of squares has the order of src/append.rs: lane d % 32 adds its elements as they ascend, then lanes 16, 8,
// 4, 2 and 1 apart are added. Global memory is read and written by neighbours, so that a head changes hands in shared
// memory.
#include <cuda_bf16.h>

#include <cstring>

#include "kernels_attn.h"
#include "lockstep/launch.cuh"
#include "lockstep/math.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/slots.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::attn {

static_assert(sizeof(ls_attn_append_params) == 272, "src/sys.rs describes this layout");

constexpr int kAppendWarps = 4;  // heads of a block
constexpr int kMaxDepth = 4096;  // of the grid; more rows come in turns

template <int kCount>
struct AccessOf;
template <>
struct AccessOf<4> {
  using Type = uint2;
};
template <>
struct AccessOf<8> {
  using Type = uint4;
};

// A lane's elements of a head: kD / 32 neighbours, loaded and stored by one access.
template <int kD>
struct Slice {
  static constexpr int kCount = kD / 32;
  using Access = typename AccessOf<kCount>::Type;

  uint32_t words[kCount / 2];

  __device__ __forceinline__ void load(const __nv_bfloat16* at) {
    const Access all = *reinterpret_cast<const Access*>(at);
    memcpy(words, &all, sizeof all);
  }
  __device__ __forceinline__ void store(__nv_bfloat16* at) const {
    Access all;
    memcpy(&all, words, sizeof all);
    *reinterpret_cast<Access*>(at) = all;
  }
  __device__ __forceinline__ float at(int i) const {
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
};

// Whether the pages of some positions exist, for a warp; one warp of the grid reports the first that does not.
__device__ __forceinline__ bool pages_exist(const ls_attn_append_params& p, const Sequence& s, bool report) {
  const int32_t* const pages = p.page_table + s.slot * p.page_table_stride;
  const int64_t end = (s.start + s.count - 1) / p.page_rows + 1;
  for (int64_t from = s.start / p.page_rows; from < end; from += 32) {
    const int64_t entry = from + threadIdx.x % 32;
    const int32_t page = entry < end ? pages[entry] : 0;
    const uint32_t bad = __ballot_sync(0xffffffffu, uint32_t(page) >= uint32_t(p.pages));
    if (bad == 0) continue;
    const int first = __ffs(bad) - 1;
    if (report && threadIdx.x % 32 == first) record_fault(p.rows, FaultKind::Page, int32_t(s.slot), page);
    return false;
  }
  return true;
}

// The head normed and rotated. `line` is the warp's own.
template <int kD>
__device__ __forceinline__ Slice<kD> norm_and_rotate(const ls_attn_append_params& p, float (&line)[kD],
                                                     const Slice<kD>& x, const Slice<kD>& weight, int64_t position) {
  constexpr int kCount = Slice<kD>::kCount;
  const int lane = threadIdx.x % 32, first = lane * kCount;
#pragma unroll
  for (int i = 0; i < kCount; ++i) line[first + i] = x.at(i);
  __syncwarp();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float value = line[lane + 32 * i];
    sum = __fmaf_rn(value, value, sum);
  }
  __syncwarp();  // others' values are read before they become something else
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
  }
  const float scale = rsqrt(__fadd_rn(__fmul_rn(sum, 1.0f / kD), p.eps));
  float y[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    y[i] = __fmul_rn(__fmul_rn(x.at(i), scale), __fadd_rn(1.0f, weight.at(i)));
    line[first + i] = y[i];
  }
  __syncwarp();
  const int half = p.rotary / 2;
  const float* const angles = p.rope + position * p.rope_row_stride;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int d = first + i;
    if (d >= p.rotary) continue;
    const int pair = d < half ? d : d - half;
    const float cosine = angles[pair], sine = angles[pair + half];
    y[i] = d < half ? __fmaf_rn(-line[d + half], sine, __fmul_rn(y[i], cosine))
                    : __fmaf_rn(line[pair], sine, __fmul_rn(y[i], cosine));
  }
  __syncwarp();  // the line is free
  Slice<kD> out;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) out.words[i] = pack_bf16(y[2 * i], y[2 * i + 1]);
  return out;
}

// Grid: x = query heads and K/V heads, kAppendWarps at a time; y = sequences, and the rows of nobody; z = rows, in
// turns.
template <int kD>
__global__ void __launch_bounds__(32 * kAppendWarps) append(const __grid_constant__ ls_attn_append_params p) {
  using Head = Slice<kD>;
  __shared__ __align__(16) float lines[kAppendWarps][kD];
  const int warp = threadIdx.x / 32, first = threadIdx.x % 32 * Head::kCount;
  const int unit = blockIdx.x * kAppendWarps + warp;
  const bool is_query = unit < p.q_heads;
  const int64_t head = is_query ? unit : unit - p.q_heads;
  Head weight;
  weight.load(static_cast<const __nv_bfloat16*>(is_query ? p.q_norm : p.k_norm) + first);
  pdl::launch_dependents();
  pdl::wait();
  if (unit >= p.q_heads + p.kv_heads) return;

  auto* const q_out = static_cast<__nv_bfloat16*>(p.q_out) + head * p.q_out_head_stride + first;
  const auto zero = [&](int64_t from, int64_t end) {
    const Head zeros = {};
    for (int64_t row = from + blockIdx.z; row < end; row += gridDim.z) zeros.store(q_out + row * p.q_out_row_stride);
  };
  const int32_t index = blockIdx.y;
  if (index == p.rows.sequences) {
    if (is_query) zero(unowned_from(p.rows), p.rows.row_count);
    return;
  }
  const int64_t held = int64_t(p.max_pages) * p.page_rows, positions = held < p.positions ? held : p.positions;
  const bool first_warp = blockIdx.x == 0 && blockIdx.z == 0 && warp == 0;
  const Sequence s = sequence_at(p.rows, index, positions, first_warp && threadIdx.x == 0);
  if (!s.live || !pages_exist(p, s, first_warp)) {
    if (is_query) zero(s.first, s.first + s.count);
    return;
  }
  const auto* const x = static_cast<const __nv_bfloat16*>(is_query ? p.q : p.k) + first +
                        head * (is_query ? p.q_head_stride : p.k_head_stride);
  const int64_t x_stride = is_query ? p.q_row_stride : p.k_row_stride;
  const auto* const values = static_cast<const __nv_bfloat16*>(p.v) + head * p.v_head_stride + first;
  for (int64_t i = blockIdx.z; i < s.count; i += gridDim.z) {
    const int64_t row = s.first + i, position = s.start + i;
    Head in, value;
    in.load(x + row * x_stride);
    if (is_query) {
      norm_and_rotate<kD>(p, lines[warp], in, weight, position).store(q_out + row * p.q_out_row_stride);
      continue;
    }
    value.load(values + row * p.v_row_stride);
    const int64_t page = p.page_table[s.slot * p.page_table_stride + position / p.page_rows];
    auto* const to = static_cast<__nv_bfloat16*>(p.pool) + page * p.page_stride + head * p.head_stride +
                     position % p.page_rows * p.row_stride + first;
    value.store(to + p.kv_stride);
    norm_and_rotate<kD>(p, lines[warp], in, weight, position).store(to);
  }
}

template <int kD>
int32_t launch_append(const ls_attn_append_params& p, ls_stream_t stream) {
  // Sequences are taken to have about as many rows.
  const int32_t rows = ceil_div(p.rows.row_count, p.rows.sequences), depth = rows < kMaxDepth ? rows : kMaxDepth;
  const dim3 grid(ceil_div(p.q_heads + p.kv_heads, kAppendWarps), p.rows.sequences + 1, depth);
  return launch(append<kD>, grid, 32 * kAppendWarps, 0, stream, p.programmatic != 0, p);
}

}  // namespace lockstep::attn

extern "C" int32_t ls_attn_append_smxx(const ls_attn_append_params* p, ls_stream_t stream) {
  using namespace lockstep::attn;
  switch (p->head_dim) {
    case 128: return launch_append<128>(*p, stream);
    case 256: return launch_append<256>(*p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}
