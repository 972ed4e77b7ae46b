// The receiver's part of a block: it waits for records, loads their tiles to shared memory and
// decodes them from there, to their destination or into a fold with other ranks' values.
//
// Lanes of a warp look at the flags of its next records, some of each peer at once, as a look takes
// as long as memory does; then all lanes load their tiles, one while another is decoded. As soon as
// the last of a record is there, its slot is free again. Nothing that a flag, an opening or a tile
// says is believed before it is compared with what is there.
#pragma once

#include "fold_gpu.hpp"
#include "link_block_gpu.hpp"

namespace uzip::gpu {

// Tiles of a warp that are there or on their way: two where they are small.
template <DType kDType>
constexpr int kStages = kLargeShared && float_format(kDType).itemsize <= 2 ? 2 : 1;

// What a block knows of a message that comes.
template <DType kDType>
struct Incoming {
  int link;
  uint64_t messages;  // before this one
  uint64_t sequence;  // of record 0 among all of the link
  const uint8_t* ring;
  const uint64_t* flags;
  uint32_t* acknowledgements;  // the peer's
  int slots_log2;
  bool coded;
  int menu;
  TileCode code;
  RankSymbols<kDType> symbols;
};

// Of a warp: tiles that arrive, and what decoding one needs.
template <DType kDType>
struct alignas(16) ReceiveWarpRoom {
  Stage<kDType> stages[kStages<kDType>];
  union {
    LevelRoom<kDType> levels;
    // Of a tile that is to be folded: they replace what they were decoded with.
    alignas(16) uint8_t values[float_format(kDType).tile_bytes()];
  };
};

template <DType kDType>
struct ReceiveRoom {
  LinkBlock block;
  Records records;
  uint8_t* values;  // where those of a message go
  // If what comes replaces what this rank sends: which records of that were read; else null.
  const uint64_t* reads;
  uint64_t sent;  // sequence of record 0 of that
  Incoming<kDType> incoming[kMaxPeers];
  DecodeTables tables;
  ReceiveWarpRoom<kDType> warps[kWarps];

  UZIP_DEVICE static ReceiveRoom& get() { return *reinterpret_cast<ReceiveRoom*>(shared_memory()); }
};

// The same, and for each warp as many tiles of this rank's own values.
template <DType kDType>
struct LinkFoldRoom {
  using Accumulator = typename Row<kDType>::Accumulator;
  ReceiveRoom<kDType> receive;
  LinkFold fold;
  Accumulator scale;  // of sums: the inverse of the divisor
  alignas(16) uint8_t own[kWarps][kStages<kDType>][float_format(kDType).tile_bytes()];

  UZIP_DEVICE static LinkFoldRoom& get() {
    return *reinterpret_cast<LinkFoldRoom*>(shared_memory());
  }
  // By one thread.
  UZIP_DEVICE void begin(const LinkFold& what) {
    fold = what;
    scale = 1 / static_cast<Accumulator>(what.divisor);
  }
};

// A tile in shared memory.
struct ArrivedTile {
  int peer;
  TileEntry entry;
  const uint8_t* bytes;
};

// Brings a warp the tiles of its records: of each record tile by tile, of each tile one from every
// peer. What it needs to know besides is in shared memory: registers are for the coders. If
// `kReplaces`, what comes may replace what this rank sends, and then waits until that was read.
template <DType kDType, bool kOnePeer, bool kReplaces = false>
class Fetcher {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE Fetcher(WorkerTurns turns, int n_peers)
      : step_(turns.step), n_peers_(n_peers), next_{0, turns.first, 0, 0} {}

  // Waits for the next tile, of a record, whose last it may be. False: it will not come.
  UZIP_DEVICE bool take(uint32_t record, bool is_last) {
    if (ahead_ == 0 && !fetch(true)) return false;
    if (kStages<kDType> == 2 && ahead_ == 1 && fetch(false)) {
      wait_copies<1>();  // for all but the newest
    } else {
      wait_copies<0>();
    }
    sync_lanes();
    if (is_last && lane() == 0) acknowledge(record);
    return true;
  }
  UZIP_DEVICE ArrivedTile taken() const { return {peer(), TileEntry::of(here_, 0), stage(turn_)}; }
  // Between the records of a warp.
  UZIP_DEVICE uint32_t step() const { return step_; }

