// What the paths of linear layers and the head share: the operands, and what becomes of a sum.
//
// Weights are the operand with 64 rows, so that a sum's position is (feature, column): a row of the weight, a row of x.
#pragma once

#include <cuda_bf16.h>

#include <climits>
#include <cstdint>

#include "kernels_dense.h"
#include "lockstep/math.cuh"
#include "lockstep/vec.cuh"

namespace lockstep::dense {

constexpr int kTileFeatures = 64;  // of a warpgroup, or of four warps
constexpr int kStep = 64;          // elements of k that are brought together: four k16 steps
constexpr int kRowBytes = 2 * kStep;

enum class Kind { Linear, Gated, Head };

// A logit and its id; the larger one wins, of equals the smaller id.
struct Best {
  float value;
  int32_t id;
};
constexpr int32_t kNoId = INT_MAX;

// NaN never wins: every comparison with it is false.
__device__ __forceinline__ void improve(Best& best, float value, int32_t id) {
  if (value > best.value || (value == best.value && id < best.id)) best = {value, id};
}
__device__ __forceinline__ Best nobody() { return {-__int_as_float(0x7f800000), kNoId}; }
__device__ __forceinline__ int32_t id_of(const Best& best) { return best.id == kNoId ? -1 : best.id; }

// The best among the lanes whose numbers differ in the bits of kLanes only.
template <int kFirst, int kLast>
__device__ __forceinline__ void improve_across(Best& best) {
#pragma unroll
  for (int distance = kFirst; distance <= kLast; distance *= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, best.value, distance);
    const int32_t id = __shfl_xor_sync(0xffffffffu, best.id, distance);
    improve(best, value, id);
  }
}

struct Layer {
  const __nv_bfloat16* x;
  const __nv_bfloat16* weight;
  __nv_bfloat16* out;
  float* logits;
  int32_t* argmax;
  const float* gate;   // null where there is none
  const int32_t* ids;  // of a head's features; null where they are their numbers
  uint32_t* flags;
  float* scratch;
  int64_t x_stride, weight_stride, out_stride;  // logits_stride for a head
  int32_t rows, k, n;                           // n: features of the output
  int32_t valid;                                // rows of the weight, those of gate and up together
  int32_t valid_ids;                            // of a head
  int32_t steps, segment_steps, segments;
  bool add;

  __host__ explicit Layer(const ls_dense_linear_params& p) : Layer(p.segment, p.k) {
    x = static_cast<const __nv_bfloat16*>(p.x), weight = static_cast<const __nv_bfloat16*>(p.weight);
    out = static_cast<__nv_bfloat16*>(p.out);
    logits = nullptr, argmax = nullptr, ids = nullptr, flags = p.flags, scratch = p.scratch;
    gate = p.epilogue == LS_DENSE_SIGMOID_GATE ? p.gate : nullptr;
    x_stride = p.x_stride, weight_stride = p.weight_stride, out_stride = p.out_stride;
    rows = p.rows, n = p.n, valid = p.epilogue == LS_DENSE_SILU_MUL ? 2 * p.n : p.n;
    valid_ids = 0, add = p.epilogue == LS_DENSE_ADD_TO;
  }
  __host__ explicit Layer(const ls_dense_head_params& p) : Layer(p.segment, p.k) {
    x = static_cast<const __nv_bfloat16*>(p.x), weight = static_cast<const __nv_bfloat16*>(p.weight);
    out = nullptr, gate = nullptr, logits = p.logits, argmax = p.argmax, flags = p.flags, scratch = p.scratch;
    x_stride = p.x_stride, weight_stride = p.weight_stride, out_stride = p.logits_stride;
    rows = p.rows, n = p.features, valid = p.ids ? p.features : p.valid;
    ids = p.ids, valid_ids = p.valid, add = false;
  }

  // The same for `count` rows from `first` on.
  __host__ Layer block(int32_t first, int32_t count) const {
    Layer part = *this;
    part.x += first * x_stride;
    if (out) part.out += first * out_stride;
    if (logits) part.logits += first * out_stride;
    if (argmax) part.argmax += first;
    if (gate) part.gate += first;
    part.rows = count;
    return part;
  }

