// Checks the sequences of a round and lists its work, by one block: src/work.rs in parallel, word for word.
#include "lockstep/launch.cuh"
#include "lockstep/pdl.cuh"
#include "lockstep/slots.cuh"
#include "share.cuh"

namespace lockstep::attn {

constexpr int kWorkThreads = 512, kWorkWarps = kWorkThreads / 32;

// What a sequence has to be done; without tiles its rows become zeros.
struct Task {
  int32_t slot, start, first_row, rows;
  Range tiles;
  int32_t first_item, first_piece;
};

struct WorkShared {
  Task tasks[kWorkThreads];      // of the sequences at hand: one for each thread
  int32_t bad_page[kWorkThreads];  // the first entry of the page table that names no page
  bool suspect[kWorkThreads];    // there may be a fault
  int2 ends[kWorkWarps];         // items and pieces
  Round round;
  int32_t unowned, share;
};

struct Lister {
  const ls_attn_work_params& p;
  WorkShared& shared;

  __device__ __forceinline__ int32_t row_blocks(const Task& task) const {
    return ceil_div(task.rows, p.block_positions);
  }
  __device__ __forceinline__ Range keys_of(const Task& task) const {
    return Visible{p.first_key, p.window}.of(task.start, task.rows);
  }

  // The sequences from `from` on, one for each thread, checked. Faults are recorded in their order.
  __device__ __forceinline__ Task check(int32_t from, int32_t here) {
    const int32_t thread = threadIdx.x, index = from + thread;
    const int64_t positions = int64_t(p.max_pages) * p.page_rows;
    Task task = {};
    bool suspect = false;
    if (thread < here) {
      const Sequence s = sequence_at(p.rows, index, positions, false);
      const bool owned = owns_rows(p.rows, p.rows.row_offsets[index], p.rows.row_offsets[index + 1]);
      task = {int32_t(s.slot), int32_t(s.start), int32_t(s.first), s.count, {0, 0}, 0, 0};
      if (s.live) {
        task.tiles = tiles_of(keys_of(task));
      }
      suspect = !owned || (s.slot >= 0 && !s.live);
      if (owned) atomicMax(&shared.unowned, int32_t(s.first) + s.count);
    }
    shared.tasks[thread] = task;
    shared.bad_page[thread] = INT32_MAX;
    __syncthreads();
    check_pages(here);
    __syncthreads();
    if (shared.bad_page[thread] != INT32_MAX) suspect = true, task.tiles = {0, 0};
    shared.suspect[thread] = suspect;
    if (__syncthreads_or(suspect) && thread == 0) {
      for (int32_t i = 0; i < here; ++i) {
        if (!shared.suspect[i]) continue;
        if (shared.bad_page[i] == INT32_MAX) {
          sequence_at(p.rows, from + i, positions, true);
        } else {
          const int32_t slot = shared.tasks[i].slot;
          record_fault(p.rows, FaultKind::Page, slot, p.page_table[slot * p.page_table_stride + shared.bad_page[i]]);
        }
      }
    }
    return task;
  }

  // A few warps for each sequence.
  __device__ __forceinline__ void check_pages(int32_t here) {
    const int lane = threadIdx.x % 32, warps = max(1, kWorkWarps / here);
    for (int32_t unit = threadIdx.x / 32; unit < here * warps; unit += kWorkWarps) {
      const int32_t index = unit / warps;
      const Task& task = shared.tasks[index];
      if (task.tiles.empty()) continue;
      const Range keys = keys_of(task);
      const int32_t* const pages = p.page_table + task.slot * p.page_table_stride;
      const int32_t end = ceil_div(keys.end, p.page_rows);
#pragma unroll 4  // loads do not depend on each other
      for (int32_t i = keys.first / p.page_rows + unit % warps * 32 + lane; i < end; i += warps * 32) {
        if (uint32_t(pages[i]) >= uint32_t(p.pages)) atomicMin(&shared.bad_page[index], i);
      }
    }
  }

