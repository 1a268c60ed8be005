// Causal depthwise conv1d over a position-addressed ring: one function of a row, whatever the launch.
//
// A thread owns kChannels neighbouring channels and up to kRows neighbouring rows of one sequence. It issues all
// its loads (kWidth - 1 earlier inputs, kRows own ones) before it uses any, then walks the rows in registers.
// How rows and channels are dealt to threads is free: every output is computed from its kWidth inputs alone, in
// one order.
//
// Small launches are latency: the sequence's numbers, then its inputs, then stores. So there is no branch between
// the numbers and the loads, an address is one multiplication, and what is rare stands behind the rest.
#pragma once

#include "lockstep/math.cuh"
#include "lockstep/pdl.cuh"
#include "params.cuh"
#include "taps.cuh"

namespace lockstep::conv {

constexpr int64_t kPositions = int64_t(1) << 31;  // positions are i32

enum class Kind {
  Decode,   // sequences have one row each
  Verify,   // each thread stores its own rows: no row read in this launch is written in it
  Prefill,  // a chunk may be longer than the ring: the threads of its first rows read, then store
};

enum class Work { Full, TrafficOnly };

// One output of kChannels channels from the kWidth inputs that end at its own; oldest first.
template <bool kSilu, int kWidth, int kChannels>
__device__ __forceinline__ Packed<kChannels> output(const Taps<kWidth, kChannels>& taps,
                                                    const Packed<kChannels>* inputs) {
  float y[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    float sum = taps.bias.at(c);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum = __fmaf_rn(taps.tap(c, j), inputs[j].at(c), sum);
    y[c] = sum;
  }
  if constexpr (kSilu) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) y[c] = silu(y[c]);
  }
  return Packed<kChannels>::rounded(y);
}

// Depends on every loaded word, at almost no cost.
template <int kWidth, int kChannels>
__device__ __forceinline__ Packed<kChannels> mixed(const Taps<kWidth, kChannels>& taps,
                                                   const Packed<kChannels>* inputs) {
  Packed<kChannels> mix = taps.bias;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) mix ^= inputs[j];
#pragma unroll
  for (int i = 0; i < Taps<kWidth, kChannels>::kWords; ++i) mix.words[i % (kChannels / 2)] ^= taps.word(i);
  return mix;
}

template <bool kSilu>
struct With {
  static constexpr bool silu = kSilu;
};

// Zeros rows `group`, group + groups, ... of the `count` from `first` on.
template <int kChannels>
__device__ __forceinline__ void zero_rows(const Params& p, char* out, int64_t first, uint32_t count, uint32_t group,
                                          uint32_t groups) {
#pragma unroll 1
  for (uint32_t t = group; t < count; t += groups) {
    Packed<kChannels>{}.store(row_of(out, uint32_t(first) + t, p.out_bytes));
  }
}