 private:
  __host__ Layer(int32_t segment, int32_t k)
      : k(k),
        steps((k + kStep - 1) / kStep),
        segment_steps(segment / kStep),
        segments((steps + segment_steps - 1) / segment_steps) {}
};

// Of eight columns and 16 features of a warp, a thread has two features eight apart, for two columns. Lanes of even and
// odd g trade, so that each has two neighbouring features of one column: one store for both.
struct Pairs {
  const int lane, g, t;

  __device__ __forceinline__ explicit Pairs(int lane) : lane(lane), g(lane / 4), t(lane % 4) {}
  __device__ __forceinline__ int feature() const { return g & ~1; }    // and the next; among eight
  __device__ __forceinline__ int column() const { return 2 * t + (g & 1); }  // among eight
  __device__ __forceinline__ float2 trade(float first, float second) const {
    const bool odd = g & 1;
    const float got = __shfl_xor_sync(0xffffffffu, odd ? first : second, 4);
    return odd ? make_float2(got, second) : make_float2(first, got);
  }
};

__device__ __forceinline__ float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_bf16(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

__device__ __forceinline__ uint32_t* place_of(const Layer& layer, int feature, int column) {
  return reinterpret_cast<uint32_t*>(layer.out + column * layer.out_stride + feature);
}

// Two neighbouring sums, rounded: stored, added to what was there, or times their row's gate.
__device__ __forceinline__ void store_sums(const Layer& layer, int feature, int column, uint32_t sums, uint32_t old) {
  if (layer.add) {
    sums = pack_bf16(__fadd_rn(low_bf16(old), low_bf16(sums)), __fadd_rn(high_bf16(old), high_bf16(sums)));
  }
  if (layer.gate != nullptr) {
    const float open = sigmoid(layer.gate[column]);
    sums = pack_bf16(__fmul_rn(open, low_bf16(sums)), __fmul_rn(open, high_bf16(sums)));
  }
  *place_of(layer, feature, column) = sums;
}
__device__ __forceinline__ void store_sums(const Layer& layer, int feature, int column, uint32_t sums) {
  store_sums(layer, feature, column, sums, layer.add ? *place_of(layer, feature, column) : 0);
}

__device__ __forceinline__ void store_gated(const Layer& layer, int feature, int column, uint32_t gate, uint32_t up) {
  *reinterpret_cast<uint32_t*>(layer.out + column * layer.out_stride + feature) =
      pack_bf16(__fmul_rn(silu(low_bf16(gate)), low_bf16(up)), __fmul_rn(silu(high_bf16(gate)), high_bf16(up)));
}

// A logit of a head that has some ids only.
__device__ __forceinline__ void store_listed(const Layer& layer, int feature, int column, float sum, Best& best) {
  const int32_t id = layer.ids[feature];
  if (id < 0 || id >= layer.valid_ids) return;
  improve(best, sum, id);
  if (layer.logits != nullptr) layer.logits[column * layer.out_stride + id] = sum;
}

// Two neighbouring logits: written where they are wanted, and compared with the best so far.
__device__ __forceinline__ void store_logits(const Layer& layer, int feature, int column, float2 sums, Best& best) {
  constexpr float kMasked = -__builtin_huge_valf();
  if (layer.ids != nullptr) {
    store_listed(layer, feature, column, sums.x, best);
    store_listed(layer, feature + 1, column, sums.y, best);
    return;
  }
  if (feature < layer.valid) improve(best, sums.x, feature);
  if (feature + 1 < layer.valid) improve(best, sums.y, feature + 1);
  if (layer.logits == nullptr) return;
  *reinterpret_cast<float2*>(layer.logits + column * layer.out_stride + feature) =
      make_float2(feature < layer.valid ? sums.x : kMasked, feature + 1 < layer.valid ? sums.y : kMasked);
}

}  // namespace lockstep::dense