  // Adds a sequence to the round.
  __device__ __forceinline__ void count(const Task& task) {
    Round& round = shared.round;
    if (task.tiles.empty()) return;
    const int32_t tiles = task.tiles.end - task.tiles.first;
    atomicMax(&round.longest, tiles);
    atomicAdd(&round.tiles, uint64_t(p.kv_heads) * row_blocks(task) * tiles);
    for (int i = 0; i < kShares; ++i) {
      const int32_t cuts = cuts_of(task.tiles, share_at(i), p.leaf_tiles);
      const unsigned long long items = uint64_t(p.kv_heads) * row_blocks(task) * cuts;
      atomicAdd(&round.items[i], items);
      if (cuts > 1) atomicAdd(&round.pieces[i], items);
    }
  }

  __device__ __forceinline__ int32_t cuts(const Task& task) const {
    return cuts_of(task.tiles, shared.share, p.leaf_tiles);
  }

  // The tasks' places in the list, behind `before`: items and pieces. Returns what is behind the last.
  __device__ __forceinline__ int2 place(Task& task, int2 before) {
    int2 own = {0, 0};
    if (!task.tiles.empty()) {
      const int32_t number = cuts(task);
      own.x = p.kv_heads * row_blocks(task) * number;
      own.y = number > 1 ? own.x : 0;
    } else if (task.rows > 0) {
      own.x = p.kv_heads;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int2 sum = own;  // of the lanes up to this one
    for (int distance = 1; distance < 32; distance *= 2) {
      const int items = __shfl_up_sync(0xffffffffu, sum.x, distance);
      const int pieces = __shfl_up_sync(0xffffffffu, sum.y, distance);
      if (lane >= distance) sum.x += items, sum.y += pieces;
    }
    if (lane == 31) shared.ends[warp] = sum;
    __syncthreads();
    int2 end = before;
    for (int i = 0; i < kWorkWarps; ++i) {
      if (i == warp) task.first_item = end.x + sum.x - own.x, task.first_piece = end.y + sum.y - own.y;
      end.x += shared.ends[i].x, end.y += shared.ends[i].y;
    }
    // First piece 0 where there is none.
    if (own.y == 0) task.first_piece = 0;
    shared.tasks[threadIdx.x] = task;
    __syncthreads();
    return end;
  }

  __device__ __forceinline__ void write_entry(int32_t index, const Task& task) {
    int32_t* const at = p.work + kHeadWords + int64_t(index) * kEntryWords;
    const int32_t number = task.tiles.empty() ? 0 : cuts(task);
    at[0] = task.first_piece, at[1] = number > 1 ? number : 0;
    at[2] = task.tiles.first, at[3] = task.tiles.end;
  }

  __device__ __forceinline__ void write_item(int32_t item, const int32_t (&words)[kItemWords]) {
    int32_t* const at = p.work + kHeadWords + int64_t(p.rows.sequences) * kEntryWords + int64_t(item) * kItemWords;
#pragma unroll
    for (int i = 0; i < kItemWords; ++i) at[i] = words[i];
  }
  __device__ __forceinline__ void write_zeros(int32_t item, int32_t sequence, int32_t kv_head, int32_t first_row,
                                              int32_t rows) {
    write_item(item, {sequence, kv_head, 0, 0, 0, -1, -1, 0, first_row, rows, 0, 0});
  }

  // The items of all tasks, a few warps for each.
  __device__ __forceinline__ void write_items(int32_t from, int32_t here) {
    const int lane = threadIdx.x % 32, warps = max(1, kWorkWarps / here);
    for (int32_t unit = threadIdx.x / 32; unit < here * warps; unit += kWorkWarps) {
      const int32_t index = unit / warps, sequence = from + index, first = unit % warps * 32 + lane;
      const Task& task = shared.tasks[index];
      if (task.tiles.empty()) {
        if (task.rows == 0) continue;
        for (int32_t i = first; i < p.kv_heads; i += warps * 32) {
          write_zeros(task.first_item + i, sequence, i, task.first_row, task.rows);
        }
        continue;
      }
      const int32_t blocks = row_blocks(task), number = cuts(task), items = p.kv_heads * blocks * number;
      for (int32_t i = first; i < items; i += warps * 32) {
        const int32_t kv_head = i / number / blocks, block = i / number % blocks;
        if (shared.share == LS_ATTN_SHARE_SEQUENCE) {
          write_whole(task, sequence, task.first_item + i, kv_head, blocks - 1 - block);
          continue;
        }
        const int32_t unit_tiles = tiles_of_share(shared.share, p.leaf_tiles);
        const int32_t cut = task.tiles.first / unit_tiles + i % number;
        const int32_t begin = max(cut * unit_tiles, task.tiles.first);
        const int32_t end = min((cut + 1) * unit_tiles, task.tiles.end);
        write_item(task.first_item + i, {sequence, kv_head, block, begin, end, number > 1 ? task.first_piece + i : -1,
                                         task.slot, task.start, task.first_row, task.rows, 0, 0});
      }
    }
  }

  // A row block with all keys of its own.
  __device__ __forceinline__ void write_whole(const Task& task, int32_t sequence, int32_t item, int32_t kv_head,
                                              int32_t block) {
    const int32_t before = block * p.block_positions, rows = min(p.block_positions, task.rows - before);
    const Range tiles = tiles_of(Visible{p.first_key, p.window}.of(task.start + before, rows));
    if (tiles.empty()) {
      write_zeros(item, sequence, kv_head, task.first_row + before, rows);
    } else {
      write_item(item, {sequence, kv_head, block, tiles.first, tiles.end, -1, task.slot, task.start, task.first_row,
                        task.rows, 0, 0});
    }
  }
};

__global__ void __launch_bounds__(kWorkThreads, 1) list_work(const __grid_constant__ ls_attn_work_params p) {
  __shared__ WorkShared shared;
  pdl::wait();
  pdl::launch_dependents();
  Lister lister = {p, shared};
  const int32_t thread = threadIdx.x, sequences = p.rows.sequences;
  if (thread == 0) {
    shared.round = {};
    shared.unowned = 0;
    shared.share = LS_ATTN_SHARE_SEQUENCE;
  }
  __syncthreads();
  // More sequences than threads come in turns. Between the passes a task waits in its entry of the list: whether its
  // pages are sound is found out once.
  const bool at_once = sequences <= kWorkThreads;
  Task task = {};
  for (int32_t from = 0; from < sequences; from += kWorkThreads) {
    const int32_t here = min(sequences - from, kWorkThreads);
    task = lister.check(from, here);
    if (thread < here) {
      lister.count(task);
      if (!at_once) lister.write_entry(from + thread, task);
    }
    __syncthreads();
  }
  const int32_t unowned_rows = p.rows.row_count - shared.unowned;
  if (thread == 0) {
    const int32_t rows = min(p.rows.max_rows, p.block_positions) * (kBlockRows / p.block_positions);
    const uint64_t block_rows = ceil_div(rows, 8) * 8;
    shared.share = p.share != LS_ATTN_SHARE_BY_LENGTHS
                       ? p.share
                       : share_of_round(shared.round, p.leaf_tiles, p.blocks, p.max_pieces, block_rows);
  }
  __syncthreads();
  int2 end = {0, 0};
  for (int32_t from = 0; from < sequences; from += kWorkThreads) {
    const int32_t here = min(sequences - from, kWorkThreads);
    if (!at_once) {
      task = {};
      if (thread < here) {
        const Sequence s = sequence_at(p.rows, from + thread, int64_t(p.max_pages) * p.page_rows, false);
        const Range tiles = Entry::load(p.work, from + thread).tiles;
        task = {int32_t(s.slot), int32_t(s.start), int32_t(s.first), s.count, tiles, 0, 0};
      }
    }
    end = lister.place(task, end);
    if (thread < here) lister.write_entry(from + thread, task);
    lister.write_items(from, here);
    __syncthreads();
  }
  if (unowned_rows > 0) {
    for (int32_t i = thread; i < p.kv_heads; i += kWorkThreads) {
      lister.write_zeros(end.x + i, sequences, i, shared.unowned, unowned_rows);
    }
    end.x += p.kv_heads;
  }
  if (thread < kHeadWords) p.work[thread] = thread == 0 ? end.x : thread == 1 ? end.y : thread == 2 ? shared.share : 0;
}

}  // namespace lockstep::attn

extern "C" int32_t ls_attn_work_smxx(const ls_attn_work_params* p, ls_stream_t stream) {
  using namespace lockstep::attn;
  return lockstep::launch(list_work, 1, kWorkThreads, 0, stream, p->programmatic != 0, *p);
}
