// What all blocks of an exchange have in common: what they know of its links, and how one of them
// gives up.
#pragma once

#include "exchange_gpu.hpp"
#include "frame_gpu.hpp"

namespace uzip::gpu {

// In a block's shared memory, at its beginning.
struct LinkBlock {
  Link links[kMaxPeers];
  int n_links;
  uint64_t timeout;
  uint32_t* status;
  bool failed;  // before the block's work began

  UZIP_DEVICE static LinkBlock& get() { return *reinterpret_cast<LinkBlock*>(shared_memory()); }

  // By the whole block.
  UZIP_DEVICE void begin(const Exchange& exchange) {
    const int thread = thread_index();
    if (thread < exchange.n_links) links[thread] = exchange.links[thread];
    if (thread == 0) {
      n_links = exchange.n_links;
      timeout = exchange.timeout;
      status = exchange.status;
      failed = false;
    }
    sync_block();
  }

  UZIP_DEVICE Watch watch(int link) const { return {&links[link].here.head()->abort, timeout}; }

  // Reports, and ends the waiting of all who work on these links. By one thread.
  UZIP_DEVICE void fail(LinkStatus found) const {
    if (load_relaxed_system(status) == 0) {
      store_relaxed_system(status, static_cast<uint32_t>(found));
    }
    fence_system();  // whoever sees that it is to stop sees why
    for (int i = 0; i < n_links; ++i) {
      store_relaxed_system(&links[i].here.head()->abort, uint32_t{1});
      store_relaxed_system(&links[i].there.head()->abort, uint32_t{1});
    }
  }

  // By one thread.
  template <typename Ready>
  UZIP_DEVICE bool wait(int link, const Ready& ready) const {
    return wait(watch(link), ready);
  }
  template <typename Ready>
  UZIP_DEVICE bool wait(const Watch& watch, const Ready& ready) const {
    const LinkStatus found = wait_until(watch, ready);
    if (found == LinkStatus::kOk) return true;
    fail(found);
    return false;
  }
  // The same by a warp, of which one lane waits.
  template <typename Ready>
  UZIP_DEVICE bool wait(int link, int lane, const Ready& ready) const {
    uint32_t good = 1;
    if (lane == 0) good = wait(link, ready) ? 1 : 0;
    return shuffle32(good, 0) != 0;
  }

  // The same for another thread's patience, by a warp of which lane 0 looked.
  UZIP_DEVICE bool end_look(Patience& patience, int lane) const {
    uint32_t good = 1;
    if (lane == 0) {
      const LinkStatus found = patience.end_look();
      if (found != LinkStatus::kOk) fail(found);
      good = found == LinkStatus::kOk ? 1 : 0;
    }
    return shuffle32(good, 0) != 0;
  }

  // By one thread, before it relies on a link.
  UZIP_DEVICE bool is_aborted(int link) const {
    if (load_relaxed_system(watch(link).abort) == 0) return false;
    fail(LinkStatus::kAborted);
    return true;
  }

  // Called by one thread of every block that works on a message, once the block has read what it
  // needs of the progress; true in the last of them, which is to count the message. Nobody waits
  // for the answer before it is needed.
  UZIP_DEVICE static bool is_last(Progress* progress, uint32_t blocks) {
    fence_device();
    return atomic_add(&progress->blocks, 1) + 1 == blocks;
  }
};

// Blocks that must know where a message that is sent begins.
UZIP_DEVICE uint32_t blocks_of_sent(const Exchange& exchange, const Message& message) {
  return message.blocks + (exchange.in_place ? exchange.fold.blocks : 0);
}

// By one thread, when a message is done.
UZIP_DEVICE void advance(Progress* progress, uint64_t messages, uint64_t records) {
  progress->messages = messages;
  progress->records = records;
  progress->blocks = 0;
}

template <DType kDType>
constexpr int kTileChunks = float_format(kDType).tile_bytes() / kAlignment;

// Asks for a tile, or its first chunks, by a warp.
template <DType kDType>
UZIP_DEVICE void copy_tile_later(Chunk* to, const uint8_t* from, int lane,
                                 int chunks = kTileChunks<kDType>) {
  static_assert(kTileChunks<kDType> % kLanes == 0);
  const auto* mine = reinterpret_cast<const Chunk*>(from) + static_cast<uint32_t>(lane);
#pragma unroll
  for (int i = 0; i < kTileChunks<kDType>; i += kLanes) {
    if (lane + i < chunks) copy_later(to + lane + i, mine + i);
  }
}

// How the workers of a message, all warps of some blocks, take turns with its records.
struct WorkerTurns {
  uint32_t first;
  uint32_t step;

  // Where there is less to do than workers, it is spread over blocks; else a block's workers have
  // neighbouring records.
  UZIP_DEVICE static WorkerTurns of(uint32_t records, uint32_t block, uint32_t blocks, int warp,
                                    int warps) {
    const uint32_t all = blocks * static_cast<uint32_t>(warps);
    const bool few = records < all;
    const auto mine = static_cast<uint32_t>(warp);
    return {few ? mine * blocks + block : block * static_cast<uint32_t>(warps) + mine, all};
  }
};

}  // namespace uzip::gpu
