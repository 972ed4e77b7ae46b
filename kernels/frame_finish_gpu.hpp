// How the blocks that encode a frame end it.
//
// The one that finishes last writes the header, so that the size is in the frame and nobody waits.
// A frame whose tails had no room becomes a raw one. One block alone would take two hundred times
// as long for that as all took to find out, so blocks whose last tiles were as large as their
// values wait for the last block, and share the work if there is any.
#pragma once

#include "frame_gpu.hpp"

namespace uzip::gpu {

// Which of the blocks that work on a frame this one is.
struct Part {
  uint32_t block;
  uint32_t blocks;
};

// In shared memory.
struct FinishRoom {
  bool is_last;
  bool rewrites;
  uint32_t helpers;  // other blocks that wait, for the last one to know
  uint32_t units;    // of tails, likewise
  uint32_t piece;
};

// What a scratch says of its frame.
constexpr uint32_t kUndecided = 0;
constexpr uint32_t kComplete = 1;
constexpr uint32_t kRewrite = 2;
constexpr uint32_t kPieces = 1024;  // of a frame that is written again, to be taken one by one
// Blocks that help are on the device together with those they wait for, or nearly so.
constexpr uint64_t kMostWaiting = 10'000'000'000u;  // ns

// Whether so many bytes of tiles are hardly fewer than those of their values.
UZIP_DEVICE constexpr bool is_near_raw(uint64_t bytes, uint64_t raw_bytes) {
  return 16 * bytes >= 15 * raw_bytes;
}

template <typename Condition>
UZIP_DEVICE void wait_until(const Condition& holds) {
  const uint64_t begin = nanoseconds();
  while (!holds() && nanoseconds() - begin < kMostWaiting) pause_for(200);
  fence_device();
}

class FrameEnd {
 public:
  UZIP_DEVICE FrameEnd(EncodeScratch* scratch, FinishRoom* room) : scratch_(scratch), room_(room) {}

  // Says that this block's part is done; by one thread. `helps`: it waits for the decision.
  UZIP_DEVICE void arrive(Part part, bool helps) {
    if (helps) atomic_add(&scratch_->helpers, 1);
    fence_device();  // for what all threads of the block have written
    room_->is_last = atomic_add(&scratch_->blocks_done, 1) + 1 == part.blocks;
    room_->rewrites = false;
    if (room_->is_last) {
      fence_device();
      decide(helps);
    } else if (helps) {
      wait_until([this] { return decision() != kUndecided; });
      room_->rewrites = decision() == kRewrite;
    }
  }

  // Calls rewrite(a piece of the frame) until others have taken the rest.
  template <typename Rewrite>
  UZIP_DEVICE void rewrite(const Rewrite& rewrite) {
#pragma unroll 1
    while (true) {
      sync_block();
      if (thread_index() == 0) room_->piece = atomic_add(&scratch_->pieces, 1);
      sync_block();
      if (room_->piece >= kPieces) return;
      rewrite(Part{room_->piece, kPieces});
    }
  }

  UZIP_DEVICE void leave() {
    fence_device();
    atomic_add(&scratch_->helpers, ~0u);
  }
  UZIP_DEVICE void wait_for_helpers(bool helps) {
    if (room_->helpers == 0) return;
    const uint32_t own = helps ? 1 : 0;
    wait_until([&] { return load_relaxed_system(&scratch_->helpers) == own; });
  }

 private:
  // By the last block. What it wants to know is loaded at once: small frames wait for it.
  UZIP_DEVICE void decide(bool helps) {
    const uint32_t overflow = load_relaxed_system(&scratch_->overflow);
    const uint32_t helpers = load_relaxed_system(&scratch_->helpers);
    room_->units = load_relaxed_system(&scratch_->tail_units);
    room_->rewrites = overflow != 0;
    room_->helpers = helpers - (helps ? 1 : 0);
    if (room_->helpers == 0) return;
    store_relaxed_system(&scratch_->decision, room_->rewrites ? kRewrite : kComplete);
  }
  UZIP_DEVICE uint32_t decision() const { return load_relaxed_system(&scratch_->decision); }

  EncodeScratch* scratch_;
  FinishRoom* room_;
};

// Called by all blocks of a frame when their parts of it are done. If tails had no room, some of
// them call rewrite(piece) for each piece of the frame. The last one calls complete(whether that
// was so, bytes of the tail section), and leaves the scratch as the next call wants it. `helps`:
// this block's tiles give reason to fear that.
template <typename Complete, typename Rewrite>
UZIP_DEVICE void finish_frame(EncodeScratch* scratch, Part part, FinishRoom* room, bool helps,
                              const Complete& complete, const Rewrite& rewrite) {
  FrameEnd end(scratch, room);
  sync_block();
  if (thread_index() == 0) end.arrive(part, helps);
  sync_block();
  if (room->rewrites) end.rewrite(rewrite);
  if (!room->is_last && !helps) return;
  sync_block();
  if (!room->is_last) {
    if (thread_index() == 0) end.leave();
    return;
  }
  if (thread_index() == 0) end.wait_for_helpers(helps);
  sync_block();
  complete(room->rewrites, uint64_t{room->units} * kAlignment);
  sync_block();
  if (thread_index() == 0) *scratch = EncodeScratch{};
}

}  // namespace uzip::gpu
