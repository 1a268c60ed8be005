// How the weight is dealt to blocks: evenly, to the step, whatever the number of blocks.
//
// A unit is a tile of features and a segment of k: one chain of k16 steps. Units stand in a row and every block takes
// the same share of their steps, at least one unit's worth, so that a unit has at most two owners. The first one begins
// with its part and hands the accumulators on, exact as they are; the second one comes to it last, and finds them long
// there. So no bit knows where a block's share ends.
#pragma once

#include <cstdint>

#include "layer.cuh"

namespace lockstep::dense::sm90 {

// Steps [first, end) of a unit.
struct Item {
  int32_t unit, tile, segment;
  int32_t first, end;
  bool continues, hands_on;
};

// A block's items, in order.
struct Share {
  const int32_t unit_steps, steps, segments;
  int32_t first_unit, first_step;  // where it begins
  int32_t last_unit, last_step;    // where it ends
  int32_t whole, count;            // first unit of its own; items

  __device__ __forceinline__ Share(const Layer& layer, int32_t units)
      : unit_steps(layer.segment_steps), steps(layer.steps), segments(layer.segments) {
    const int64_t all = int64_t(units) * unit_steps;
    const int64_t begin = all * blockIdx.x / gridDim.x, end = all * (blockIdx.x + 1) / gridDim.x;
    first_unit = int32_t(begin / unit_steps), first_step = int32_t(begin - int64_t(first_unit) * unit_steps);
    last_unit = int32_t(end / unit_steps), last_step = int32_t(end - int64_t(last_unit) * unit_steps);
    whole = first_unit + (first_step > 0);
    count = (last_step > 0) + (last_unit - whole) + (first_step > 0);
  }

  __device__ __forceinline__ Item item(int32_t index) const {
    Item item = {};
    const int32_t own = index - (last_step > 0);
    item.end = unit_steps;
    if (own < 0) {
      item.unit = last_unit, item.end = last_step, item.hands_on = true;
    } else if (own < last_unit - whole) {
      item.unit = whole + own;
    } else {
      item.unit = first_unit, item.first = first_step, item.continues = true;
    }
    item.tile = item.unit / segments, item.segment = item.unit - item.tile * segments;
    // The last segment may be shorter.
    const int32_t there = min(unit_steps, steps - item.segment * unit_steps);
    item.first = min(item.first, there), item.end = min(item.end, there);
    return item;
  }
};

// All steps of a share, one after the other.
struct Walk {
  const Share& share;
  Item item;
  int32_t index = 0, step;

  __device__ __forceinline__ explicit Walk(const Share& share) : share(share), item(share.item(0)), step(item.first) {
    skip();
  }
  __device__ __forceinline__ bool there() const { return index < share.count; }
  __device__ __forceinline__ void next() { ++step, skip(); }

 private:
  __device__ __forceinline__ void skip() {
    while (step >= item.end && ++index < share.count) item = share.item(index), step = item.first;
  }
};

}  // namespace lockstep::dense::sm90
