// Links: how the kernels of two GPUs exchange records through each other's memory.
//
// Each rank has, for every peer, a region in its own memory, which serves both directions. What
// comes from the peer arrives there: records in a ring of slots, a flag for each slot, and the
// openings of messages. So a rank polls its own memory only, and writes the peer's only ("push").
// What the peer needs to know of the records that it sent, their acknowledgements, comes the same
// way.
//
//   sender: waits until a slot is free, stores a record to it; a signalling warp makes a fence for
//           all records that are ready and then raises their flags
//   receiver: waits for the flag, loads the record, then writes to the sender's region that the
//           slot is free
//
// A record is up to kMaxRecordTiles tiles, each as the packed layout has them (FORMAT.md); what
// their directory entries would say is in the flag. The values behind the last whole tile are a
// record of their own, raw. Flags and acknowledgements tell how often a slot was used, so nothing
// is ever reset: counters in the region go on from launch to launch, which can be replayed.
//
// Who waits longer than a time limit, or finds what may not be, says so in the status word and
// raises the abort word of all its links, here and with the peers. Whoever waits looks at that, so
// kernels at both ends come to an end; the links are of no use from then on.
#pragma once

#include "format.hpp"

namespace uzip::gpu {

constexpr int kMaxPeers = 8;
constexpr int kMaxRecordTiles = 4;
constexpr int kSlotBytes = 8192;  // a tile of the largest type, or kMaxRecordTiles of others
constexpr uint32_t kOpenings = 32;
constexpr int kMinSlotsLog2 = 1;
constexpr int kMaxSlotsLog2 = 13;  // with half of it, messages of 16 to 64 MB waited for slots
constexpr int kLineBytes = 128;    // what GPUs move at a time
constexpr int kPageBytes = 4096;   // a ring's alignment

// Of whole tiles that a slot holds.
constexpr UZIP_HD int max_record_tiles(int itemsize) {
  const int most = kSlotBytes / (kTileValues * itemsize);
  return most < kMaxRecordTiles ? most : kMaxRecordTiles;
}

// What the status word says; it stays as the first one found left it.
enum class LinkStatus : uint32_t {
  kOk = 0,
  kTimeout = 1,
  kAborted = 2,   // by the other end, or by whoever called for it
  kMismatch = 3,  // another data type, count or word than expected
  kDamaged = 4,   // a record that no sender makes
};

// What comes before the records of a message.
struct alignas(kLineBytes) Opening {
  uint64_t number;  // of the message, from 1; written last
  uint64_t count;   // values
  uint32_t word;    // the caller's
  uint8_t dtype;
  uint8_t coded;  // whether the fields below say how
  uint8_t menu;
  uint8_t zero_planes;
  uint32_t base;
  uint32_t order[2];
};

// What one end has done in one direction.
struct alignas(kLineBytes) Progress {
  uint64_t messages;
  uint64_t records;
  uint32_t blocks;  // that have begun with the message under way
};

// What a region begins with, all zero at first. The peer writes it.
struct RegionHead {
  alignas(kLineBytes) uint32_t abort;
  alignas(kLineBytes) uint64_t taken;  // messages of this rank that the peer has received
  Opening openings[kOpenings];
};

// A region's parts, one after the other. Ranks agree on the number of slots.
struct Region {
  uint8_t* memory;
  int slots_log2;

  UZIP_HD uint32_t slots() const { return 1u << slots_log2; }
  UZIP_HD RegionHead* head() const { return reinterpret_cast<RegionHead*>(memory); }
  // Of records that come; by slot.
  UZIP_HD uint64_t* flags() const {
    return reinterpret_cast<uint64_t*>(memory + sizeof(RegionHead));
  }
  // Of records that this rank has sent.
  UZIP_HD uint32_t* acknowledgements() const {
    return reinterpret_cast<uint32_t*>(flags() + slots());
  }
  UZIP_HD uint8_t* ring() const { return memory + ring_offset(slots_log2); }
  UZIP_HD uint8_t* slot(uint32_t index) const { return ring() + uint64_t{index} * kSlotBytes; }

