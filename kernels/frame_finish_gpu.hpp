// How the blocks that encode a frame share its tail section, and end it.
//
// Whoever asks for room for a group learns what all groups so far have asked for. Soon after the
// first ones that tells that the frame has room for all, whatever the others take: then no block
// waits for any, and the one that asks last writes the header, so that the size is in the frame.
//
// A frame whose tails had no room becomes a raw one. One block alone would take two hundred times
// as long for that as all took to find out, so blocks that are not sure of the room when they are
// done wait until they are, or know that there is none; then they share the work.
#pragma once

#include "frame_gpu.hpp"

namespace uzip::gpu {

// Which of the blocks that work on a frame this one is.
struct Part {
  uint32_t block;
  uint32_t blocks;
};

constexpr uint32_t kNoUnit = ~0u;

// What was asked for in a frame so far, in one word, as the scratch has it.
struct Claims {
  uint64_t word;

  UZIP_DEVICE uint32_t groups() const { return static_cast<uint32_t>(word >> 32); }
  UZIP_DEVICE uint32_t units() const { return static_cast<uint32_t>(word); }
};

// The tail section of a frame as encoders fill it, in units of 16 bytes.
struct TailSection {
  EncodeScratch* scratch;
  uint32_t room;    // the least that is too much: the frame must stay smaller than a raw one
  uint32_t groups;  // of the frame: of tiles, or blocks of codec ans
  uint32_t most;    // that a group can take

  // Of a section that begins so many bytes after the frame, where a raw one would end behind.
  UZIP_DEVICE static uint32_t room_between(uint64_t begin, uint64_t raw_bytes) {
    return static_cast<uint32_t>((raw_bytes - begin + kAlignment - 1) / kAlignment);
  }
  UZIP_DEVICE static uint32_t units_of(int bytes) {
    return static_cast<uint32_t>((bytes + kAlignment - 1) / kAlignment);
  }

  // Asks for the room of a group; returns all claims, with this one as the last.
  UZIP_DEVICE Claims claim(uint32_t units) const {
    const uint64_t mine = uint64_t{1} << 32 | units;
    return {atomic_add(&scratch->claims, mine) + mine};
  }

  // Enters the place of the group that made the last claim in the directory, and returns it;
  // kNoUnit where the frame would become too large.
  UZIP_DEVICE uint32_t enter(uint8_t* entry, Claims claims, uint32_t units) const {
    const uint32_t unit = claims.units() - units;
    *reinterpret_cast<uint32_t*>(entry) = unit;
    return claims.units() < room ? unit : kNoUnit;
  }

  // Whether there is room for all groups, whatever those take that have not asked yet.
  UZIP_DEVICE bool is_sure(Claims claims) const {
    return claims.units() + (groups - claims.groups()) * most < room;
  }
  UZIP_DEVICE bool has_all(Claims claims) const { return claims.groups() == groups; }
};

// In shared memory.
struct FinishRoom {
  Claims claims;  // of all blocks, when this one asked last
  bool rewrites;
  bool is_last;  // to be done
  uint32_t piece;
};

constexpr uint32_t kPieces = 1024;  // of a frame that is written again, to be taken one by one
// Without any progress of others, which then cannot run as long as this block does, ns. They have
// to do without its help.
constexpr uint64_t kMostWaiting = 100'000;

// Blocks that wait so are on the device together with those they wait for.
constexpr uint64_t kMostMeeting = 10'000'000'000u;  // ns

template <typename Condition>
UZIP_DEVICE void wait_until(const Condition& holds) {
  const uint64_t begin = nanoseconds();
  while (!holds() && nanoseconds() - begin < kMostMeeting) pause_for(200);
}

class FrameEnd {
 public:
  UZIP_DEVICE FrameEnd(const TailSection& tails, Part part) : tails_(tails), part_(part) {}

  // Says that this block's part is done; returns whether it is the last.
  UZIP_DEVICE bool arrive() const {
    return atomic_add_modulo(&scratch()->arrivals, part_.blocks) + 1 == part_.blocks;
  }