// Grid: x = channel tiles, y = sequences and one more for the rows of nobody, z * blockDim.y = groups of rows.
template <Kind kKind, int kWidth, int kChannels, int kRows, Work kWork>
__global__ void __launch_bounds__(kMaxThreads) conv(const Params p) {
  constexpr int kHistory = kWidth - 1;
  static_assert(kWidth >= 2 && kWidth <= 4, "one to three earlier inputs");
  static_assert(kKind != Kind::Prefill || kRows >= kHistory, "only a chunk's first threads may read the ring");
  static_assert(kKind != Kind::Decode || kRows == 1, "there is but one");

  const uint32_t channel = (blockIdx.x * blockDim.x + threadIdx.x) * kChannels;
  const bool inside = channel < uint32_t(p.channels);
  Taps<kWidth, kChannels> taps;
  // Threads beyond the channels load some taps too: a branch would cost all the others.
  taps.load(p, inside ? channel : 0);
  pdl::launch_dependents();
  pdl::wait();
  if (!inside) return;

  char* const out = column_of(static_cast<char*>(p.out), channel);
  const uint32_t group = kKind == Kind::Decode ? 0 : blockIdx.z * blockDim.y + threadIdx.y;
  const uint32_t groups = kKind == Kind::Decode ? 1 : gridDim.z * blockDim.y;
  const int32_t index = blockIdx.y;
  if (__builtin_expect(index == p.rows.sequences, 0)) {
    const int64_t first = unowned_from(p.rows);
    zero_rows<kChannels>(p, out, first, p.rows.row_count - uint32_t(first), group, groups);
    return;
  }
  const Numbers s = numbers_at(p.rows, index);
  const bool sound = owns_rows(p.rows, s.first, s.end);
  const uint32_t count = s.count(), from = group * kRows;  // first of this thread's rows within the sequence
  Packed<kChannels> inputs[kHistory + kRows];              // [position - kHistory .. position + kRows]

  // Own inputs need no more than the offsets: on their way before slot and position are looked at.
  const char* const x = settled(row_of(column_of(static_cast<const char*>(p.x), channel), s.first, p.x_bytes));
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    inputs[kHistory + r] = Packed<kChannels>{};
    if (sound && from + r < count) inputs[kHistory + r].load(row_of(x, from + r, p.x_bytes));
  }
  // Addresses are worked out before they are known to be sound: only loads stand behind the question.
  char* const slot = static_cast<char*>(p.ring) + uint64_t(2 * uint32_t(s.slot)) * uint64_t(p.ring_slot_stride);
  char* const ring = column_of(slot, channel);
  const uint32_t position = uint32_t(s.start) + from;
  // One division for all rows: their neighbours follow by wrapping.
  uint32_t ring_row;
  p.ring_divider.divide(position, ring_row);
  const char* earlier[kHistory];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    const uint32_t back = kHistory - i;
    const uint32_t row = ring_row >= back ? ring_row - back : ring_row - back + p.ring_rows;
    const bool own = kKind != Kind::Decode && from >= back;
    earlier[i] = settled(own ? row_of(x, from - back, p.x_bytes) : row_of<const char>(ring, row, p.ring_row_bytes));
  }
  if (__builtin_expect(!s.live(p.rows, kPositions), 0)) {
    const Sequence skipped = sequence_at(p.rows, index, kPositions, channel == 0 && group == 0);
    zero_rows<kChannels>(p, out, skipped.first, skipped.count, group, groups);
    return;
  }
  if (kKind != Kind::Decode && from >= count) return;
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    // Before the sequence began there are zeros, whatever the ring holds.
    inputs[i] = Packed<kChannels>{};
    if (position >= uint32_t(kHistory - i)) inputs[i].load(earlier[i]);
  }

  char* const to = row_of(out, uint32_t(s.first) + from, p.out_bytes);
  const auto walk = [&](auto with) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r > 0 && from + r >= count) break;
      if constexpr (kKind != Kind::Prefill) {
        const bool wraps = r > 0 && ring_row + r >= uint32_t(p.ring_rows);
        inputs[kHistory + r].store(row_of(ring, ring_row + r - (wraps ? p.ring_rows : 0), p.ring_row_bytes));
      }
      const auto y = kWork == Work::Full ? output<with.silu>(taps, inputs + r) : mixed(taps, inputs + r);
      y.store(row_of(to, r, p.out_bytes));
    }
  };
  // All arithmetic stands in one of two branches, so that none is moved among the loads, where it would wait for
  // the taps. The comments keep the compiler from joining the branches' common beginnings.
  if (p.silu != 0) {
    asm volatile("// silu");
    walk(With<true>{});
  } else {
    asm volatile("// no silu");
    walk(With<false>{});
  }
  if constexpr (kKind == Kind::Prefill) {
    // This thread alone touches these channels of the ring, and its reads are done.
    if (from > 0) return;
    const uint32_t kept = p.ring_rows;
    for (uint32_t r = count > kept ? count - kept : 0; r < count; ++r) {
      Packed<kChannels> row;
      row.load(row_of(x, r, p.x_bytes));
      p.ring_divider.divide(uint32_t(s.start) + r, ring_row);
      row.store(row_of(ring, ring_row, p.ring_row_bytes));
    }
  }
}

}  // namespace lockstep::conv