  UZIP_HD static uint64_t ring_offset(int slots_log2) {
    const uint64_t words = uint64_t{12} << slots_log2;
    return (sizeof(RegionHead) + words + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
  UZIP_HD static uint64_t bytes(int slots_log2) {
    return ring_offset(slots_log2) + (uint64_t{kSlotBytes} << slots_log2);
  }
};

// What a rank keeps of a link in memory that nobody else reads; all zero at first.
struct Ledger {
  Progress sent;
  Progress received;

  // By slot, how often it was used for records whose values were read: for who replaces them.
  UZIP_HD uint64_t* reads() { return reinterpret_cast<uint64_t*>(this + 1); }

  UZIP_HD static uint64_t bytes(int slots_log2) {
    return sizeof(Ledger) + (sizeof(uint64_t) << slots_log2);
  }
};

// A pair of regions: this rank's for the peer, and the peer's for this rank.
struct Link {
  Region here;
  Region there;
  Ledger* ledger;
};

// A record's place: which slot, and how often that was used before.
struct RecordPlace {
  uint32_t slot;
  uint32_t round;

  UZIP_HD static RecordPlace of(uint64_t sequence, int slots_log2) {
    return {static_cast<uint32_t>(sequence) & ((1u << slots_log2) - 1),
            static_cast<uint32_t>(sequence >> slots_log2)};
  }
};

// A flag: a directory entry for each tile, and the round, so that the flag of a slot never repeats
// itself. An entry is the tile's kind and its size in units of 16 bytes.
constexpr int kEntryBits = 12;
constexpr int kUnitBits = 10;
constexpr int kRoundShift = kEntryBits * kMaxRecordTiles;

struct TileEntry {
  TileKind kind;
  int units;

  UZIP_HD uint64_t packed(int tile) const {
    const auto entry = static_cast<uint64_t>(kind) << kUnitBits | static_cast<uint64_t>(units);
    return entry << (kEntryBits * tile);
  }
  UZIP_HD static TileEntry of(uint64_t flag, int tile) {
    const auto entry = static_cast<int>(flag >> (kEntryBits * tile)) & ((1 << kEntryBits) - 1);
    return {static_cast<TileKind>(entry >> kUnitBits), entry & ((1 << kUnitBits) - 1)};
  }
};
static_assert(kSlotBytes / kAlignment < 1 << kUnitBits);

UZIP_HD uint64_t flag_of_round(uint32_t round) {
  return static_cast<uint64_t>((round + 1) & 0xFFFF) << kRoundShift;
}
UZIP_HD bool is_of_round(uint64_t flag, uint32_t round) {
  return flag >> kRoundShift == ((round + 1) & 0xFFFF);
}

// How a message is cut into records, alike at both ends. One that is not small has records of
// several tiles; before these some of one, so that there is soon something to receive, and at its
// end, so that all who work on it have done so at about the same time.
struct Records {
  uint32_t tiles;
  uint32_t first;      // records of one tile before
  int record_tiles;    // of those of several
  uint32_t large;      // records of several tiles
  uint32_t whole;      // records of whole tiles
  uint32_t remaining;  // values behind them

  static Records of(uint64_t count, int itemsize) {
    Records records{};
    records.tiles = static_cast<uint32_t>(count / kTileValues);
    records.remaining = static_cast<uint32_t>(count % kTileValues);
    const int most = max_record_tiles(itemsize);
    const uint64_t bytes = count * static_cast<uint64_t>(itemsize);
    const int wanted = bytes < kFewBytes ? 1 : bytes < kManyBytes ? 2 : kMaxRecordTiles;
    records.record_tiles = wanted < most ? wanted : most;
    const auto several = static_cast<uint32_t>(records.record_tiles);
    const uint32_t single = kFirstTiles + kLastTiles;
    if (several > 1 && records.tiles > single) {
      records.first = kFirstTiles;
      records.large = (records.tiles - single) / several;
    }
    records.whole = records.tiles - records.large * (several - 1);
    return records;
  }
  UZIP_HD uint32_t all() const { return whole + (remaining != 0 ? 1 : 0); }
  UZIP_HD uint32_t first_tile(uint32_t record) const {
    const uint32_t past = record > first ? record - first : 0;
    const uint32_t before = past < large ? past : large;
    return record + before * static_cast<uint32_t>(record_tiles - 1);
  }
  // Those of the record with the remaining values: one, which is not whole.
  UZIP_HD int tiles_of(uint32_t record) const { return record - first < large ? record_tiles : 1; }

  static constexpr uint64_t kFewBytes = uint64_t{6} << 20;
  static constexpr uint64_t kManyBytes = uint64_t{512} << 20;
  static constexpr uint32_t kFirstTiles = 1024;  // one for each of the warps of a large GPU
  static constexpr uint32_t kLastTiles = 1024;
};

#if UZIP_GPU_SOURCE
// What whoever waits looks at, too.
constexpr uint32_t kPause = 20;  // ns between two looks

struct Watch {
  const uint32_t* abort;
  uint64_t timeout;  // ns
};

// Of a thread that looks for something again and again.
class Patience {
 public:
  UZIP_DEVICE explicit Patience(const Watch& watch) : watch_(watch) {}

  // To be called after each look in vain: pauses; now and then it sees whether there is trouble,
  // which takes as long as memory does.
  UZIP_DEVICE LinkStatus end_look() {
    constexpr uint32_t kLooks = 32;
    pause_for(kPause);
    if (++looks_ % kLooks != 0) return LinkStatus::kOk;
    const uint64_t now = nanoseconds();
    if (begin_ == 0) begin_ = now;
    if (load_relaxed_system(watch_.abort) != 0) return LinkStatus::kAborted;
    return now - begin_ > watch_.timeout ? LinkStatus::kTimeout : LinkStatus::kOk;
  }
  UZIP_DEVICE void renew() {
    looks_ = 0;
    begin_ = 0;
  }

 private:
  Watch watch_;
  uint32_t looks_ = 0;
  uint64_t begin_ = 0;
};

// Waits until ready() is true.
template <typename Ready>
UZIP_DEVICE LinkStatus wait_until(const Watch& watch, const Ready& ready) {
  Patience patience(watch);
#pragma unroll 1
  while (!ready()) {
    const LinkStatus status = patience.end_look();
    if (status != LinkStatus::kOk) return status;
  }
  return LinkStatus::kOk;
}
#endif

}  // namespace uzip::gpu
