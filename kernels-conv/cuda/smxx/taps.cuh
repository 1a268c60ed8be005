// Neighbouring channels as they lie in memory, and the taps that meet them.
#pragma once

#include "lockstep/vec.cuh"
#include "params.cuh"

namespace lockstep::conv {

template <int kWords>
struct AccessOf;
template <>
struct AccessOf<1> {
  using Type = uint32_t;
};
template <>
struct AccessOf<2> {
  using Type = uint2;
};
template <>
struct AccessOf<4> {
  using Type = uint4;
};

// kChannels bf16 values, loaded and stored by one access.
template <int kChannels>
struct Packed {
  static constexpr int kWords = kChannels / 2;
  using Access = typename AccessOf<kWords>::Type;

  uint32_t words[kWords];

  __device__ __forceinline__ void load(const char* at) { take(*reinterpret_cast<const Access*>(at)); }
  // For weights only, see load_constant().
  __device__ __forceinline__ void load_constant(const char* at) { take(__ldg(reinterpret_cast<const Access*>(at))); }
  __device__ __forceinline__ void store(char* at) const {
    Access all;
    memcpy(&all, words, sizeof all);
    *reinterpret_cast<Access*>(at) = all;
  }

  // Exact in fp32. `i` must be a constant after unrolling.
  __device__ __forceinline__ float at(int i) const {
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
  static __device__ __forceinline__ Packed rounded(const float (&y)[kChannels]) {
    Packed packed;
#pragma unroll
    for (int i = 0; i < kWords; ++i) packed.words[i] = pack_bf16(y[2 * i], y[2 * i + 1]);
    return packed;
  }
  __device__ __forceinline__ Packed& operator^=(const Packed& other) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] ^= other.words[i];
    return *this;
  }

 private:
  __device__ __forceinline__ void take(Access all) { memcpy(words, &all, sizeof all); }
};

// The taps and bias of a thread's channels; weights are constant, so they load before pdl::wait().
template <int kWidth, int kChannels>
struct Taps {
  static constexpr int kWords = kWidth * kChannels / 2;
  // The longest accesses that divide them: 16 bytes, less for three taps of few channels.
  static constexpr int kPiece = kWords % 4 == 0 ? 4 : kWords % 2 == 0 ? 2 : 1;
  static constexpr int kPieces = kWords / kPiece;

  Packed<2 * kPiece> taps[kPieces];  // [kChannels, kWidth] as stored
  Packed<kChannels> bias;            // [kChannels]

  __device__ __forceinline__ void load(const Params& p, uint32_t channel) {
    const char* const weight = static_cast<const char*>(p.weight) + uint64_t(channel) * (2 * kWidth);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) taps[i].load_constant(weight + i * (4 * kPiece));
    bias = Packed<kChannels>{};
    if (p.bias) bias.load_constant(column_of(static_cast<const char*>(p.bias), channel));
  }

  __device__ __forceinline__ uint32_t word(int i) const { return taps[i / kPiece].words[i % kPiece]; }
  __device__ __forceinline__ float tap(int channel, int j) const {
    const int i = channel * kWidth + j;
    return taps[i / (2 * kPiece)].at(i % (2 * kPiece));
  }
};

}  // namespace lockstep::conv