  // By one thread of a block that cannot return before it knows more. Whether the frame is to be
  // written again, with the help of this block: that all are done is then waited for. `waits`: that
  // is not known yet.
  UZIP_DEVICE bool meet(Claims claims, bool waits, bool* is_last) const {
    fence_device();  // for what all threads of the block have written
    const bool rewrites = waits && overflows(claims);
    // Whoever has arrived is counted already.
    if (rewrites) atomic_add(&scratch()->helpers, 1);
    fence_device();
    *is_last = arrive();
    if (rewrites) {
      wait_until([&] { return load_relaxed_system(&scratch()->arrivals) == 0; });
    }
    fence_device();
    return rewrites;
  }

  // Calls rewrite(a piece of the frame) until others have taken the rest. By a block.
  template <typename Rewrite>
  UZIP_DEVICE void rewrite(FinishRoom* room, const Rewrite& rewrite) const {
#pragma unroll 1
    while (true) {
      sync_block();
      if (thread_index() == 0) room->piece = atomic_add(&scratch()->pieces, 1);
      sync_block();
      if (room->piece >= kPieces) return;
      rewrite(Part{room->piece, kPieces});
    }
  }

  // By one thread of a block that has helped; returns whether it is to complete the frame.
  UZIP_DEVICE bool leave(Claims claims) const {
    fence_device();
    if (!tails_.has_all(claims)) {
      atomic_add(&scratch()->helpers, ~0u);
      return false;
    }
    wait_until([&] { return load_relaxed_system(&scratch()->helpers) == 1; });
    fence_device();
    return true;
  }

 private:
  UZIP_DEVICE EncodeScratch* scratch() const { return tails_.scratch; }

  // Waits until it is known whether there is room for all groups.
  UZIP_DEVICE bool overflows(Claims mine) const {
    Claims seen = mine;
    uint64_t since = nanoseconds();
    while (true) {
      const Claims now{load_relaxed_system(&scratch()->claims)};
      // With fewer groups than there were, the frame is complete.
      if (now.groups() < mine.groups() || tails_.is_sure(now)) return false;
      if (tails_.has_all(now)) return true;
      if (now.groups() != seen.groups()) {
        seen = now;
        since = nanoseconds();
      } else if (nanoseconds() - since > kMostWaiting) {
        return false;
      }
      pause_for(200);
    }
  }

  const TailSection& tails_;
  Part part_;
};

// Called by all blocks of a frame when their parts of it are done, with what a block's last claim
// returned; a block without any must not be needed for the frame to be complete. If tails had no
// room, blocks call rewrite(piece) for each piece of the frame. One thread calls complete(whether
// that was so, bytes of the tail section), and leaves the scratch as the next call wants it.
// kAwaitsAll: when all blocks are done; else it may be earlier.
template <bool kAwaitsAll, typename Complete, typename Rewrite>
UZIP_DEVICE void finish_frame(const TailSection& tails, Part part, FinishRoom* room, Claims claims,
                              const Complete& complete, const Rewrite& rewrite) {
  const FrameEnd end(tails, part);
  const bool sure = claims.groups() == 0 || tails.is_sure(claims);
  if (!kAwaitsAll && sure) {
    if (thread_index() != 0) return;
    if (tails.has_all(claims)) {
      complete(false, uint64_t{claims.units()} * kAlignment);
      tails.scratch->claims = 0;
    }
    end.arrive();
    return;
  }
  sync_block();
  if (thread_index() == 0) room->rewrites = end.meet(claims, !sure, &room->is_last);
  sync_block();
  const bool rewrites = room->rewrites;
  if (rewrites) {
    end.rewrite(room, rewrite);
    sync_block();
  }
  if (thread_index() != 0) return;
  const Claims all{load_relaxed_system(&tails.scratch->claims)};
  // Without room the frame is left to those who write it again, whoever came last; they may have
  // done so already. Where nothing was claimed the frame is raw.
  const bool fits = claims.groups() == 0 || (tails.has_all(all) && tails.is_sure(all));
  if (rewrites ? end.leave(claims) : kAwaitsAll && room->is_last && fits) {
    complete(rewrites, uint64_t{all.units()} * kAlignment);
    *tails.scratch = EncodeScratch{};
  }
}

}  // namespace uzip::gpu
