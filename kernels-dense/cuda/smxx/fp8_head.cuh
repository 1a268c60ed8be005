// A head whose weight is E4M3 codes, by mma.sync: codes stream through a ring of cp.async and become bf16 in registers.
//
// ldmatrix gives a lane four neighbouring codes of a k16 step where the instruction wants two pairs eight apart. So the
// step's positions 2t, 2t + 1, 2t + 8, 2t + 9 are elements 4t to 4t + 3 of its 16, for x as for the weight: the same
// products, and x is read by one 8-byte load.
#pragma once

#include "e4m3.cuh"
#include "products.cuh"

namespace lockstep::dense {

static_assert(sizeof(ls_dense_fp8_head_params) == 96, "src/sys.rs describes this layout");

constexpr int kCodes = 128;            // elements of k that are brought together: eight k16 steps
constexpr int kCodeBytes = kCodes;     // of a row of the weight
constexpr int kValueBytes = 2 * kCodes;  // of a row of x
constexpr int kMostStages = 4;

// kN: columns, rows of x.
template <int kN, int kWarps>
struct Fp8Tile {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kFeatures = 16 * kWarps;
  static constexpr int kEights = kN / 8;

  struct Stage {
    uint8_t codes[kFeatures][kCodeBytes];  // [features, 128], 16-byte piece i at i ^ row % 8
    uint8_t rows[kN][kValueBytes];         // [columns, 128], k16 step i at i ^ row % 8
  };
  static constexpr int kFit = kMostShared / int(sizeof(Stage));
  static constexpr int kStages = kFit < kMostStages ? kFit : kMostStages;
  static constexpr size_t kBytes = kStages * sizeof(Stage);
  static_assert(kStages >= 2, "one is read while the others come");

  using Sums = float[kEights][4];  // see mma.cuh
};

template <int kN, int kWarps>
struct Fp8Products {
  using T = Fp8Tile<kN, kWarps>;
  using Stage = typename T::Stage;
  using Sums = typename T::Sums;

  const ls_dense_fp8_head_params& p;
  Stage* const stages;
  const int warp;
  const Pairs pairs;
  const int first_feature, first_column, columns, steps;
  const int codes_there;              // rows of the weight that may be read
  uint32_t nan_low = 0, nan_high = 0;  // marks of rows g and g + 8

  __device__ __forceinline__ Fp8Products(const ls_dense_fp8_head_params& p, Stage* stages)
      : p(p),
        stages(stages),
        warp(threadIdx.x / 32),
        pairs(threadIdx.x % 32),
        first_feature(blockIdx.x * T::kFeatures),
        first_column(blockIdx.y * kN),
        columns(min(kN, p.rows - first_column)),
        steps(ceil_div(p.k, kCodes)),
        codes_there(p.ids != nullptr ? p.features : min(p.features, p.valid)) {}

  // A thread has the same piece of rows so many apart that they are swizzled alike.
  __device__ __forceinline__ void bring_codes(int step) const {
    constexpr int kPieces = kCodeBytes / kVectorBytes, kApart = T::kThreads / kPieces;
    static_assert(kApart % 8 == 0 && T::kFeatures % kApart == 0, "the swizzle's period; whole rounds");
    const int row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
    const int feature = first_feature + row, k = step * kCodes + piece * kVectorBytes;
    const uint32_t to = codes_at(stages[step % T::kStages], row, piece);
    const uint8_t* const from = p.weight + feature * p.weight_stride + k;
#pragma unroll
    for (int i = 0; i < T::kFeatures; i += kApart) {
      const bool there = feature + i < codes_there && k < p.k;
      cp_async_16(to + i * kCodeBytes, there ? from + i * p.weight_stride : p.weight, there);
    }
  }
  __device__ __forceinline__ void bring_rows(int step) const {
    constexpr int kPieces = kValueBytes / kVectorBytes, kApart = T::kThreads / kPieces;
    static_assert(kApart % 8 == 0 && (kN % kApart == 0 || kN < kApart), "the swizzle's period; whole rounds or one");
    const int row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
    const int k = step * kCodes + piece * kVectorBf16;
    const uint8_t* const place = values_at(stages[step % T::kStages], row % kN, piece / 2);
    const uint32_t to = shared_address(place) + piece % 2 * kVectorBytes;
    const __nv_bfloat16* const x = static_cast<const __nv_bfloat16*>(p.x);
    const __nv_bfloat16* const from = x + (first_column + row) * p.x_stride + k;
    if (kN < kApart && row >= kN) return;  // no more threads than pieces
#pragma unroll
    for (int i = 0; i < kN; i += kApart) {
      const bool there = row + i < columns && k < p.k;
      cp_async_16(to + i * kValueBytes, there ? from + i * p.x_stride : x, there);
    }
  }

  static __device__ __forceinline__ uint32_t codes_at(const Stage& stage, int row, int piece) {
    return shared_address(stage.codes[row]) + (piece ^ row % 8) * kVectorBytes;
  }
  // 16 values of a k16 step.
  static __device__ __forceinline__ const uint8_t* values_at(const Stage& stage, int row, int step) {
    return stage.rows[row] + (step ^ row % 8) * (2 * kVectorBytes);
  }

