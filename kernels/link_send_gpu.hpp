// The sender's part of a block: it chooses how to code the message, codes its records, and stores
// them to the peer's memory; to that of several peers, if all are sent the same.
//
// Tiles are coded in shared memory, one behind the other as the record has them, and stored
// together in pieces of 16 bytes, which leave the memory free at once: lines of the link that are
// written in part cost as much as whole ones. No worker makes a fence, which would wait for all it
// has stored: the last warp does, for all that the others have finished meanwhile, and raises the
// flags.
#pragma once

#include "frame_decode_gpu.hpp"
#include "link_block_gpu.hpp"
#include "packed_encode_gpu.hpp"
#include "select_gpu.hpp"

namespace uzip::gpu {

constexpr int kSenders = kWarps - 1;  // the last warp signals
constexpr uint32_t kMailboxRecords = 4;

// What flags say of records, on its way from workers to the signalling warp.
struct Mailboxes {
  uint64_t entries[kSenders][kMailboxRecords];
  uint32_t posted[kSenders];     // how many records a worker has put there
  uint32_t published[kSenders];  // how many the signaller has raised
  uint32_t left[kSenders];       // whether no more will come
};

// Tiles that are stored together: a record's, where there is shared memory for them.
template <DType kDType>
constexpr int kTilesTogether = kLargeShared ? max_record_tiles(float_format(kDType).itemsize) : 1;

// Of a warp: room to code tiles, and for the next one's values on their way.
template <DType kDType>
struct alignas(kLineBytes) SendWarpRoom {
  static constexpr int kTileBytes = float_format(kDType).tile_bytes();

  struct Dense {
    // A tail follows its head; the tile that is being made may become larger than its values.
    alignas(kLineBytes) uint8_t coded[(kTilesTogether<kDType> - 1) * kTileBytes +
                                      max_stride<kDType>() + 4 * kTailWords<kDType>];
    Chunk stage[kTileChunks<kDType>];
    OffsetRoom<kDType> offsets;
  };
  union {
    Dense dense;
    PackedRoom<kDType> packed;
  };
};

// A message's way to one peer.
struct Outgoing {
  int link;
  uint64_t messages;  // before this one
  uint64_t sequence;  // of record 0 among all of the link

  UZIP_DEVICE static Outgoing of(int link) {
    const Progress& before = *progress_of(link);
    return {link, before.messages, before.records};
  }
  UZIP_DEVICE static Progress* progress_of(int link) {
    return &LinkBlock::get().links[link].ledger->sent;
  }
  UZIP_DEVICE void close(uint32_t records) const {
    advance(progress_of(link), messages + 1, sequence + records);
  }
};

template <DType kDType>
struct SendRoom {
  LinkBlock block;
  Outgoing outgoing[kMaxPeers];  // if there are several
  Mailboxes mail;
  Choice choice;
  EncodeTables tables;
  union {
    SelectRoom<kDType> select;
    SendWarpRoom<kDType> warps[kSenders];
  };

  UZIP_DEVICE static SendRoom& get() { return *reinterpret_cast<SendRoom*>(shared_memory()); }
};

// The slots of one record, of every peer that it goes to. By a warp. What differs for one peer and
// for several is compiled for both: loops over one took small messages up to 2 us.
template <bool kSeveral>
struct Slots {
  uint8_t* mine;  // in lane i, that of peer i; of one peer, in all
  int n;

  // Calls put(slot) for each.
  template <typename Put>
  UZIP_DEVICE void each(const Put& put) const {
    if constexpr (kSeveral) {
#pragma unroll 1
      for (int peer = 0; peer < n; ++peer) put(from_lane(peer));
    } else {
      put(mine);
    }
  }

