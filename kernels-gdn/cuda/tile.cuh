// A tile of one value head of one sequence: preparing its tokens, and running them over its rows.
#pragma once

#include "lockstep/launch.cuh"
#include "work.cuh"

namespace lockstep::gdn {

constexpr int kWarps = 4;  // hold the rows of a tile
constexpr int kThreads = kWarps * 32;
constexpr int kGroups = kWarps * kGroupsOfWarp;

// Which tile of which head. `index` counts tiles of heads.
struct Place {
  int32_t v_head;
  int32_t k_head;
  int32_t value;    // first value element of the tile
  bool first_tile;  // of its head: this one journals a and b
  bool owns_key;    // and is the first value head of its key head: this one journals k

  __device__ __forceinline__ Place(const Params& p, int32_t index, int32_t tile) {
    const int32_t tiles = kHead / tile;
    v_head = index / tiles;
    value = index % tiles * tile;
    uint32_t of_key;
    k_head = int32_t(p.heads_of_key.divide(v_head, of_key));
    first_tile = value == 0;
    owns_key = first_tile && of_key == 0;
  }
};

// Tokens ready for use, of a tile of this many values.
template <int kTokens, int kTile>
struct Prepared {
  float key[kTokens][kHead];
  float query[kTokens][kHead];
  __nv_bfloat16 value[kTokens][kTile];
  float decay[kTokens], beta[kTokens], qk[kTokens];
};

// The raw inputs of a token for a tile, held by a group of lanes.
template <int kTile>
struct Token {
  static constexpr int kTurns = ceil_div(kTile, 4 * kGroup);  // four values per lane and turn
  PackedSlice k, q;
  Packed v[kTurns];
  __nv_bfloat16 a, b;
  float a_log, dt_bias;

  static __device__ __forceinline__ int value_of(int lane, int turn) { return 4 * (lane + kGroup * turn); }

  // Issues the loads.
  __device__ __forceinline__ void load(const Params& p, const Work& w, const Place& at, int32_t t, int lane) {
    *this = Token{};
    if (t >= w.tokens()) return;
    const Raw raw = raw_of(p, w, t, at.k_head, at.v_head);
    k.load(raw.k, lane);
    if (raw.q) q.load(raw.q, lane);
    a = *raw.a, b = *raw.b;
    a_log = p.a_log[at.v_head], dt_bias = p.dt_bias[at.v_head];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (value_of(lane, turn) < kTile) v[turn] = load_packed(raw.v + at.value + value_of(lane, turn));
    }
  }

  // Journals the token if it is new, and prepares it as token `i`. All lanes of the warp take part.
  template <Mode kMode, int kTokens>
  __device__ __forceinline__ void finish(const Params& p, const Work& w, const Place& at, int32_t t, int i,
                                         int lane, Prepared<kTokens, kTile>& to) const {
    const bool here = t < w.tokens(), fresh = here && t >= w.pending;
    if (!__any_sync(0xffffffffu, here)) return;
    if (here) {
      __nv_bfloat16* const row = journal_row(p, w, t);
      const bool journals = kMode == Mode::Verify && fresh;
      if (journals && at.owns_key) k.store(row + at.k_head * kHead, lane);
      if (journals && at.first_tile && lane == 0) {
        __nv_bfloat16* const gates = row + (p.k_heads + p.v_heads) * kHead + at.v_head;
        gates[0] = a;
        gates[p.v_heads] = b;
      }
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int value = value_of(lane, turn);
        if (value >= kTile) continue;
        store_packed(&to.value[i][value], v[turn]);
        if (journals) store_packed(row + (p.k_heads + at.v_head) * kHead + at.value + value, v[turn]);
      }
    }
    float decay, beta, key_factor, query_factor;
    gates_of(__bfloat162float(a), __bfloat162float(b), a_log, dt_bias, lane, decay, beta);
    if (here && lane == 0) to.decay[i] = decay, to.beta[i] = beta;
    // A replayed token's query is zero and not used. Only one of the two is held in fp32 at a time, which keeps the
    // persistent kernel's preparers within their registers.
    length_factors(dot(k.widened(), k.widened()), dot(q.widened(), q.widened()), p.query_scale, lane, key_factor,
                   query_factor);
    if (here) store_slice(to.key[i], lane, scaled(k.widened(), key_factor));
    const Slice query = scaled(q.widened(), query_factor);
    if (here) store_slice(to.query[i], lane, query);
    // Each lane reads what it wrote; a group without a token sums what nobody uses.
    const float qk = dot(query, load_slice(to.key[i], lane));
    if (here && lane == 0) to.qk[i] = qk;
  }
};

// A group's rows of the state, from load to store.
template <int kRows>
struct Rows {
  Slice at[kRows];

  __device__ __forceinline__ void load(const float* from, int lane) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) at[r] = load_slice(from + r * kHead, lane);
  }
  __device__ __forceinline__ void store(float* to, int lane) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) store_slice(to + r * kHead, lane, at[r]);
  }
  // With nothing folded the state is zero by definition, whatever its memory holds.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) at[r] = Slice{};
  }
};

// Runs a prepared token over a group's rows, the first of which is `first_row` of the tile; returns the output that
// the lane speaks, or zero for a replayed token.
template <int kRows, typename Prepared>
__device__ __forceinline__ float advance(Rows<kRows>& rows, const Prepared& prepared, int i, int first_row,
                                         bool replayed, bool writes, int lane) {
  const Slice key = load_slice(prepared.key[i], lane);
  const Gates gates = {prepared.decay[i], prepared.beta[i], prepared.qk[i]};
  float value[Parts<kRows>::kCount];
#pragma unroll
  for (int part = 0; part < Parts<kRows>::kCount; ++part) {
    value[part] = __bfloat162float(prepared.value[i][first_row + Parts<kRows>::row(part, lane)]);
  }
  if (replayed) {
    replay(rows.at, key, gates, value, lane);
    return 0.0f;
  }
  return step(rows.at, key, load_slice(prepared.query[i], lane), gates, value, writes, lane);
}

// The row of the group whose output a lane speaks.
template <int kRows>
__device__ __forceinline__ int spoken_row(int lane) {
  return Parts<kRows>::row(Parts<kRows>::spoken(lane), lane);
}

// Zeros `elements` outputs of each row, by the block's first threads.
__device__ __forceinline__ void zero(const Params& p, int64_t from, int64_t end, __nv_bfloat16* out,
                                     int elements) {
  if (threadIdx.x >= elements) return;
  for (int64_t row = from; row < end; ++row) out[row * p.out_row_stride + threadIdx.x] = __float2bfloat16_rn(0.0f);
}

// Where a tile's rows and outputs begin.
__device__ __forceinline__ float* state_of(const Params& p, int32_t slot, const Place& at, int row) {
  return p.state + int64_t(slot) * p.state_slot_stride + (int64_t(at.v_head) * kHead + at.value + row) * kHead;
}
__device__ __forceinline__ __nv_bfloat16* out_of(const Params& p, const Place& at, int row) {
  return static_cast<__nv_bfloat16*>(p.out) + at.v_head * p.out_head_stride + at.value + row;
}

}  // namespace lockstep::gdn
