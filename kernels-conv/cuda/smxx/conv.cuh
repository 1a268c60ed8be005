// Causal depthwise conv1d over a position-addressed ring: one function of a row, whatever the launch.
//
// A thread owns eight neighbouring channels and up to kRows neighbouring rows of one sequence. It issues all
// its loads (kWidth - 1 earlier inputs, kRows own ones) before it uses any, then walks the rows in registers.
// How rows are dealt to threads is free: every output is computed from its kWidth inputs alone, in one order.
#pragma once

#include "kernels_conv.h"
#include "lockstep/math.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/slots.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::conv {

static_assert(sizeof(ls_conv_params) == 152, "src/sys.rs describes this layout");

constexpr int64_t kPositions = int64_t(1) << 31;  // positions are i32

enum class Ring {
  EveryRow,  // each thread stores its own rows: no row read in this launch is written in it
  LastRows,  // a chunk may be longer than the ring: the threads of its first rows read, then store
};

enum class Work { Full, TrafficOnly };

// The taps and bias of a thread's eight channels; weights are constant, so they load before pdl::wait().
template <int kWidth>
struct Taps {
  uint4 taps[kWidth];  // [8 channels, kWidth] as stored
  uint4 bias;          // [8 channels]

  __device__ __forceinline__ void load(const ls_conv_params& p, int64_t channel) {
    const auto* weight = static_cast<const __nv_bfloat16*>(p.weight) + channel * kWidth;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) taps[i] = load_constant(weight + i * kVectorBf16);
    bias = p.bias ? load_constant(static_cast<const __nv_bfloat16*>(p.bias) + channel) : uint4{};
  }

  __device__ __forceinline__ float tap(int channel, int j) const {
    const int i = channel * kWidth + j;
    return bf16_at(taps[i / kVectorBf16], i % kVectorBf16);
  }
};

// One output of eight channels from the kWidth inputs that end at its own; oldest first.
template <int kWidth>
__device__ __forceinline__ uint4 output(const Taps<kWidth>& taps, const uint4* inputs, bool with_silu) {
  float y[kVectorBf16];
#pragma unroll
  for (int c = 0; c < kVectorBf16; ++c) {
    float sum = bf16_at(taps.bias, c);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum = __fmaf_rn(taps.tap(c, j), bf16_at(inputs[j], c), sum);
    y[c] = sum;
  }
  if (with_silu) {
#pragma unroll
    for (int c = 0; c < kVectorBf16; ++c) y[c] = silu(y[c]);
  }
  return pack_bf16(y);
}

// Depends on every loaded word, at almost no cost.
template <int kWidth>
__device__ __forceinline__ uint4 mixed(const Taps<kWidth>& taps, const uint4* inputs) {
  uint4 mix = taps.bias;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const uint4 a = taps.taps[j], b = inputs[j];
    mix = make_uint4(mix.x ^ a.x ^ b.x, mix.y ^ a.y ^ b.y, mix.z ^ a.z ^ b.z, mix.w ^ a.w ^ b.w);
  }
  return mix;
}

// The thread's view of the launch: eight channels of every tensor.
struct Columns {
  __nv_bfloat16* out;
  __nv_bfloat16* ring;
  const __nv_bfloat16* x;

  __device__ __forceinline__ Columns(const ls_conv_params& p, int64_t channel)
      : out(static_cast<__nv_bfloat16*>(p.out) + channel),
        ring(static_cast<__nv_bfloat16*>(p.ring) + channel),
        x(static_cast<const __nv_bfloat16*>(p.x) + channel) {}
};

// Zeros the rows first, first + step, ... below end.
__device__ __forceinline__ void zero_rows(const ls_conv_params& p, const Columns& at, int64_t first,
                                          int64_t end, int64_t step) {
  for (int64_t row = first; row < end; row += step) store_global(at.out + row * p.out_stride, uint4{});
}

// Grid: x = channel tiles, y = sequences and one more for the rows of nobody, z * blockDim.y = groups of rows.
template <int kWidth, int kRows, Ring kRing, Work kWork>
__global__ void __launch_bounds__(256) conv(const ls_conv_params p) {
  constexpr int kHistory = kWidth - 1;
  static_assert(kWidth >= 2 && kWidth <= 4, "one to three earlier inputs");
  static_assert(kRing == Ring::EveryRow || kRows >= kHistory, "only a chunk's first threads may read the ring");

  const int64_t channel = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * kVectorBf16;
  const bool inside = channel < p.channels;
  Taps<kWidth> taps;
  if (inside) taps.load(p, channel);
  pdl::wait();
  pdl::launch_dependents();
  if (!inside) return;

  const Columns at(p, channel);
  const int32_t group = blockIdx.z * blockDim.y + threadIdx.y;
  const int32_t groups = gridDim.z * blockDim.y;
  const int32_t index = blockIdx.y;
  if (index == p.rows.sequences) {
    zero_rows(p, at, unowned_from(p.rows) + group, p.rows.row_count, groups);
    return;
  }
  const Sequence s = sequence_at(p.rows, index, kPositions, channel == 0 && group == 0);
  if (!s.live) {
    zero_rows(p, at, s.first + group, s.first + s.count, groups);
    return;
  }
  const int32_t from = group * kRows;  // first of this thread's rows within the sequence
  if (from >= s.count) return;

  __nv_bfloat16* const ring = at.ring + s.slot * p.ring_slot_stride;
  const __nv_bfloat16* const x = at.x + s.first * p.x_stride;
  const int64_t position = s.start + from;
  // One division for all rows: their neighbours follow by wrapping.
  const int32_t ring_row = int32_t(uint32_t(position) % uint32_t(p.ring_rows));

  uint4 inputs[kHistory + kRows];  // [position - kHistory .. position + kRows]
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    const int32_t back = kHistory - i;
    if (from - back >= 0) {
      inputs[i] = load_global(x + int64_t(from - back) * p.x_stride);
    } else if (position - back >= 0) {
      const int32_t wrapped = ring_row - back < 0 ? ring_row - back + p.ring_rows : ring_row - back;
      inputs[i] = load_global(ring + int64_t(wrapped) * p.ring_row_stride);
    } else {
      inputs[i] = uint4{};  // before the sequence began: zeros, whatever the ring holds
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    inputs[kHistory + r] = from + r < s.count ? load_global(x + int64_t(from + r) * p.x_stride) : uint4{};
  }

  __nv_bfloat16* const out = at.out + (s.first + from) * p.out_stride;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (from + r >= s.count) break;
    const uint4 y = kWork == Work::Full ? output<kWidth>(taps, inputs + r, p.silu != 0)
                                        : mixed<kWidth>(taps, inputs + r);
    store_global(out + int64_t(r) * p.out_stride, y);
    if constexpr (kRing == Ring::EveryRow) {
      const int32_t row = ring_row + r < p.ring_rows ? ring_row + r : ring_row + r - p.ring_rows;
      store_global(ring + int64_t(row) * p.ring_row_stride, inputs[kHistory + r]);
    }
  }
  if constexpr (kRing == Ring::LastRows) {
    // This thread alone touches these channels of the ring, and its reads are done.
    if (from > 0) return;
    for (int32_t r = s.count > p.ring_rows ? s.count - p.ring_rows : 0; r < s.count; ++r) {
      const int64_t row = uint32_t(s.start + r) % uint32_t(p.ring_rows);
      store_global(ring + row * p.ring_row_stride, load_global(x + int64_t(r) * p.x_stride));
    }
  }
}

}  // namespace lockstep::conv