 private:
  UZIP_DEVICE uint8_t* from_lane(int lane) const {
    const auto place = reinterpret_cast<uint64_t>(mine);
    return reinterpret_cast<uint8_t*>(uint64_t{shuffle32(static_cast<uint32_t>(place >> 32), lane)}
                                          << 32 |
                                      shuffle32(static_cast<uint32_t>(place), lane));
  }
};

constexpr int kFastMenu = 1;  // one level of 3 bits

// Ways to send tiles besides those of menus.
constexpr int kRawMenu = -2;     // as they are
constexpr int kPackedMenu = -3;  // with any menu, by the rules of the packed layout

// Copies chunks of 16 bytes to a slot, by a warp.
UZIP_DEVICE void store_chunks(uint8_t* to, const uint8_t* from, int n, int lane) {
  const auto* chunks = reinterpret_cast<const Chunk*>(from);
#pragma unroll 4
  for (int i = lane; i < n; i += kLanes) reinterpret_cast<Chunk*>(to)[i] = chunks[i];
}

template <DType kDType>
UZIP_DEVICE TileEntry put_raw_tile(const uint8_t* values, bool aligned, uint8_t* to, int lane) {
  constexpr FloatFormat kFormat = float_format(kDType);
  constexpr int kUnits = kFormat.tile_bytes() / kAlignment;
  if (aligned) {
    store_chunks(to, values, kUnits, lane);
    return {TileKind::kRaw, kUnits};
  }
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    const int place = value_index(lane, 8 * row) * kFormat.itemsize;
    Run<kDType>::template load<false>(values + place).store(to + place, true);
  }
  return {TileKind::kRaw, kUnits};
}

// Fewer values than a tile, raw; zeros fill the last chunk.
template <DType kDType>
UZIP_DEVICE TileEntry put_values(const uint8_t* values, int n, uint8_t* to, int lane) {
  using Word = typename Value<kDType>::Word;
  constexpr int kItems = kAlignment / static_cast<int>(sizeof(Word));
  const auto* words = reinterpret_cast<const Word*>(values);
  const int units = (n + kItems - 1) / kItems;
#pragma unroll 1
  for (int unit = lane; unit < units; unit += kLanes) {
    Word some[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = unit * kItems + i;
      some[i] = item < n ? words[item] : Word{0};
    }
    Chunk chunk;
    __builtin_memcpy(&chunk, some, sizeof chunk);
    reinterpret_cast<Chunk*>(to)[unit] = chunk;
  }
  return {TileKind::kRaw, units};
}

// What was coded of a tile at a place in the room; or its values there, if they take no more. By a
// warp.
template <DType kDType>
UZIP_DEVICE TileEntry end_tile(int stride, int tail_bytes, const uint8_t* values, bool aligned,
                               uint8_t* place, int lane) {
  const int units = (stride + tail_bytes + kAlignment - 1) / kAlignment;
  if (tail_bytes == kNotCodable || units * kAlignment >= float_format(kDType).tile_bytes()) {
    sync_lanes();  // what is there was written by others, too
    return put_raw_tile<kDType>(values, aligned, place, lane);
  }
  return {TileKind::kCoded, units};
}

// With the code for any menu. Calls, so that the kernel's registers are for the others.
template <DType kDType>
UZIP_DEVICE_CALL TileEntry code_any_tile(const uint8_t* values, bool aligned, uint8_t* place) {
  SendRoom<kDType>& room = SendRoom<kDType>::get();
  auto& mine = room.warps[thread_index() / kLanes].dense;
  const auto code = TileCode::of<kDType>(room.choice.parameters);
  const int lane = thread_index() % kLanes;
  sync_lanes();  // the room may still be in use for the tile before
  const int tail_bytes = encode_dense_tile<kDType, kAnyMenu>(
      code, room.choice.digits, room.tables, values, aligned, place, mine.offsets,
      reinterpret_cast<uint32_t*>(place + code.stride), lane);
  return end_tile<kDType>(code.stride, tail_bytes, values, aligned, place, lane);
}

// Stores what was coded of a tile in the room, or its values where that was nothing.
template <DType kDType>
UZIP_DEVICE void store_packed_tile(const PackedTile& tile, const uint8_t* values, bool aligned,
                                   const PackedRoom<kDType>& mine, uint8_t* to, int lane) {
  if (tile.kind == TileKind::kRaw) {
    put_raw_tile<kDType>(values, aligned, to, lane);
    return;
  }
  if (tile.kind == TileKind::kConstant) {
    if (tile.size != 0) put_values<kDType>(values, 1, to, lane);
    return;
  }
  if (tile.kind == TileKind::kMasked) {
    auto* halves = reinterpret_cast<uint16_t*>(to);
    halves[lane] = static_cast<uint16_t>(gather_half(tile.present));
    halves[kLanes + lane] = static_cast<uint16_t>(gather_half(tile.present >> 1));
    to += kMaskBytes;
  }
  copy_bytes(to, mine.planes, static_cast<uint64_t>(tile.body_bytes), static_cast<uint64_t>(lane),
             kLanes);
  store_tail(to + tile.body_bytes, mine.coder.tail, tile.tail_bytes, lane);
}

