// How the weight is dealt to blocks: evenly, to the step, whatever the number of blocks.
//
// A unit is a tile of features and a segment of k: one chain of k16 steps. Units stand in a row and every block takes
// the same share of their steps, at least one unit's worth, so that a unit has at most two owners. The first one begins
// with its part and hands the accumulators on, exact as they are; the second one comes to it last, and finds them long
// there. So no bit knows where a block's share ends.
#pragma once

#include <cstdint>

#include "layer.cuh"
#include "lockstep/divide.cuh"

namespace lockstep::dense::sm90 {

// Steps [first, end) of a unit.
struct Item {
  int32_t unit, tile, segment;
  int32_t first, end;
  bool continues, hands_on;
};

// What the host knows, divisions among it: a block must not count before it asks for memory.
struct Deal {
  int32_t tiles;                 // of the weight
  int32_t units, steps;          // of each block of a team; steps of all of k
  int32_t share, larger_shares;  // steps of a block; the first so many have one more
  int32_t team;                  // blocks that have neighbouring tiles and share what they read of x
  bool clusters;                 // whether the segments of a tile are the blocks of a cluster
  Divider unit_steps, segments;

  __host__ Deal(const Layer& layer, int32_t tiles, int32_t blocks, int32_t team, bool clusters)
      : Deal(layer, tiles, tiles / team * layer.segments, blocks / team, team, clusters) {}

 private:
  // `units` and `blocks`: one block of each team.
  __host__ Deal(const Layer& layer, int32_t tiles, int32_t units, int32_t blocks, int32_t team, bool clusters)
      : tiles(tiles),
        units(units),
        steps(layer.steps),
        share(units * layer.segment_steps / blocks),
        larger_shares(units * layer.segment_steps % blocks),
        team(team),
        clusters(clusters),
        unit_steps(layer.segment_steps),
        segments(layer.segments) {}
};

// A block's items, in order.
struct Share {
  const Deal& deal;
  int32_t first_unit, first_step;  // where it begins
  int32_t last_unit, last_step;    // where it ends
  int32_t whole, count;            // first unit of its own; items

  __device__ __forceinline__ explicit Share(const Deal& deal) : deal(deal) {
    const int32_t block = blockIdx.x / deal.team;
    const int32_t begin = block * deal.share + min(block, deal.larger_shares);
    const int32_t end = begin + deal.share + (block < deal.larger_shares);
    uint32_t rest;
    first_unit = deal.unit_steps.divide(begin, rest), first_step = rest;
    last_unit = deal.unit_steps.divide(end, rest), last_step = rest;
    whole = first_unit + (first_step > 0);
    count = (last_step > 0) + (last_unit - whole) + (first_step > 0);
  }

  __device__ __forceinline__ Item item(int32_t index) const {
    Item item = {};
    const int32_t own = index - (last_step > 0);
    const int32_t unit_steps = deal.unit_steps.divisor;
    item.end = unit_steps;
    if (own < 0) {
      item.unit = last_unit, item.end = last_step, item.hands_on = true;
    } else if (own < last_unit - whole) {
      item.unit = whole + own;
    } else {
      item.unit = first_unit, item.first = first_step, item.continues = true;
    }
    uint32_t segment;
    item.tile = deal.segments.divide(item.unit, segment) * deal.team + blockIdx.x % deal.team, item.segment = segment;
    // The last segment may be shorter.
    const int32_t there = min(unit_steps, deal.steps - item.segment * unit_steps);
    item.first = min(item.first, there), item.end = min(item.end, there);
    return item;
  }
};

// The steps of a share, one after the other.
struct Walk {
  const Share& share;
  Item item;
  int32_t index = 0, step;

  __device__ __forceinline__ explicit Walk(const Share& share)
      : share(share), item(share.item(0)), step(item.first) {
    settle();
  }
  __device__ __forceinline__ bool there() const { return index < share.count; }
  __device__ __forceinline__ void next() { ++step, settle(); }
  // Its place in k.
  __device__ __forceinline__ int32_t k() const {
    return (item.segment * int32_t(share.deal.unit_steps.divisor) + step) * kStep;
  }

 private:
  // A part of a short last segment may be empty.
  __device__ __forceinline__ void settle() {
    while (step >= item.end && ++index < share.count) item = share.item(index), step = item.first;
  }
};

}  // namespace lockstep::dense::sm90
