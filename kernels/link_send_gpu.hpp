// The sender's part of a block: it chooses how to code the message, codes its records, and stores
// them to the peer's memory.
//
// Tiles are coded in shared memory, one behind the other as the record has them, and stored
// together in pieces of 16 bytes, which leave the memory free at once: lines of the link that are
// written in part cost as much as whole ones. No worker makes a fence, which would wait for all it
// has stored: the last warp does, for all that the others have finished meanwhile, and raises the
// flags.
#pragma once

#include "frame_decode_gpu.hpp"
#include "link_courier_gpu.hpp"
#include "packed_encode_gpu.hpp"
#include "select_gpu.hpp"

namespace uzip::gpu {

constexpr int kSenders = kWarps - 1;  // the last warp signals
constexpr uint32_t kMailboxRecords = 4;

// Flags on their way from workers to the signalling warp.
struct Mailboxes {
  uint64_t flags[kSenders][kMailboxRecords];
  uint32_t posted[kSenders];     // how many flags a worker has put there
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
  static constexpr int kStageChunks = kTileBytes / kAlignment;

  struct Dense {
    // A tail follows its head; the tile that is being made may become larger than its values.
    alignas(kLineBytes) uint8_t coded[(kTilesTogether<kDType> - 1) * kTileBytes +
                                      max_stride<kDType>() + 4 * kTailWords<kDType>];
    Chunk stage[kStageChunks];
    OffsetRoom<kDType> offsets;
  };
  union {
    Dense dense;
    PackedRoom<kDType> packed;
  };
};

template <DType kDType>
struct SendRoom {
  LinkBlock block;
  Mailboxes mail;
  Choice choice;
  EncodeTables tables;
  union {
    SelectRoom<kDType> select;
    SendWarpRoom<kDType> warps[kSenders];
  };