  // Gives the room of the tile that was taken back.
  UZIP_DEVICE void release() {
    sync_lanes();
    if (kStages<kDType> == 2) turn_ ^= 1;
    --ahead_;
    here_ = later_;
    if (!kOnePeer && ++peer_ == n_peers_) peer_ = 0;
  }

 private:
  static constexpr int kLooks =
      kLanes / kMaxPeers;  // records of a peer that are looked for at once
  static constexpr uint32_t kLookers = 0x11111111u;  // lanes that do so for the same turn
  static_assert(kLooks == 4);
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Place {
    uint32_t turn;
    uint32_t record;
    int tile;
    int peer;
  };

  UZIP_DEVICE static int lane() { return thread_index() % kLanes; }
  UZIP_DEVICE static const Records& records() { return ReceiveRoom<kDType>::get().records; }
  UZIP_DEVICE static uint8_t* stage(int turn) {
    ReceiveWarpRoom<kDType>& mine = ReceiveRoom<kDType>::get().warps[thread_index() / kLanes];
    return reinterpret_cast<uint8_t*>(mine.stages[turn].chunks);
  }
  UZIP_DEVICE static const Incoming<kDType>& incoming(int peer) {
    return ReceiveRoom<kDType>::get().incoming[peer];
  }
  // Of the record that this one of the peer's replaces.
  UZIP_DEVICE static RecordPlace place_of_sent(uint32_t record) {
    return RecordPlace::of(ReceiveRoom<kDType>::get().sent + record, incoming(0).slots_log2);
  }
  UZIP_DEVICE static const uint64_t* reads() {
    return kReplaces ? ReceiveRoom<kDType>::get().reads : nullptr;
  }
  UZIP_DEVICE static RecordPlace place_of(uint32_t record, int peer) {
    return RecordPlace::of(incoming(peer).sequence + record, incoming(peer).slots_log2);
  }
  // Of the tile that is taken next, and of what is to be asked for.
  UZIP_DEVICE int peer() const { return kOnePeer ? 0 : peer_; }
  UZIP_DEVICE int next_peer() const { return kOnePeer ? 0 : next_.peer; }

  // Asks for the next tile; false if its record is not there yet, or will not come.
  UZIP_DEVICE bool fetch(bool patient) {
    if (next_.record >= records().all()) return false;
    // A peer's tiles follow each other, unless others' come between.
    if ((next_.tile == 0 || !kOnePeer) && !find_tile(patient)) return false;
    const TileEntry entry = TileEntry::of(entries_, 0);
    if (!is_possible(entry)) {
      if (lane() == 0) LinkBlock::get().fail(LinkStatus::kDamaged);
      next_.record = kNone;
      return false;
    }
    const int turn = ahead_ == 0 ? turn_ : turn_ ^ 1;
    copy_tile_later<kDType>(reinterpret_cast<Chunk*>(stage(turn)), bytes_, lane(), entry.units);
    commit_copies();
    (ahead_ == 0 ? here_ : later_) = static_cast<uint32_t>(entries_);
    ++ahead_;
    pass_tile(entry);
    go_on();
    return true;
  }

  // Goes on behind a tile of a record.
  UZIP_DEVICE void pass_tile(const TileEntry& entry) {
    bytes_ += entry.units * kAlignment;
    entries_ >>= kEntryBits;
  }

  // Finds where the next tile is. False: its record is not there.
  UZIP_DEVICE bool find_tile(bool patient) {
    const int looker = next_peer() * kLooks + static_cast<int>(next_.turn % kLooks);
    if (!is_known(looker) && !find_flag(looker, patient)) return false;
    const Incoming<kDType>& from = incoming(next_peer());
    bytes_ = from.ring + uint64_t{place_of(next_.record, next_peer()).slot} * kSlotBytes;
    entries_ = uint64_t{shuffle32(flag_high_, looker)} << 32 | shuffle32(flag_low_, looker);
    if constexpr (!kOnePeer) {
#pragma unroll 1
      for (int i = 0; i < next_.tile; ++i) pass_tile(TileEntry::of(entries_, 0));
    }
    return true;
  }