template <DType kDType, bool kSeveral>
UZIP_DEVICE_CALL TileEntry put_packed_tile(const uint8_t* values, bool aligned,
                                           Slots<kSeveral> slots, int offset) {
  SendRoom<kDType>& room = SendRoom<kDType>::get();
  PackedRoom<kDType>& mine = room.warps[thread_index() / kLanes].packed;
  const int lane = thread_index() % kLanes;
  const PackedTile tile = encode_packed_tile<kDType, kAnyMenu>(
      TileCode::of<kDType>(room.choice.parameters), room.choice.digits, room.tables, values,
      MemoryRows<kDType>{values, aligned}, mine, lane);
  slots.each([&](uint8_t* slot) {
    store_packed_tile<kDType>(tile, values, aligned, mine, slot + offset, lane);
  });
  sync_lanes();  // the room may be used again
  return {tile.kind, tile.kind == TileKind::kRaw ? float_format(kDType).tile_bytes() / kAlignment
                                                 : tile.size / kAlignment};
}

template <DType kDType, bool kSeveral>
class Sender {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  // `mine`: where the message goes, to this lane's peer; where there are fewer, to the first.
  UZIP_DEVICE Sender(const Message& message, const Outgoing& mine, WorkerTurns turns)
      : values_(message.values),
        aligned_(is_aligned(message.values, kAlignment)),
        link_(mine.link),
        sequence_(mine.sequence),
        records_(message.records),
        turns_(turns),
        lane_(thread_index() % kLanes),
        peers_(kSeveral ? message.together : 1) {}

  // Sends this warp's records. With the code for a certain menu, values must be aligned.
  template <int kMenu>
  UZIP_DEVICE void run() {
    TileCode code{};
    DigitTable digits{};
    if constexpr (kMenu >= 0) {
      const Choice& choice = room().choice;
      code = TileCode::of<kDType>(choice.parameters);
      digits = choice.digits;
    }
    const Link& link = LinkBlock::get().links[link_];  // of this lane's peer
    uint32_t turn = 0;
    uint32_t seen = acknowledged(link, turns_.first);
    if (turns_.first < records_.all()) ask_for_tile<kMenu>(records_.first_tile(turns_.first));
#pragma unroll 1
    for (uint32_t record = turns_.first; record < records_.all(); record += turns_.step, ++turn) {
      const auto place = RecordPlace::of(sequence_ + record, link.here.slots_log2);
      const uint32_t now = seen;
      seen = acknowledged(link, record + turns_.step);  // in time for the next turn
      if (any32(now != place.round) && !wait_for_slots(link, place)) break;
      const Slots<kSeveral> slots{link.there.slot(place.slot), peers_};
      const uint64_t entries = record < records_.whole
                                   ? put_tiles<kMenu>(code, digits, record, slots)
                                   : put_remaining(slots).packed(0);
      sync_lanes();
      if (lane_ == 0) post(turn, entries);
    }
    if (lane_ == 0) store_release_block(&room().mail.left[warp()], 1);
  }

 private:
  UZIP_DEVICE static int warp() { return thread_index() / kLanes; }

  UZIP_DEVICE static SendRoom<kDType>& room() { return SendRoom<kDType>::get(); }

  // How often the slot of a record was emptied, by this lane's peer; else as often as is needed.
  UZIP_DEVICE uint32_t acknowledged(const Link& link, uint32_t record) const {
    const auto place = RecordPlace::of(sequence_ + record, link.here.slots_log2);
    if (lane_ >= peers_) return place.round;
    return load_relaxed_system(link.here.acknowledgements() + place.slot);
  }
  UZIP_DEVICE bool wait_for_slots(const Link& link, const RecordPlace& place) const {
    const uint32_t* acknowledged = link.here.acknowledgements() + place.slot;
    bool good = true;
    if (lane_ < peers_) {
      good = LinkBlock::get().wait(
          link_, [&] { return load_relaxed_system(acknowledged) == place.round; });
    }
    return !any32(!good);
  }
  UZIP_DEVICE const uint8_t* values_of(uint32_t tile) const {
    return values_ + uint64_t{tile} * static_cast<uint32_t>(kFormat.tile_bytes());
  }

  UZIP_DEVICE static typename SendWarpRoom<kDType>::Dense& dense() {
    return room().warps[warp()].dense;
  }

