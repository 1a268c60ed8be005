// A row's route: the experts of its largest probabilities.
#pragma once

#include "mixture.cuh"

namespace lockstep::dense {

struct Choice {
  int32_t expert;
  float weight, shared;
};

// What a NaN counts as: a row with NaN still goes to top_k different experts.
constexpr uint32_t kTaken = 0, kLost = 1;

// One warp, one row. A lane has every 32nd expert, as the CPU's softmax has, kEach at most.
template <int kEach>
struct RouteOfRow {
  const Routing& r;
  const int row, lane;

  __device__ __forceinline__ int expert(int i) const { return 32 * i + lane; }

  // Logits, -inf behind the last expert, and that of the shared expert's gate. What may be is asked for together.
  __device__ __forceinline__ void logits(float (&sums)[kEach], float& gate) const {
    constexpr int kTogether = kEach <= 8 ? 4 : 1;
    const int64_t of_segment = int64_t(r.rows) * r.width;
    const float* from = r.logits + int64_t(row) * r.width;
    gate = 0.0f;
    for (int segment = 0; segment < r.segments; segment += kTogether) {
      float parts[kTogether][kEach], gates[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j, from += of_segment) {
        if (segment + j >= r.segments) continue;
        gates[j] = __ldcg(from + r.experts);
#pragma unroll
        for (int i = 0; i < kEach; ++i) parts[j][i] = __ldcg(from + min(expert(i), r.experts));
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (segment + j >= r.segments) continue;
        const bool first = segment + j == 0;
        gate = first ? gates[j] : __fadd_rn(gate, gates[j]);
#pragma unroll
        for (int i = 0; i < kEach; ++i) sums[i] = first ? parts[j][i] : __fadd_rn(sums[i], parts[j][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[i] = expert(i) < r.experts ? sums[i] : -__int_as_float(0x7f800000);
  }

  __device__ __forceinline__ void softmax(float (&p)[kEach]) const {
    float max = -__int_as_float(0x7f800000);
#pragma unroll
    for (int i = 0; i < kEach; ++i) max = p[i] > max ? p[i] : max;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, max, distance);
      max = other > max ? other : max;
    }
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      p[i] = exp(__fadd_rn(p[i], -max));
      if (expert(i) < r.experts) total = __fadd_rn(total, p[i]);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, distance));
    }
    divide(p, total);
  }

  // By one reciprocal for all: what the compiler itself emits for a division whose operands are far from both ends of
  // the range, rounded to nearest; the rest in one branch.
  __device__ __forceinline__ void divide(float (&p)[kEach], float total) const {
    constexpr float kLeast = 0x1p-80f;
    bool usual = total >= 1.0f && total <= 0x1p20f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) usual = usual && (p[i] >= kLeast || p[i] == 0.0f);
    if (__builtin_expect(!usual, 0)) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) p[i] = __fdiv_rn(p[i], total);
      return;
    }
    float guess;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(total));
    const float inverse = __fmaf_rn(guess, __fmaf_rn(-total, guess, 1.0f), guess);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float near = __fmul_rn(p[i], inverse);
      const float nearer = __fmaf_rn(__fmaf_rn(-total, near, p[i]), inverse, near);
      p[i] = __fmaf_rn(__fmaf_rn(-total, nearer, p[i]), inverse, nearer);
    }
  }

  // The most probable expert that is not taken; of equals the smallest id. Probabilities are not negative: their bits
  // are in their order.
  __device__ __forceinline__ Best take(uint32_t (&keys)[kEach]) const {
    // Winners of halves: the first half has the smaller ids.
    uint32_t best[kEach];
    int place[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) best[i] = keys[i], place[i] = i;
#pragma unroll
    for (int distance = 1; distance < kEach; distance *= 2) {
#pragma unroll
      for (int i = 0; i < kEach; i += 2 * distance) {
        const bool second = best[i + distance] > best[i];
        best[i] = second ? best[i + distance] : best[i], place[i] = second ? place[i + distance] : place[i];
      }
    }
    const uint32_t most = __reduce_max_sync(0xffffffffu, best[0]);
    const int taken = __reduce_min_sync(0xffffffffu, best[0] == most ? expert(place[0]) : kNoId);
#pragma unroll
    for (int i = 0; i < kEach; ++i) keys[i] = expert(i) == taken ? kTaken : keys[i];
    return {__uint_as_float(most == kLost ? 0x7fffffffu : most - 2), taken};
  }

  // Of rank `lane`; all lanes have the shared expert's weight.
  __device__ __forceinline__ Choice choose() const {
    float gate, p[kEach];
    logits(p, gate);
    softmax(p);
    uint32_t keys[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      keys[i] = expert(i) >= r.experts ? kTaken : p[i] != p[i] ? kLost : __float_as_uint(p[i]) + 2;
    }
    Choice choice = {};
    float total = 0.0f, own = 0.0f;
    for (int rank = 0; rank < r.top_k; ++rank) {
      const Best best = take(keys);
      total = __fadd_rn(total, best.value);
      if (rank == lane) own = best.value, choice.expert = best.id;
    }
    choice.weight = __fdiv_rn(own, total), choice.shared = sigmoid(gate);
    return choice;
  }
};

}  // namespace lockstep::dense