  UZIP_DEVICE bool is_known(int looker) const {
    const uint32_t both = 1u << looker | (reads() == nullptr ? 0 : 1u << (looker + kLooks));
    return (known_ & both) == both;
  }

  // Learns what the next record is made of. False: not there.
  UZIP_DEVICE bool find_flag(int looker, bool patient) {
    if (patient) {
      const RecordPlace place = place_of(next_.record, next_peer());
      const uint64_t* flag = incoming(next_peer()).flags + place.slot;
      const uint64_t* read = reads();
      const RecordPlace sent = place_of_sent(next_.record);
      if (!LinkBlock::get().wait(incoming(next_peer()).link, lane(), [&] {
            return is_of_round(load_acquire_system(flag), place.round) &&
                   (read == nullptr || is_read(read, sent));
          })) {
        next_.record = kNone;
        return false;
      }
    }
    look();
    return is_known(looker);
  }

  // The sender may be a round ahead: what the peer has taken, this rank need not have.
  UZIP_DEVICE static bool is_read(const uint64_t* reads, const RecordPlace& place) {
    return load_acquire_system(reads + place.slot) > place.round;
  }

  // Each lane looks at the flag of one of its peer's next records. Of a single peer, the next lanes
  // look whether what these replace was read.
  UZIP_DEVICE void look() {
    const int peer = lane() / kLooks;
    const uint32_t ahead = (static_cast<uint32_t>(lane()) - next_.turn) % kLooks;
    const uint32_t record = next_.record + ahead * step_;
    bool found = (known_ >> lane() & 1) != 0;
    if (found || record >= records().all()) {
      // Nothing to look for.
    } else if (reads() != nullptr && peer == 1) {
      found = is_read(reads(), place_of_sent(record));
    } else if (peer < (kOnePeer ? 1 : n_peers_)) {
      const RecordPlace place = place_of(record, peer);
      const uint64_t flag = load_acquire_system(incoming(peer).flags + place.slot);
      flag_low_ = static_cast<uint32_t>(flag);
      flag_high_ = static_cast<uint32_t>(flag >> 32);
      found = is_of_round(flag, place.round);
    }
    known_ = ballot32(found);
    sync_lanes();  // what one lane has been told of is there for all
  }

  // So that all of a record fits in its slot, and a tile in a stage.
  UZIP_DEVICE bool is_possible(const TileEntry& entry) const {
    if (next_.record >= records().whole) {
      const int bytes = static_cast<int>(records().remaining) * kFormat.itemsize;
      return entry.kind == TileKind::kRaw && entry.units == (bytes + kAlignment - 1) / kAlignment;
    }
    return entry.units * kAlignment <= kFormat.tile_bytes();
  }

  UZIP_DEVICE void go_on() {
    if (!kOnePeer) {
      if (++next_.peer < n_peers_) return;
      next_.peer = 0;
    }
    if (++next_.tile < records().tiles_of(next_.record)) return;
    next_.tile = 0;
    next_.record += step_;
    known_ &= ~(kLookers << next_.turn++ % kLooks);
  }

  UZIP_DEVICE void acknowledge(uint32_t record) const {
    const RecordPlace place = place_of(record, peer());
    store_relaxed_system(incoming(peer()).acknowledgements + place.slot, place.round + 1);
  }

  uint32_t step_;
  int n_peers_;
  Place next_;            // what is to be asked for
  const uint8_t* bytes_;  // where that is, unless it is the first of its record,
  uint64_t entries_;      // and what its flag says of it and those that follow
  uint32_t here_ = 0;     // entry of the tile that is taken next, and of the one after
  uint32_t later_ = 0;
  int turn_ = 0;   // stage of the tile that is taken next
  int ahead_ = 0;  // tiles that were asked for and not released
  int peer_ = 0;
  uint32_t known_ = 0;  // lanes that have found the flag they look for: of the first turn, from the
                        // next on, whose remainder by kLooks the lane's own is, of its peer
  uint32_t flag_low_ = 0;
  uint32_t flag_high_ = 0;
};

// Values that go to a warp's room over what they are decoded with: nobody may need that any more.
template <DType kDType>
struct RoomSink {
  MemorySink<kDType> memory;