  // Asks for the values of a tile that is next: to the warp's stage if it is coded from there.
  template <int kMenu>
  UZIP_DEVICE void ask_for_tile(uint32_t tile) const {
    if (tile >= records_.tiles) return;
    const uint8_t* values = values_of(tile);
    if constexpr (kMenu >= 0) {
      copy_tile_later<kDType>(dense().stage, values, lane_);
      commit_copies();
    } else {
      for (int line = lane_; line * kLineBytes < kFormat.tile_bytes(); line += kLanes) {
        prefetch(values + line * kLineBytes);
      }
    }
  }

  // Codes a tile of aligned values, and asks for the next one's as soon as the stage is free.
  template <int kMenu>
  UZIP_DEVICE TileEntry code_tile(const TileCode& code, const DigitTable& digit_table,
                                  const uint8_t* values, uint32_t next, uint8_t* place) const {
    auto& mine = dense();
    const EncodeTables& tables = room().tables;
    uint32_t digits[kQuads];
    wait_copies<0>();
    sync_lanes();  // for others' copies, and as the room may be in use for the tile before
    const bool codable = split_rows<kDType, kMenu>(
        code, digit_table, StagedRows<kDType>{mine.stage}, place, mine.offsets, lane_, digits);
    sync_lanes();
    ask_for_tile<kMenu>(next);
    int tail_bytes = kNotCodable;
    if (codable) {
      tail_bytes =
          encode_digits<kDType, kMenu>(code, tables, values, digits, place, mine.offsets,
                                       reinterpret_cast<uint32_t*>(place + code.stride), lane_);
    }
    return end_tile<kDType>(code.stride, tail_bytes, values, true, place, lane_);
  }

  // Sends a tile that is not put together with others.
  template <int kMenu>
  UZIP_DEVICE TileEntry put_tile(const uint8_t* values, uint32_t next, const Slots<kSeveral>& slots,
                                 int offset) const {
    ask_for_tile<kMenu>(next);
    if constexpr (kMenu == kPackedMenu) {
      return put_packed_tile<kDType, kSeveral>(values, aligned_, slots, offset);
    } else {
      TileEntry entry{};
      slots.each([&](uint8_t* slot) {
        entry = put_raw_tile<kDType>(values, aligned_, slot + offset, lane_);
      });
      return entry;
    }
  }
  UZIP_DEVICE TileEntry put_remaining(const Slots<kSeveral>& slots) const {
    TileEntry entry{};
    slots.each([&](uint8_t* slot) {
      entry = put_values<kDType>(values_of(records_.tiles), static_cast<int>(records_.remaining),
                                 slot, lane_);
    });
    return entry;
  }

  // Returns the entries of a record's tiles.
  template <int kMenu>
  UZIP_DEVICE uint64_t put_tiles(const TileCode& code, const DigitTable& digits, uint32_t record,
                                 const Slots<kSeveral>& slots) {
    const uint32_t first = records_.first_tile(record);
    const int tiles = records_.tiles_of(record);
    uint64_t entries = 0;
    int stored = 0;    // bytes
    int together = 0;  // of those in the room
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      const uint32_t tile = first + static_cast<uint32_t>(i);
      const uint8_t* values = values_of(tile);
      const uint32_t next = i + 1 < tiles ? tile + 1 : records_.first_tile(record + turns_.step);
      TileEntry entry;
      if constexpr (kMenu == kRawMenu || kMenu == kPackedMenu) {
        entry = put_tile<kMenu>(values, next, slots, stored);
        stored += entry.units * kAlignment;
      } else {
        uint8_t* place = dense().coded + together;
        if constexpr (kMenu == kAnyMenu) {
          ask_for_tile<kMenu>(next);
          entry = code_any_tile<kDType>(values, aligned_, place);
        } else {
          entry = code_tile<kMenu>(code, digits, values, next, place);
        }
        together += entry.units * kAlignment;
        if (i + 1 == tiles || (i + 1) % kTilesTogether<kDType> == 0) {
          sync_lanes();
          slots.each([&](uint8_t* slot) {
            store_chunks(slot + stored, dense().coded, together / kAlignment, lane_);
          });
          stored += together;
          together = 0;
        }
      }
      entries |= entry.packed(i);
    }
    return entries;
  }

  // Hands the entries of a record, all of whose bytes are stored, to the signalling warp.
  UZIP_DEVICE void post(uint32_t turn, uint64_t entries) const {
    Mailboxes& mail = room().mail;
    while (turn - load_acquire_block(&mail.published[warp()]) >= kMailboxRecords) pause();
    store_relaxed_block(&mail.entries[warp()][turn % kMailboxRecords], entries);
    store_release_block(&mail.posted[warp()], turn + 1);
  }

  const uint8_t* values_;
  bool aligned_;
  int link_;
  uint64_t sequence_;
  Records records_;
  WorkerTurns turns_;
  int lane_;
  int peers_;  // how many
};