  UZIP_DEVICE static SendRoom& get() { return *reinterpret_cast<SendRoom*>(shared_memory()); }
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

template <DType kDType>
UZIP_DEVICE_CALL TileEntry put_packed_tile(const uint8_t* values, bool aligned, uint8_t* to) {
  SendRoom<kDType>& room = SendRoom<kDType>::get();
  PackedRoom<kDType>& mine = room.warps[thread_index() / kLanes].packed;
  const int lane = thread_index() % kLanes;
  const PackedTile tile = encode_packed_tile<kDType, kAnyMenu>(
      TileCode::of<kDType>(room.choice.parameters), room.choice.digits, room.tables, values,
      MemoryRows<kDType>{values, aligned}, mine, lane);
  const TileEntry entry{tile.kind, tile.size / kAlignment};
  if (tile.kind == TileKind::kRaw) return put_raw_tile<kDType>(values, aligned, to, lane);
  if (tile.kind == TileKind::kConstant) {
    if (tile.size != 0) put_values<kDType>(values, 1, to, lane);
    return entry;
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
  sync_lanes();  // the room may be used again
  return entry;
}

template <DType kDType>
class Sender {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE Sender(const Message& message, uint64_t sequence, WorkerTurns turns)
      : values_(message.values),
        aligned_(is_aligned(message.values, kAlignment)),
        link_(message.link),
        sequence_(sequence),
        records_(Records::of(message.count, kFormat.itemsize,
                             LinkBlock::get().links[message.link].through_host)),
        turns_(turns),
        lane_(thread_index() % kLanes) {}

  // Sends this warp's records. With the code for a certain menu, values must be aligned.
  template <int kMenu>
  UZIP_DEVICE void run() {
    TileCode code{};
    DigitTable digits{};
    if constexpr (kMenu >= 0) {
      const Choice& choice = SendRoom<kDType>::get().choice;
      code = TileCode::of<kDType>(choice.parameters);
      digits = choice.digits;
    }
    const Link& link = LinkBlock::get().links[link_];
    uint32_t turn = 0;
    uint32_t seen = acknowledged(link, turns_.first);
    if (turns_.first < records_.all()) ask_for_tile<kMenu>(records_.first_tile(turns_.first));
#pragma unroll 1
    for (uint32_t record = turns_.first; record < records_.all(); record += turns_.step, ++turn) {
      const auto place = RecordPlace::of(sequence_ + record, link.here.slots_log2);
      const uint32_t now = seen;
      seen = acknowledged(link, record + turns_.step);  // in time for the next turn
      if (!any32(now == place.round) && !wait_for_slot(link, place)) break;
      uint8_t* slot = link.there.slot(place.slot);
      uint64_t flag = flag_of_round(place.round);
      if (record < records_.whole) {
        flag |= put_tiles<kMenu>(code, digits, record, slot);
      } else {
        flag |= put_values<kDType>(values_of(records_.tiles), static_cast<int>(records_.remaining),
                                   slot, lane_)
                    .packed(0);
      }
      sync_lanes();
      if (lane_ == 0) post(turn, flag);
    }
    if (lane_ == 0) store_release_block(&SendRoom<kDType>::get().mail.left[warp()], 1);
  }

 private:
  UZIP_DEVICE static int warp() { return thread_index() / kLanes; }

  // How often the slot of a record was emptied; in lane 0, others don't know.
  UZIP_DEVICE uint32_t acknowledged(const Link& link, uint32_t record) const {
    const auto place = RecordPlace::of(sequence_ + record, link.here.slots_log2);
    if (lane_ != 0) return ~place.round;
    return load_relaxed_system(link.acknowledgements() + place.slot);
  }
  UZIP_DEVICE bool wait_for_slot(const Link& link, const RecordPlace& place) const {
    const uint32_t* acknowledged = link.acknowledgements() + place.slot;
    return LinkBlock::get().wait(link_, lane_,
                                 [&] { return load_relaxed_system(acknowledged) == place.round; });
  }
  UZIP_DEVICE const uint8_t* values_of(uint32_t tile) const {
    return values_ + uint64_t{tile} * static_cast<uint32_t>(kFormat.tile_bytes());
  }

  UZIP_DEVICE typename SendWarpRoom<kDType>::Dense& room() const {
    return SendRoom<kDType>::get().warps[warp()].dense;
  }

  // Asks for the values of a tile that is next: to the warp's stage if it is coded from there.
  template <int kMenu>
  UZIP_DEVICE void ask_for_tile(uint32_t tile) const {
    if (tile >= records_.tiles) return;
    const uint8_t* values = values_of(tile);
    if constexpr (kMenu >= 0) {
      copy_chunks_later(room().stage, values, SendWarpRoom<kDType>::kStageChunks, lane_);
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
    auto& mine = room();
    const EncodeTables& tables = SendRoom<kDType>::get().tables;
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
  UZIP_DEVICE TileEntry put_tile(const uint8_t* values, uint32_t next, uint8_t* to) const {
    ask_for_tile<kMenu>(next);
    if constexpr (kMenu == kRawMenu) {
      return put_raw_tile<kDType>(values, aligned_, to, lane_);
    } else {
      return put_packed_tile<kDType>(values, aligned_, to);
    }
  }

  // Returns the entries of a record's tiles.
  template <int kMenu>
  UZIP_DEVICE uint64_t put_tiles(const TileCode& code, const DigitTable& digits, uint32_t record,
                                 uint8_t* slot) {
    const uint32_t first = records_.first_tile(record);
    const int tiles = records_.tiles_of(record);
    const bool apart = LinkBlock::get().links[link_].through_host;
    uint64_t entries = 0;
    int together = 0;  // bytes in the room
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      const uint32_t tile = first + static_cast<uint32_t>(i);
      const uint8_t* values = values_of(tile);
      const uint32_t next = i + 1 < tiles ? tile + 1 : records_.first_tile(record + turns_.step);
      TileEntry entry;
      if constexpr (kMenu == kRawMenu || kMenu == kPackedMenu) {
        entry = put_tile<kMenu>(values, next, slot);
        slot += tile_room<kDType>(apart, entry.units * kAlignment);
      } else {
        uint8_t* place = room().coded + together;
        if constexpr (kMenu == kAnyMenu) {
          ask_for_tile<kMenu>(next);
          entry = code_any_tile<kDType>(values, aligned_, place);
        } else {
          entry = code_tile<kMenu>(code, digits, values, next, place);
        }
        together += entry.units * kAlignment;
        if (apart || i + 1 == tiles || (i + 1) % kTilesTogether<kDType> == 0) {
          sync_lanes();
          store_chunks(slot, room().coded, together / kAlignment, lane_);
          slot += tile_room<kDType>(apart, together);
          together = 0;
        }
      }
      entries |= entry.packed(i);
    }
    return entries;
  }

  // Hands the flag of a record, all of whose bytes are stored, to the signalling warp.
  UZIP_DEVICE void post(uint32_t turn, uint64_t flag) const {
    Mailboxes& mail = SendRoom<kDType>::get().mail;
    while (turn - load_acquire_block(&mail.published[warp()]) >= kMailboxRecords) pause();
    store_relaxed_block(&mail.flags[warp()][turn % kMailboxRecords], flag);
    store_release_block(&mail.posted[warp()], turn + 1);
  }

  const uint8_t* values_;
  bool aligned_;
  int link_;
  uint64_t sequence_;  // of record 0 among all of the link
  Records records_;
  WorkerTurns turns_;
  int lane_;
};

// What the last warp of a block does: a lane for each worker raises the flags of its records.
UZIP_DEVICE void raise_flags(Mailboxes& mail, const Link& link, uint64_t sequence,
                             const WorkerTurns& turns, int lane) {
  const bool has_worker = lane < kSenders;
  const int worker = has_worker ? lane : 0;
  uint32_t published = 0;
#pragma unroll 1
  for (;;) {
    const bool left = !has_worker || load_acquire_block(&mail.left[worker]) != 0;
    const uint32_t posted = has_worker ? load_acquire_block(&mail.posted[worker]) : 0;
    if (any32(posted != published)) {
      if (link.through_host) {
        fence_device();
      } else {
        fence_system();
      }
      for (; published != posted; ++published) {
        const uint64_t record = sequence + turns.first + uint64_t{published} * turns.step;
        store_relaxed_system(link.sent_flags() + RecordPlace::of(record, link.here.slots_log2).slot,
                             load_relaxed_block(&mail.flags[worker][published % kMailboxRecords]));
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
                              const Choice& choice, uint64_t messages) {
  const LinkBlock& block = LinkBlock::get();
  const Link& link = block.links[message.link];
  const uint64_t* taken = &link.here.head()->taken;
  // Not before the one whose place it takes was read.
  const bool free = block.wait(block.region_watch(message.link),
                               [&] { return messages - load_acquire_system(taken) < kOpenings; });
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

// A block's part in sending a message.
template <DType kDType>
UZIP_DEVICE_CALL void send_part(const Exchange& exchange, const Message& message) {
  SendRoom<kDType>& room = SendRoom<kDType>::get();
  Progress* progress = &room.block.links[message.link].ledger->sent;
  const Progress before = *progress;
  const int warp = thread_index() / kLanes;
  const int lane = thread_index() % kLanes;
  const uint32_t block = block_index() - message.first_block;
  const Link& link = room.block.links[message.link];
  const auto records = Records::of(message.count, float_format(kDType).itemsize, link.through_host);
  const uint32_t workers = link.workers(message.blocks);
  const bool carries = block >= workers;
  if (thread_index() == 0) room.block.failed = room.block.is_aborted(message.link, carries);
  if (carries) {
    sync_block();
    if (!room.block.failed) carry_sent(message.link, before.records, records.all());
    if (thread_index() == 0 && LinkBlock::is_last(progress, message.blocks)) {
      advance(progress, before.messages + 1, before.records + records.all());
    }
    return;
  }
  choose_for<kDType>(exchange, message);
  if (warp == kSenders) {
    bool is_last = false;
    if (lane == 0) {
      if (block == 0 && !room.block.failed) {
        open_message(exchange, message, room.choice, before.messages);
      }
      is_last = LinkBlock::is_last(progress, message.blocks);
    }
    sync_lanes();
    if (!room.block.failed) {
      const auto turns = WorkerTurns::of(records.all(), block, workers, lane, kSenders);
      raise_flags(room.mail, link, before.records, turns, lane);
    }
    if (is_last) advance(progress, before.messages + 1, before.records + records.all());
  } else if (!room.block.failed) {
    const auto turns = WorkerTurns::of(records.all(), block, workers, warp, kSenders);
    Sender<kDType> sender(message, before.records, turns);
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
