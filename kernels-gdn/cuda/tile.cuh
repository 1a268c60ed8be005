// A tile of one value head of one sequence: preparing its tokens, and running them over its rows.
#pragma once

#include "work.cuh"

namespace lockstep::gdn {

constexpr int kWarps = 4;                           // that hold the rows of a tile
constexpr int kGroups = kWarps * kGroupsOfWarp;
constexpr int kChunk = 16;                          // tokens prepared at a time

// Which tile of which head. `index` counts tiles of heads.
struct Place {
  int32_t v_head;
  int32_t k_head;
  int32_t value;    // first value element of the tile
  bool first_tile;  // of its head: this one journals a and b
  bool owns_key;    // and is the first value head of its key head: this one journals k

  __device__ __forceinline__ Place(const ls_gdn_params& p, int32_t index, int32_t tile) {
    const int32_t tiles = kHead / tile, heads_of_key = p.v_heads / p.k_heads;
    v_head = index / tiles;
    k_head = v_head / heads_of_key;
    value = index % tiles * tile;
    first_tile = value == 0;
    owns_key = first_tile && v_head % heads_of_key == 0;
  }
};

// Prepared tokens: keys and queries normalised, everything in fp32.
template <int kTile>
struct Chunk {
  float key[kChunk][kHead];
  float query[kChunk][kHead];
  float value[kChunk][kTile];
  float decay[kChunk], beta[kChunk], qk[kChunk];
};

// One token on its way into a chunk, held by a group of lanes.
template <int kTile, Mode kMode>
struct Token {
  static constexpr int kTurns = kTile > 4 * kGroup ? kTile / (4 * kGroup) : 1;
  PackedSlice k, q;
  Packed v[kTurns];
  __nv_bfloat16 a, b;
  bool here, fresh;

  // Issues the loads of token `t`, if there is one.
  __device__ __forceinline__ void load(const ls_gdn_params& p, const Work& w, const Place& at, int32_t t, int lane) {
    *this = Token{};
    here = t < w.tokens();
    fresh = here && t >= w.pending;
    if (!here) return;
    const Raw raw = raw_of(p, w, t, at.k_head, at.v_head);
    k.load(raw.k, lane);
    if (fresh) q.load(raw.q, lane);
    a = *raw.a, b = *raw.b;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      if (has_values(lane)) v[i] = load_packed(raw.v + at.value + value_of(i, lane));
    }
  }

  // Four values per lane and turn; a narrow tile has none for some lanes.
  static __device__ __forceinline__ bool has_values(int lane) { return 4 * lane < kTile; }
  static __device__ __forceinline__ int value_of(int turn, int lane) { return 4 * (lane + kGroup * turn); }

  // Journals a new token, and puts the prepared one into place `i`. All lanes of the warp take part.
  __device__ __forceinline__ void finish(const ls_gdn_params& p, const Work& w, const Place& at, int32_t t, int i,
                                         int lane, Chunk<kTile>& chunk) const {
    if (kMode == Mode::Verify && fresh) journal(p, w, at, t, lane);
    Slice key = k.widened();
    normalise(key, 1.0f);
    const float decay = decay_of(__bfloat162float(a), p.a_log[at.v_head], p.dt_bias[at.v_head]);
    const float beta = sigmoid(__bfloat162float(b));
    if (here) {
      store_slice(chunk.key[i], lane, key);
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        if (has_values(lane)) *reinterpret_cast<float4*>(&chunk.value[i][value_of(turn, lane)]) = widen(v[turn]);
      }
      if (lane == 0) chunk.decay[i] = decay, chunk.beta[i] = beta;
    }
    if (__any_sync(0xffffffffu, fresh)) {
      Slice query = q.widened();
      normalise(query, p.query_scale);
      const float qk = dot(query, key);
      if (here) {
        store_slice(chunk.query[i], lane, query);
        if (lane == 0) chunk.qk[i] = qk;
      }
    }
  }

 private:
  __device__ __forceinline__ void journal(const ls_gdn_params& p, const Work& w, const Place& at, int32_t t,
                                          int lane) const {
    __nv_bfloat16* const row = journal_row(p, w.slot, int64_t(w.folded) + t);
    if (at.owns_key) k.store(row + at.k_head * kHead, lane);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (has_values(lane)) {
        store_packed(row + (p.k_heads + at.v_head) * kHead + at.value + value_of(turn, lane), v[turn]);
      }
    }
    if (at.first_tile && lane == 0) {
      __nv_bfloat16* const gates = row + (p.k_heads + p.v_heads) * kHead + at.v_head;
      gates[0] = a;
      gates[p.v_heads] = b;
    }
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

// Runs the prepared tokens from `from` on over a group's rows, storing the state where `storing` says. `state_at`
// and `out` point to the group's first row.
template <int kRows, int kTile>
__device__ __forceinline__ void advance(const ls_gdn_params& p, const Work& w, int32_t from, int32_t storing,
                                        const Chunk<kTile>& chunk, int first_row, int lane, Rows<kRows>& rows,
                                        float* state_at, __nv_bfloat16* out) {
  const int32_t tokens = w.tokens(), here = min(tokens - from, kChunk);
  for (int32_t i = 0; i < here; ++i) {
    const int32_t t = from + i;
    if (t == storing) rows.store(state_at, lane);
    const Slice key = load_slice(chunk.key[i], lane);
    const Gates gates = {chunk.decay[i], chunk.beta[i], chunk.qk[i]};
    float values[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) values[r] = chunk.value[i][first_row + r];
    if (t < w.pending) {
      replay(rows.at, key, gates, values);
      continue;
    }
    float y[kRows];
    // The state behind the last row is needed by nobody, unless it is stored.
    const bool writes = t + 1 < tokens || storing == tokens;
    step(rows.at, key, load_slice(chunk.query[i], lane), gates, values, writes, y);
    float mine = y[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) mine = lane == r ? y[r] : mine;
    if (lane < kRows) out[(w.first + t - w.pending) * p.out_row_stride + lane] = __float2bfloat16_rn(mine);
  }
  if (storing == tokens && from + here == tokens) rows.store(state_at, lane);
}

// Zeros the outputs of a group's rows.
template <int kRows>
__device__ __forceinline__ void zero(const ls_gdn_params& p, int64_t from, int64_t end, int lane,
                                     __nv_bfloat16* out) {
  if (lane >= kRows) return;
  for (int64_t row = from; row < end; ++row) out[row * p.out_row_stride + lane] = __float2bfloat16_rn(0.0f);
}

// Where a tile's rows and outputs begin.
__device__ __forceinline__ float* state_of(const ls_gdn_params& p, const Work& w, const Place& at, int row) {
  return p.state + w.slot * p.state_slot_stride + (int64_t(at.v_head) * kHead + at.value + row) * kHead;
}
__device__ __forceinline__ __nv_bfloat16* out_of(const ls_gdn_params& p, const Place& at, int row) {
  return static_cast<__nv_bfloat16*>(p.out) + at.v_head * p.out_head_stride + at.value + row;
}

}  // namespace lockstep::gdn
