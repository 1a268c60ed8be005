// The distribution of a row whose passes are through: what kernels_spec::DrawDraft keeps and the chain compares with.
#pragma once

#include "narrow.cuh"

namespace lockstep::spec {

struct Shaped {
  Rules rules;
  uint64_t most, limit;
  float max, total;
  float scale;   // log2(e) / temperature
  float shares;  // a little more than 1 / total

  // Of an id below `valid`.
  __device__ __forceinline__ float probability(float x, uint32_t id) const {
    if (most == 0) return 0.0f;
    if (rules.greedy()) return id == id_of(most) ? 1.0f : 0.0f;
    if (!alive(x, max) || rank_of(x, id) > limit) return 0.0f;
    const float weight = exp(tempered(x, max, rules.temperature));
    return weight < rules.least_weight() ? 0.0f : __fdiv_rn(weight, total);
  }

  // At least that, in a third of the instructions; 0 only where it is 0.
  __device__ __forceinline__ float bound(float x, uint32_t id) const {
    if (most == 0) return 0.0f;
    if (rules.greedy()) return id == id_of(most) ? 1.0f : 0.0f;
    if (!alive(x, max) || rank_of(x, id) > limit) return 0.0f;
    constexpr float kTiny = 0x1p-100f;  // ex2.approx has no denormal results
    const float difference = max == kInfinity ? 0.0f : __fadd_rn(x, -max);
    return fmaxf(ex2_approx(difference * scale) * 1.002f, kTiny) * shares;
  }
};

__device__ __forceinline__ Shaped shaped_of(const ls_spec_sample_params& p, int64_t row, const Rules& rules) {
  const uint64_t most = p.most[row];
  const double mass = __dmul_rn(__ull2double_rn(p.kept[row]), 0x1p-40);  // exact
  const float total = __double2float_rn(mass);
  return {rules, most, p.limits[row], value_of(most), total, kLog2E / rules.temperature, 1.001f / total};
}

}  // namespace lockstep::spec