  UZIP_DEVICE void put(int row, const Run<kDType>& run) {
    if (row == 0) sync_lanes();
    memory.put(row, run);
  }
};

// Hands over the values of a tile that are there as they are.
template <DType kDType, typename Sink>
UZIP_DEVICE void put_plain(const uint8_t* values, Sink& sink, int lane) {
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    const int place = value_index(lane, 8 * row) * float_format(kDType).itemsize;
    sink.put(row, Run<kDType>::load(values + place, true));
  }
}

// Whether all values of a tile are the same, of which it has one unless that is zero.
UZIP_DEVICE bool is_constant(const TileEntry& entry) {
  return entry.kind == TileKind::kConstant && entry.units <= 1;
}
template <DType kDType, typename Sink>
UZIP_DEVICE void put_constant_arrived(const ArrivedTile& tile, Sink& sink) {
  put_constant<kDType>(tile.entry.units == 0 ? nullptr : tile.bytes, sink);
}

// Decodes tiles that only code for any menu knows.
template <DType kDType, typename Sink>
UZIP_DEVICE bool decode_any_arrived(const ArrivedTile& tile, Sink& sink, int lane) {
  constexpr FloatFormat kFormat = float_format(kDType);
  ReceiveRoom<kDType>& room = ReceiveRoom<kDType>::get();
  const Incoming<kDType>& incoming = room.incoming[tile.peer];
  LevelRoom<kDType>& levels = room.warps[thread_index() / kLanes].levels;
  const int size = tile.entry.units * kAlignment;
  const auto* words = reinterpret_cast<const uint32_t*>(tile.bytes);
  switch (tile.entry.kind) {
    case TileKind::kRaw:
      if (size != kFormat.tile_bytes()) return false;
      put_plain<kDType>(tile.bytes, sink, lane);
      return true;
    case TileKind::kConstant:
      if (!is_constant(tile.entry)) return false;
      put_constant_arrived<kDType>(tile, sink);
      return true;
    case TileKind::kMasked: {
      if (!incoming.coded || size < kMaskBytes) return false;
      const Mask mask = read_mask(tile.bytes, lane);
      const auto planes = BodyPlanes<kDType>::of(incoming.code, values_of_mask(mask));
      const int begin = kMaskBytes + planes.digits;
      if (begin > size) return false;
      const SharedBody body{shared_place(tile.bytes + kMaskBytes)};
      return decode_masked(incoming.code, room.tables, incoming.symbols, planes, body, mask,
                           Tail{words, begin, size, kAlignment - 1}, levels, sink, lane);
    }
    default: {
      if (!incoming.coded || size < incoming.code.stride) return false;
      const Tail tail{words, incoming.code.stride, size, kAlignment - 1};
      return decode_dense_tile<kDType, kAnyMenu, HeadPlace::kShared>(
          incoming.code, room.tables, incoming.symbols, tile.bytes, tail, levels, sink, lane);
    }
  }
}
template <DType kDType, typename Sink>
UZIP_DEVICE_CALL bool call_decode_any(ArrivedTile tile, Sink sink) {
  return decode_any_arrived<kDType>(tile, sink, thread_index() % kLanes);
}

// Whether a tile is one of the message's menu, which is coded whole.
template <DType kDType>
UZIP_DEVICE bool is_dense(const ArrivedTile& tile) {
  return tile.entry.kind == TileKind::kCoded &&
         ReceiveRoom<kDType>::get().incoming[tile.peer].coded;
}