// Raises the flag of a record for a peer. `reads`: where to note for others that its values were
// read, or null.
UZIP_DEVICE void raise_flag(const Link& link, uint64_t sequence, uint64_t* reads,
                            uint64_t entries) {
  const auto place = RecordPlace::of(sequence, link.here.slots_log2);
  // First, as the slot is used again only after the flag.
  if (reads != nullptr) store_relaxed_system(reads + place.slot, uint64_t{place.round} + 1);
  store_relaxed_system(link.there.flags() + place.slot, flag_of_round(place.round) | entries);
}

// What the last warp of a block does: a lane for each worker raises the flags of its records.
// `only`: where they go if there is one peer.
template <DType kDType, bool kSeveral>
UZIP_DEVICE void raise_flags(const Outgoing& only, int peers, bool in_place,
                             const WorkerTurns& turns, int lane) {
  SendRoom<kDType>& room = SendRoom<kDType>::get();
  Mailboxes& mail = room.mail;
  const bool has_worker = lane < kSenders;
  const int worker = has_worker ? lane : 0;
  const Link& link = room.block.links[only.link];
  uint64_t* reads = in_place ? link.ledger->reads() : nullptr;
  uint32_t published = 0;
#pragma unroll 1
  for (;;) {
    const bool left = !has_worker || load_acquire_block(&mail.left[worker]) != 0;
    const uint32_t posted = has_worker ? load_acquire_block(&mail.posted[worker]) : 0;
    if (any32(posted != published)) {
      fence_system();
      for (; published != posted; ++published) {
        const uint64_t record = turns.first + uint64_t{published} * turns.step;
        const uint64_t entries =
            load_relaxed_block(&mail.entries[worker][published % kMailboxRecords]);
        if constexpr (kSeveral) {
          for (int peer = 0; peer < peers; ++peer) {
            const Outgoing& to = room.outgoing[peer];
            raise_flag(room.block.links[to.link], to.sequence + record, nullptr, entries);
          }
        } else {
          raise_flag(link, only.sequence + record, reads, entries);
        }
      }
      if (has_worker) store_release_block(&mail.published[worker], published);
    } else if (any32(!left)) {
      pause();
    } else {
      return;
    }
  }
}

// Tells the receiver what is coming, by one thread.
UZIP_DEVICE void open_message(const Exchange& exchange, const Message& message,
                              const Choice& choice, const Outgoing& to) {
  const LinkBlock& block = LinkBlock::get();
  const Link& link = block.links[to.link];
  const uint64_t messages = to.messages;
  const uint64_t* taken = &link.here.head()->taken;
  // Not before the one whose place it takes was read.
  const bool free =
      block.wait(to.link, [&] { return messages - load_acquire_system(taken) < kOpenings; });
  if (!free) return;
  Opening* opening = &link.there.head()->openings[messages % kOpenings];
  opening->count = message.count;
  opening->word = exchange.word;
  opening->dtype = static_cast<uint8_t>(exchange.dtype);
  opening->coded = choice.raw ? 0 : 1;
  opening->menu = static_cast<uint8_t>(choice.parameters.menu);
  opening->zero_planes = static_cast<uint8_t>(choice.parameters.zero_planes);
  opening->base = choice.parameters.base;
  opening->order[0] = choice.parameters.order[0];
  opening->order[1] = choice.parameters.order[1];
  fence_system();
  store_relaxed_system(&opening->number, messages + 1);
}