  // Adds the products of eight k16 steps, ascending. Lanes hold codes of rows g and g + 8.
  __device__ __forceinline__ void multiply(Sums& d, const Stage& stage) {
#pragma unroll
    for (int two = 0; two < kCodes / 16; two += 2) {
      uint32_t codes[4];  // rows g, g + 8 of the first step, then of the second
      ldmatrix_x4(codes, codes_at(stage, 16 * warp + pairs.lane % 16, two + pairs.lane / 16));
      nan_low |= e4m3::nan_marks(codes[0]) | e4m3::nan_marks(codes[2]);
      nan_high |= e4m3::nan_marks(codes[1]) | e4m3::nan_marks(codes[3]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t a[4];
        e4m3::decode(codes[2 * k], a[0], a[2]);
        e4m3::decode(codes[2 * k + 1], a[1], a[3]);
#pragma unroll
        for (int eight = 0; eight < T::kEights; ++eight) {
          const uint8_t* const at = values_at(stage, 8 * eight + pairs.g, two + k) + 8 * pairs.t;
          const uint2 four = *reinterpret_cast<const uint2*>(at);
          const uint32_t b[2] = {four.x, four.y};
          mma_m16n8k16<__nv_bfloat16>(d[eight], a, b);
        }
      }
    }
  }

  // Codes that do not depend on the preceding kernel may come before pdl::wait().
  __device__ __forceinline__ void bring_first_codes() const {
    for (int step = 0; step < min(T::kStages - 1, steps); ++step) bring_codes(step);
  }

  // After bring_first_codes().
  __device__ __forceinline__ void run(Sums& d) {
    for (int step = 0; step < T::kStages - 1; ++step) {
      if (step < steps) bring_rows(step);
      cp_async_commit_group();  // the first one has all codes so far
    }
    for (int step = 0; step < steps; ++step) {
      cp_async_wait_group<T::kStages - 2>();
      __syncthreads();
      const int next = step + T::kStages - 1;
      if (next < steps) bring_codes(next), bring_rows(next);
      cp_async_commit_group();
      multiply(d, stages[step % T::kStages]);
    }
  }

  __device__ __forceinline__ void store_listed(int feature, float* logits, float value) const {
    const int32_t id = p.ids[feature];
    if (id >= 0 && id < p.valid) logits[id] = value;
  }

  // Two neighbouring features of a column.
  __device__ __forceinline__ void store(int feature, int column, float2 scale, float2 sums) const {
    constexpr float kMasked = -__builtin_huge_valf();
    float* const logits = p.logits + (first_column + column) * p.logits_stride;
    const float2 y = make_float2(__fmul_rn(scale.x, sums.x), __fmul_rn(scale.y, sums.y));
    if (p.ids != nullptr) {
      store_listed(feature, logits, y.x);
      store_listed(feature + 1, logits, y.y);
      return;
    }
    *reinterpret_cast<float2*>(logits + feature) =
        make_float2(feature < p.valid ? y.x : kMasked, feature + 1 < p.valid ? y.y : kMasked);
  }

  __device__ __forceinline__ void finish(const Sums& d) const {
    const float not_a_number = __uint_as_float(0x7fc00000u);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The four lanes of a row have seen a quarter of its codes each.
      uint32_t marks = half == 0 ? nan_low : nan_high;
      marks |= __shfl_xor_sync(0xffffffffu, marks, 1);
      marks |= __shfl_xor_sync(0xffffffffu, marks, 2);
      const bool nan = (marks & e4m3::kNan) != 0;
      const int feature = first_feature + 16 * warp + 8 * half + pairs.feature();
      const bool feature_there = feature < p.features;
      const float2 scale =
          feature_there ? *reinterpret_cast<const float2*>(p.scales + feature) : make_float2(0.0f, 0.0f);
#pragma unroll
      for (int eight = 0; eight < T::kEights; ++eight) {
        const float first = nan ? not_a_number : d[eight][2 * half];
        const float2 sums = pairs.trade(first, nan ? not_a_number : d[eight][2 * half + 1]);
        const int column = 8 * eight + pairs.column();
        if (feature_there && column < columns) store(feature, column, scale, sums);
      }
    }
  }
};

template <int kN, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 2) fp8_head(const ls_dense_fp8_head_params p) {
  using P = Fp8Products<kN, kWarps>;
  extern __shared__ uint4 bytes[];
  P products(p, reinterpret_cast<typename P::Stage*>(bytes));
  // The codes do not wait for the preceding kernel.
  products.bring_first_codes();
  pdl::wait();
  pdl::launch_dependents();
  typename P::Sums sums = {};
  products.run(sums);
  products.finish(sums);
}

template <int kN, int kWarps>
int32_t launch_fp8_head(const ls_dense_fp8_head_params& p, ls_stream_t stream) {
  using T = Fp8Tile<kN, kWarps>;
  const dim3 grid(ceil_div(p.features, T::kFeatures), ceil_div(p.rows, kN));
  return launch_tiles<T>(fp8_head<kN, kWarps>, grid, p.programmatic != 0, stream, p);
}

template <int kN>
int32_t launch_fp8_head(const ls_dense_fp8_head_params& p, ls_stream_t stream) {
  switch (p.tile_rows) {
    case 64: return launch_fp8_head<kN, 4>(p, stream);
    case 128: return launch_fp8_head<kN, 8>(p, stream);
    default: return LS_ERR_UNSUPPORTED;
  }
}

}  // namespace lockstep::dense