// Decodes a tile that is dense. False: it is malformed.
template <DType kDType, int kMenu, typename Sink>
UZIP_DEVICE bool decode_dense_arrived(const ArrivedTile& tile, Sink& sink) {
  ReceiveRoom<kDType>& room = ReceiveRoom<kDType>::get();
  const Incoming<kDType>& incoming = room.incoming[tile.peer];
  const Tail tail{reinterpret_cast<const uint32_t*>(tile.bytes), incoming.code.stride,
                  tile.entry.units * kAlignment, kAlignment - 1};
  return tail.begin <= tail.end &&
         decode_dense_tile<kDType, kMenu, HeadPlace::kShared>(
             incoming.code, room.tables, incoming.symbols, tile.bytes, tail,
             room.warps[thread_index() / kLanes].levels, sink, thread_index() % kLanes);
}

// Whether a tile is there as it is.
template <DType kDType>
UZIP_DEVICE bool is_plain(const TileEntry& entry) {
  return entry.kind == TileKind::kRaw &&
         entry.units * kAlignment == float_format(kDType).tile_bytes();
}

// Decodes a whole tile to memory. False: it is malformed.
template <DType kDType, int kMenu>
UZIP_DEVICE bool store_arrived(const ArrivedTile& tile, MemorySink<kDType> sink) {
  if (is_plain<kDType>(tile.entry) && sink.aligned) {
    copy_bytes(sink.values, tile.bytes, float_format(kDType).tile_bytes(),
               static_cast<uint64_t>(sink.lane), kLanes);
    return true;
  }
  if constexpr (kMenu != kAnyMenu) {
    if (is_dense<kDType>(tile)) return decode_dense_arrived<kDType, kMenu>(tile, sink);
  }
  return call_decode_any<kDType>(tile, sink);
}

// Copies values of which there are fewer than a tile, by a warp.
template <DType kDType>
UZIP_DEVICE void copy_values(uint8_t* to, const uint8_t* from, uint32_t n, int lane) {
  using Word = typename Value<kDType>::Word;
  for (auto i = static_cast<uint32_t>(lane); i < n; i += kLanes) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
}

// Receives this warp's records of a message to memory. A call, so that the code for a menu has the
// registers to itself.
template <DType kDType, int kMenu>
UZIP_DEVICE_CALL void receive_records(WorkerTurns turns) {
  constexpr int kTileBytes = float_format(kDType).tile_bytes();
  const ReceiveRoom<kDType>& room = ReceiveRoom<kDType>::get();
  const Records& records = room.records;
  const int lane = thread_index() % kLanes;
  Fetcher<kDType, true> fetcher(turns, 1);
#pragma unroll 1
  for (uint32_t record = turns.first; record < records.all(); record += turns.step) {
    const int tiles = records.tiles_of(record);
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      if (!fetcher.take(record, i + 1 == tiles)) return;
      const ArrivedTile tile = fetcher.taken();
      // Behind all whole tiles, where these are the remaining values.
      const uint32_t index = records.first_tile(record) + static_cast<uint32_t>(i);
      uint8_t* values = room.values + uint64_t{index} * kTileBytes;
      if (record == records.whole) {
        copy_values<kDType>(values, tile.bytes, records.remaining, lane);
      } else if (!store_arrived<kDType, kMenu>(
                     tile, {values, is_aligned(room.values, kAlignment), lane})) {
        if (lane == 0) LinkBlock::get().fail(LinkStatus::kDamaged);
        return;
      }
      fetcher.release();
    }
  }
}

// For CompiledMenus::choose().
template <DType kDType>
struct RecordReceiver {
  WorkerTurns turns;

  template <int kMenu>
  UZIP_DEVICE void run() const {
    receive_records<kDType, kMenu>(turns);
  }
};

// Whether an opening says how to decode.
template <DType kDType>
UZIP_DEVICE bool has_valid_code(const Opening& opening) {
  constexpr FloatFormat kFormat = float_format(kDType);
  uint32_t seen = 0;
  for (int rank = 0; rank < kWindow; ++rank) seen |= 1u << nibble(opening.order, rank);
  return opening.menu < kMenus && seen == 0xFFFF &&
         opening.base < static_cast<uint32_t>(kFormat.symbols()) &&
         opening.zero_planes >> kFormat.byte_planes == 0;
}