// Makes the choice one of few levels, unless that takes many more bits: where coding takes longer
// than the link. By a block; `room` as the choice has left it.
template <DType kDType>
UZIP_DEVICE void hurry(const SelectRoom<kDType>& room, Choice* choice) {
  constexpr FloatFormat kFormat = float_format(kDType);
  constexpr uint32_t kMost = 8 * kFormat.itemsize * kBitCost / 14;  // of a value
  const uint32_t* left = room.left;
  const uint32_t cost = menu_cost(choice->parameters.menu, left, kFormat.symbol_bytes());
  const bool pays = menu_cost(kFastMenu, left, kFormat.symbol_bytes()) <= cost + kMost * left[0];
  sync_block();
  if (!pays) return;
  const int offset = thread_index();
  if (offset < kWindow) {
    int rank = 0;
    while (nibble(choice->parameters.order, rank) != static_cast<uint32_t>(offset)) ++rank;
    set_digits(Menu::of(kFastMenu), offset, rank, &choice->digits);
  }
  if (offset == 0) choice->parameters.menu = kFastMenu;
  sync_block();
}

// By the whole block.
template <DType kDType>
UZIP_DEVICE void choose_for(const Exchange& exchange, const Message& message) {
  SendRoom<kDType>& room = SendRoom<kDType>::get();
  const int thread = thread_index();
  if (exchange.options.raw || message.count < kTileValues) {
    if (thread == 0) {
      room.choice.raw = true;
      room.choice.packed = false;
      room.choice.parameters = {};
    }
  } else {
    const bool aligned = is_aligned(message.values, kAlignment);
    choose<kDType>(Drawn<kDType>::of(message.values, message.count, aligned), exchange.options,
                   room.select, &room.choice, [] {});
    sync_block();
    if (exchange.hurries) hurry<kDType>(room.select, &room.choice);
    room.tables.fill(Menu::of(room.choice.parameters.menu), room.choice.digits, thread);
  }
  if (thread < kSenders) {
    room.mail.posted[thread] = room.mail.published[thread] = room.mail.left[thread] = 0;
  }
  sync_block();
}

// Opens and counts the message of a block's workers, and raises their flags. By the last warp.
template <DType kDType, bool kSeveral>
UZIP_DEVICE void signal(const Exchange& exchange, const Message& message, const Outgoing& mine,
                        uint32_t block) {
  const SendRoom<kDType>& room = SendRoom<kDType>::get();
  const Records& records = message.records;
  const int lane = thread_index() % kLanes;
  const int peers = kSeveral ? message.together : 1;
  if (lane < peers && block == 0 && !room.block.failed) {
    open_message(exchange, message, room.choice, mine);
  }
  bool is_last = false;
  if (lane == 0) {
    is_last =
        LinkBlock::is_last(Outgoing::progress_of(mine.link), blocks_of_sent(exchange, message));
  }
  sync_lanes();
  if (!room.block.failed) {
    const auto turns = WorkerTurns::of(records.all(), block, message.blocks, lane, kSenders);
    raise_flags<kDType, kSeveral>(mine, peers, exchange.in_place, turns, lane);
  }
  if (kSeveral) is_last = any32(is_last);
  if (is_last && lane < peers) mine.close(records.all());
}

// A block's part in sending a message, to all peers that are sent the same.
template <DType kDType, bool kSeveral>
UZIP_DEVICE_CALL void send_part(const Exchange& exchange, const Message* messages) {
  SendRoom<kDType>& room = SendRoom<kDType>::get();
  const Message& message = messages[0];
  const int warp = thread_index() / kLanes;
  const int lane = thread_index() % kLanes;
  const uint32_t block = block_index() - message.first_block;
  const bool has_peer = lane < (kSeveral ? message.together : 1);
  const auto mine = Outgoing::of(messages[kSeveral && has_peer ? lane : 0].link);
  if (warp == 0 && has_peer) {
    if (kSeveral) room.outgoing[lane] = mine;
    if (room.block.is_aborted(mine.link)) room.block.failed = true;
  }
  choose_for<kDType>(exchange, message);
  if (warp == kSenders) {
    signal<kDType, kSeveral>(exchange, message, mine, block);
  } else if (!room.block.failed) {
    const auto turns =
        WorkerTurns::of(message.records.all(), block, message.blocks, warp, kSenders);
    Sender<kDType, kSeveral> sender(message, mine, turns);
    if (room.choice.raw) {
      sender.template run<kRawMenu>();
    } else if (room.choice.packed) {
      sender.template run<kPackedMenu>();
    } else {
      const bool aligned = is_aligned(message.values, kAlignment);
      CompiledMenus::choose(aligned ? room.choice.parameters.menu : kAnyMenu, sender);
    }
  }
}

}  // namespace uzip::gpu
