// Couriers: what flags and acknowledgements need where the regions of a link are in host memory.
//
// There every look of a kernel crosses the bus, and looks at one line take turns: each waits a
// microsecond for the one before. Where all warps looked, a link came to half of the bus' speed,
// and to a tenth with many blocks (two H200). So workers look at, and write to, a mirror in their
// own GPU's memory, and the warps of one block for each message carry what is new to and from the
// regions, many at a time. Only records are stored to and loaded from the regions directly.
#pragma once

#include "link_block_gpu.hpp"

namespace uzip::gpu {

constexpr int kCourierRows = 4;        // words that a lane looks at before all is carried
constexpr int kCarriers = kWarps / 2;  // warps for each of two tasks

// By one thread.
UZIP_DEVICE void carry_opening(const Opening& found, Ledger* ledger) {
  Opening mirror = found;
  mirror.number = 0;
  ledger->opening = mirror;
  fence_device();
  store_relaxed_system(&ledger->opening.number, found.number);
}

UZIP_DEVICE int trailing_ones(uint32_t votes) { return votes == ~0u ? kLanes : lowest_bit(~votes); }

UZIP_DEVICE uint64_t shuffle64(uint64_t word, int from) {
  const uint32_t low = shuffle32(static_cast<uint32_t>(word), from);
  return uint64_t{shuffle32(static_cast<uint32_t>(word >> 32), from)} << 32 | low;
}

// The flags of records that workers have stored, to the peer; up to `end`, by a warp.
UZIP_DEVICE void carry_sent_flags(int index, uint64_t next, uint64_t end, int lane) {
  LinkBlock& block = LinkBlock::get();
  const Link& link = block.links[index];
  const int slots_log2 = link.here.slots_log2;
  Patience patience(block.region_watch(index));
#pragma unroll 1
  while (next < end) {
    uint64_t flags[kCourierRows];
    int n = 0;  // that are there, one after the other
#pragma unroll
    for (int i = 0; i < kCourierRows; ++i) {
      const auto place =
          RecordPlace::of(next + static_cast<uint32_t>(kLanes * i + lane), slots_log2);
      flags[i] = load_relaxed_system(link.sent_flags() + place.slot);
      const uint32_t votes = ballot32(is_of_round(flags[i], place.round));
      if (n == kLanes * i) n += trailing_ones(votes);
    }
    if (n == 0) {
      if (!block.end_look(patience, lane)) break;
      continue;
    }
    fence_system();
#pragma unroll
    for (int i = 0; i < kCourierRows; ++i) {
      const int turn = kLanes * i + lane;
      const auto place = RecordPlace::of(next + static_cast<uint32_t>(turn), slots_log2);
      if (turn < n) store_relaxed_system(link.there.flags() + place.slot, flags[i]);
    }
    next += static_cast<uint32_t>(n);
    patience.renew();
  }
  sync_lanes();
  if (lane == 0) store_release_block(&block.all_sent, 1);
}

// Acknowledgements of this rank's records, while they are sent, by a warp. No more than half of the
// ring's are left for when they are needed.
UZIP_DEVICE void carry_acknowledgements(int index, uint64_t end, int lane) {
  const LinkBlock& block = LinkBlock::get();
  const Link& link = block.links[index];
  const uint32_t slots = link.here.slots();
  uint64_t carried = link.ledger->freed;
  bool last = false;
#pragma unroll 1
  while (!last && end > carried + slots / 2) {
    last = any32(load_acquire_block(&block.all_sent) != 0);
    const uint64_t freed = shuffle64(load_relaxed_system(&link.here.head()->freed), 0);
    if (freed > end || freed < carried) {
      if (lane == 0) block.fail(LinkStatus::kDamaged);
      break;
    }
    if (freed == carried) pause_for(kHostPause);
    for (uint64_t i = carried + static_cast<uint32_t>(lane); i < freed; i += kLanes) {
      const auto place = RecordPlace::of(i, link.here.slots_log2);
      store_relaxed_system(link.ledger->acknowledgements(slots) + place.slot, place.round + 1);
    }
    carried = freed;
  }
  sync_lanes();
  if (lane == 0) link.ledger->freed = carried;
}

// A courier block's part in sending a message of some records, of which the first is `first`.
UZIP_DEVICE_CALL void carry_sent(int link, uint64_t first, uint32_t records) {
  const int warp = thread_index() / kLanes;
  const int lane = thread_index() % kLanes;
  if (warp == 0) carry_sent_flags(link, first, first + records, lane);
  if (warp == 1) carry_acknowledgements(link, first + records, lane);
}

// The records of a message that comes, on a courier's way.
struct Arrivals {
  int link;
  uint64_t next;  // to be carried
  uint64_t end;
  uint64_t told;  // acknowledgements that the peer knows of
};

// Flags that the peer has raised, each by a lane of its own: `step` records lie between a lane's.
// Whether there were any.
UZIP_DEVICE bool carry_flags(Arrivals& arrivals, uint32_t step) {
  const Link& link = LinkBlock::get().links[arrivals.link];
  if (arrivals.next >= arrivals.end) return false;
  const auto place = RecordPlace::of(arrivals.next, link.here.slots_log2);
  const uint64_t flag = load_acquire_system(link.here.flags() + place.slot);
  if (!is_of_round(flag, place.round)) return false;
  fence_device();  // whoever sees the flag sees the record
  store_relaxed_system(link.ledger->flags(link.here.slots()) + place.slot, flag);
  arrivals.next += step;
  return true;
}

// Acknowledgements of what workers have loaded, by a warp; the peer is told from time to time.
// Whether there were any.
UZIP_DEVICE bool carry_sent_acknowledgements(Arrivals& arrivals, int lane) {
  const Link& link = LinkBlock::get().links[arrivals.link];
  const uint32_t slots = link.here.slots();
  if (arrivals.next >= arrivals.end) return false;
  int n = 0;
#pragma unroll
  for (int i = 0; i < kCourierRows; ++i) {
    const uint64_t record = arrivals.next + static_cast<uint32_t>(kLanes * i + lane);
    const auto place = RecordPlace::of(record, link.here.slots_log2);
    const uint32_t found =
        load_relaxed_system(link.ledger->sent_acknowledgements(slots) + place.slot);
    const uint32_t votes = ballot32(record < arrivals.end && found == place.round + 1);
    if (n == kLanes * i) n += trailing_ones(votes);
  }
  arrivals.next += static_cast<uint32_t>(n);
  const uint64_t untold = arrivals.next - arrivals.told;
  if (untold > slots / 16 || (n != 0 && arrivals.next == arrivals.end)) {
    if (lane == 0) store_relaxed_system(&link.there.head()->freed, arrivals.next);
    arrivals.told = arrivals.next;
  }
  return n != 0;
}

// A courier block's part in receiving a message from each of some links; `arrivals` are for its
// lanes to change. Half of the warps carry flags, half acknowledgements. Every warp has one link or
// two of them; where there are fewer links than warps, several share one's flags.
UZIP_DEVICE_CALL void carry_received(const Arrivals* all, int n) {
  const LinkBlock& block = LinkBlock::get();
  const int warp = thread_index() / kLanes % kCarriers;
  const int lane = thread_index() % kLanes;
  const bool carries_flags = thread_index() / kLanes < kCarriers;
  const int shares = carries_flags && n < kCarriers ? kCarriers / n : 1;
  if (warp >= n * shares) return;
  Arrivals mine[2] = {all[warp % n], {}};
  const bool has_two = warp + kCarriers < n;
  if (has_two) mine[1] = all[warp + kCarriers];
  const auto step = static_cast<uint32_t>(kLanes * shares);
  if (carries_flags) {
    for (Arrivals& one : mine) one.next += static_cast<uint32_t>(kLanes * (warp / n) + lane);
  }
  Patience patience(block.region_watch(mine[0].link));
#pragma unroll 1
  for (;;) {
    bool any = false;
    bool left = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !has_two) break;
      if (carries_flags ? carry_flags(mine[i], step) : carry_sent_acknowledgements(mine[i], lane)) {
        any = true;
      }
      left = left || mine[i].next < mine[i].end;
    }
    if (!any32(left)) return;
    if (any32(any)) {
      patience.renew();
    } else if (!block.end_look(patience, lane)) {
      return;
    }
  }
}

}  // namespace uzip::gpu