// Waits for the opening of a message and notes what it says. By one thread; false: reported.
template <DType kDType>
UZIP_DEVICE bool open_incoming(const Exchange& exchange, int link, uint64_t count,
                               Incoming<kDType>* incoming) {
  const LinkBlock& block = LinkBlock::get();
  const Link& from = block.links[link];
  const Progress before = from.ledger->received;
  incoming->messages = before.messages;
  incoming->sequence = before.records;
  if (block.is_aborted(link)) return false;
  const uint64_t number = before.messages + 1;
  const Opening* opening = &from.here.head()->openings[(number - 1) % kOpenings];
  const bool there =
      block.wait(link, [&] { return load_acquire_system(&opening->number) == number; });
  if (!there) return false;
  const Opening found = *opening;
  if (found.dtype != static_cast<uint8_t>(exchange.dtype) || found.count != count ||
      found.word != exchange.word) {
    block.fail(LinkStatus::kMismatch);
    return false;
  }
  if (found.coded != 0 && !has_valid_code<kDType>(found)) {
    block.fail(LinkStatus::kDamaged);
    return false;
  }
  const TierParameters parameters{
      found.menu, found.base, found.zero_planes, {found.order[0], found.order[1]}};
  incoming->link = link;
  incoming->ring = from.here.ring();
  incoming->flags = from.here.flags();
  incoming->acknowledgements = from.there.acknowledgements();
  incoming->slots_log2 = from.here.slots_log2;
  incoming->coded = found.coded != 0;
  incoming->menu = found.menu;
  incoming->code = TileCode::of<kDType>(parameters);
  incoming->symbols = RankSymbols<kDType>::of(parameters);
  return true;
}

// Opens the messages of some links; by the whole block. False: one is not to be received.
// `is_last`, in thread 0: the block is to close them.
template <DType kDType>
UZIP_DEVICE bool open_all(const Exchange& exchange, const int* links, int n, uint64_t count,
                          const Records& records, uint32_t blocks, bool* is_last) {
  ReceiveRoom<kDType>& room = ReceiveRoom<kDType>::get();
  const int thread = thread_index();
  room.tables.fill(thread);
  if (thread == 0) room.records = records;
  if (thread < n &&
      !open_incoming<kDType>(exchange, links[thread], count, &room.incoming[thread])) {
    room.block.failed = true;
  }
  sync_block();
  *is_last = false;
  if (thread == 0 && n > 0) {
    *is_last = LinkBlock::is_last(&room.block.links[links[0]].ledger->received, blocks);
  }
  return !room.block.failed;
}

// Counts the messages, and tells the senders. By one thread.
template <DType kDType>
UZIP_DEVICE void close_all(const int* links, int n, uint32_t records) {
  ReceiveRoom<kDType>& room = ReceiveRoom<kDType>::get();
  for (int i = 0; i < n; ++i) {
    const Link& link = room.block.links[links[i]];
    const Incoming<kDType>& before = room.incoming[i];
    advance(&link.ledger->received, before.messages + 1, before.sequence + records);
    store_relaxed_system(&link.there.head()->taken, before.messages + 1);
  }
}

// The menu of a message whose sender is the only one.
template <DType kDType>
UZIP_DEVICE int menu_of_incoming() {
  const Incoming<kDType>& incoming = ReceiveRoom<kDType>::get().incoming[0];
  return incoming.coded ? incoming.menu : kAnyMenu;
}

// A block's part in receiving a message.
template <DType kDType>
UZIP_DEVICE_CALL void receive_part(const Exchange& exchange, const Message& message) {
  const Records& records = message.records;
  const uint32_t block = block_index() - message.first_block;
  bool is_last;
  if (thread_index() == 0) ReceiveRoom<kDType>::get().values = message.values;
  if (open_all<kDType>(exchange, &message.link, 1, message.count, records, message.blocks,
                       &is_last)) {
    const auto turns =
        WorkerTurns::of(records.all(), block, message.blocks, thread_index() / kLanes, kWarps);
    RecordReceiver<kDType> receiver{turns};
    CompiledMenus::choose(menu_of_incoming<kDType>(), receiver);
  }
  if (is_last) close_all<kDType>(&message.link, 1, records.all());
}

}  // namespace uzip::gpu
