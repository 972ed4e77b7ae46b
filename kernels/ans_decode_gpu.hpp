// One warp decodes one block of an ans frame: the lanes of the warp are those of the format.
//
// A step takes one look-up in a table of all 4096 slots, and the lanes that need a word take
// neighbouring ones: a ballot tells each how many are before it. A block's bytes pass through a
// ring in shared memory, and so do the heads of its tiles, both asked for so early that no step
// waits for memory. The loop checks nothing, as it can only read from the ring, and what it took is
// compared with what there was at the end.
#pragma once

#include "ans_frame_gpu.hpp"
#include "frame_decode_gpu.hpp"

namespace uzip::gpu {

// Slots that are filled in turn, and the first one once more, so that a stretch of 8 steps, which
// takes as many words as a slot has at most, may read on past the end.
struct alignas(16) ByteRing {
  static constexpr int kSlots = 4;
  static constexpr int kSlotBytes = kLanes * kAlignment;
  static constexpr int kBytes = kSlots * kSlotBytes;
  uint8_t bytes[kBytes + kSlotBytes];
};

// Whether heads go through shared memory: those of the largest type have no room there.
template <DType kDType>
constexpr bool kFetchesHeads =
    AnsFormat<kDType>::kPairs && float_format(kDType).itemsize <= (kLargeShared ? 4 : 2);

template <DType kDType>
struct AnsWarpRoom {
  static constexpr FloatFormat kFormat = float_format(kDType);
  static constexpr int kHeadBytes =
      kTileValues / 8 * (8 * kFormat.byte_planes + kFormat.sub_bits[0] + kFormat.sub_bits[1]);
  ByteRing ring;
  // Of a tile and the next one, in turn.
  alignas(16) uint8_t heads[2][kFetchesHeads<kDType> ? kHeadBytes : kAlignment];
};

// The slots of a code.
struct CodeSlots {
  uint16_t n;
  uint16_t first;
};

template <DType kDType>
struct AnsDecodeRoom {
  uint32_t table[ans::kTableSum];
  union {
    AnsWarpRoom<kDType> warps[kWarps];
    struct {
      uint32_t sums[kWarps];
      CodeSlots codes[ans::kCodes];
    };
  };

  UZIP_DEVICE static AnsDecodeRoom& get() {
    return *reinterpret_cast<AnsDecodeRoom*>(shared_memory());
  }
};

// An entry has the frequency in its top 12 bits. Pair mode: the digits in bits 0..3 and 16..19, so
// that a byte permutation gathers those of two codes; 12 bits from bit 4 on: the slot's place among
// those of the code. Byte mode: the code in bits 0..7, the place from bit 8 on.
template <bool kPairs>
UZIP_DEVICE uint32_t slot_entry(uint32_t code, uint32_t frequency, uint32_t place) {
  if constexpr (kPairs) return frequency << 20 | (code & 0xF0) << 12 | place << 4 | (code & 15);
  return frequency << 20 | place << 8 | code;
}

// The largest word of the threads below this one, by a whole block that may not be using `sums`.
UZIP_DEVICE uint32_t largest_below(uint32_t word, uint32_t sums[kWarps]) {
  const int lane = thread_index() % kLanes;
#pragma unroll
  for (int by = 1; by < kLanes; by *= 2) {
    const uint32_t below = shuffle_up32(word, by);
    if (lane >= by && below > word) word = below;
  }
  if (lane == kLanes - 1) sums[thread_index() / kLanes] = word;
  const uint32_t below = shuffle_up32(word, 1);
  uint32_t largest = lane == 0 ? 0 : below;
  sync_block();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp < thread_index() / kLanes && sums[warp] > largest) largest = sums[warp];
  }
  return largest;
}

// Fills the table from the frequencies of a frame, by a whole block. False: these do not sum to
// 4096, or one is 4096.
template <DType kDType>
UZIP_DEVICE bool fill_slots(const uint16_t* frequencies, AnsDecodeRoom<kDType>& room) {
  const int thread = thread_index();
  const auto code = static_cast<uint32_t>(thread);
  const uint32_t frequency = frequencies[thread];
  uint32_t total;
  const uint32_t cumulated = sum_below(frequency, room.sums, &total);
  room.codes[thread] = {static_cast<uint16_t>(frequency), static_cast<uint16_t>(cumulated)};
  // A code is noted at its first slot; each thread then serves so many slots.
  constexpr int kSlots = ans::kTableSum / kThreads;
  auto* chunks = reinterpret_cast<Chunk*>(room.table) + thread * kSlots / 4;
#pragma unroll
  for (int i = 0; i < kSlots / 4; ++i) chunks[i] = {{0, 0, 0, 0}};
  if (thread == 0) room.sums[0] = 0;
  sync_block();
  if (frequency > ans::kMaxFrequency) room.sums[0] = 1;
  sync_block();
  if (total != ans::kTableSum || room.sums[0] != 0) return false;
  if (frequency != 0) room.table[cumulated] = code;
  sync_block();
  Chunk slots[kSlots / 4];
  uint32_t owner = 0;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    if (i % 4 == 0) slots[i / 4] = chunks[i / 4];
    const uint32_t noted = slots[i / 4].words[i % 4];
    if (noted > owner) owner = noted;
  }
  owner = largest_below(owner, room.sums);
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    uint32_t& slot = slots[i / 4].words[i % 4];
    if (slot > owner) owner = slot;
    const CodeSlots of_owner = room.codes[owner];
    const auto place = static_cast<uint32_t>(thread * kSlots + i) - of_owner.first;
    slot = slot_entry<AnsFormat<kDType>::kPairs>(owner, of_owner.n, place);
    if (i % 4 == 3) chunks[i / 4] = slots[i / 4];
  }
  sync_block();
  return true;
}

// The entry of a state's slot.
UZIP_DEVICE uint32_t look_up(SharedPlace table, uint32_t state) {
#if UZIP_PTX
  uint32_t entry;
  asm volatile(
      "{ .reg .b32 at;\n"
      "and.b32 at, %1, 0xFFF;\n"
      "mad.lo.u32 at, at, 4, %2;\n"
      "ld.shared.u32 %0, [at]; }"
      : "=r"(entry)
      : "r"(state), "r"(table));
  return entry;
#else
  return reinterpret_cast<const uint32_t*>(table)[state % ans::kTableSum];
#endif
}

// `state`, with a word below it in lanes that need one; `place` goes on behind the words taken. By
// all lanes; `below` has a bit for each lane below.
UZIP_DEVICE uint32_t refill(uint32_t state, uint32_t below, SharedPlace* place) {
#if UZIP_PTX
  // Compilers compare twice. Lanes that need no word load one as well: a load for some would keep
  // its register for all of a loop.
  asm volatile(
      "{ .reg .pred needs; .reg .b32 all, n; .reg .b16 word, low, high;\n"
      "setp.lt.u32 needs, %0, 0x10000;\n"
      "vote.sync.ballot.b32 all, needs, 0xFFFFFFFF;\n"
      "and.b32 n, all, %2;\n"
      "popc.b32 n, n;\n"
      "mad.lo.u32 n, n, 2, %1;\n"
      "ld.shared.u16 word, [n];\n"
      "mov.b32 {low, high}, %0;\n"
      "@needs mov.b32 %0, {word, low};\n"
      "popc.b32 n, all;\n"
      "mad.lo.u32 %1, n, 2, %1; }"
      : "+r"(state), "+r"(*place)
      : "r"(below)
      : "memory");
  return state;
#else
  const bool needs = state < ans::kStateMin;
  const uint32_t all = ballot32(needs);
  const auto* words = reinterpret_cast<const uint16_t*>(*place);
  *place += 2 * popcount(all);
  return needs ? permute(words[popcount(all & below)], state, 0x5410) : state;
#endif
}

// A block's bytes but its raw symbols, as its warp takes them.
class BlockBytes {
 public:
  // `bytes`: aligned to 16; of `n` of them whole chunks may be read. Asks for the first.
  UZIP_DEVICE BlockBytes(ByteRing& ring, const uint8_t* bytes, uint64_t n, int lane)
      : ring_(ring), bytes_(bytes), chunks_(static_cast<uint32_t>(n / kAlignment)), lane_(lane) {
#pragma unroll
    for (uint32_t slot = 0; slot < ByteRing::kSlots; ++slot) fetch(slot);
  }

  UZIP_DEVICE const BlockHeader& header() const {
    return *reinterpret_cast<const BlockHeader*>(ring_.bytes);
  }
  UZIP_DEVICE uint32_t state() const {
    return reinterpret_cast<const uint32_t*>(ring_.bytes + sizeof(BlockHeader))[lane_];
  }
  // Nothing is read behind so many bytes from now on.
  UZIP_DEVICE void end_at(uint64_t n) {
    const uint64_t chunks = (n + kAlignment - 1) / kAlignment;
    if (chunks < chunks_) chunks_ = static_cast<uint32_t>(chunks);
  }

  UZIP_DEVICE uint32_t lanes_below() const { return (1u << lane_) - 1; }

  // Where a stretch of steps begins to read, and where it has stopped.
  UZIP_DEVICE SharedPlace begin() const {
    return shared_place(ring_.bytes) + place_ % ByteRing::kBytes;
  }
  UZIP_DEVICE void end(SharedPlace stop) { place_ += static_cast<uint32_t>(stop - begin()); }

  // Between turns of two stretches: asks for what is to be in the slots that were left, and waits
  // for what the next turn may read. The caller may have asked for something, which is there after
  // the turn after.
  UZIP_DEVICE void turn() {
    const uint32_t slot = place_ / ByteRing::kSlotBytes;
    if (slot != slot_) fetch(slot_ + ByteRing::kSlots);
    const bool left_two = slot - slot_ > 1;
    if (left_two) fetch(slot_ + 1 + ByteRing::kSlots);
    slot_ = slot;
    commit_copies();
    if (left_two) {
      wait_copies<0>();
    } else {
      wait_copies<1>();
    }
    sync_lanes();
  }

  // Bytes so far.
  UZIP_DEVICE uint32_t taken() const { return place_; }

 private:
  UZIP_DEVICE void fetch(uint32_t slot) {
    const uint32_t chunk = slot * kLanes + static_cast<uint32_t>(lane_);
    if (chunk >= chunks_) return;
    const uint8_t* from = bytes_ + uint64_t{chunk} * kAlignment;
    uint8_t* to = ring_.bytes + slot % ByteRing::kSlots * ByteRing::kSlotBytes + lane_ * kAlignment;
    copy_later(to, from);
    if (slot % ByteRing::kSlots == 0) copy_later(to + ByteRing::kBytes, from);
  }

  ByteRing& ring_;
  const uint8_t* bytes_;
  uint32_t chunks_;
  int lane_;
  uint32_t place_ = sizeof(BlockHeader) + kStateBytes;
  uint32_t slot_ = 0;  // of the place when the turn began
};

// Decodes a lane's next 8 codes, as quads of digits or of values.
template <DType kDType>
UZIP_DEVICE void decode_stretch(BlockBytes& words, uint32_t* state,
                                uint32_t quads[AnsFormat<kDType>::kStretchQuads]) {
  constexpr bool kPairs = AnsFormat<kDType>::kPairs;
  uint32_t x = *state;
  uint32_t entries[AnsFormat<kDType>::kStretch];
  const SharedPlace table = shared_place(AnsDecodeRoom<kDType>::get().table);
  const uint32_t below = words.lanes_below();
  SharedPlace place = words.begin();
#pragma unroll
  for (int i = 0; i < AnsFormat<kDType>::kStretch; ++i) {
    const uint32_t entry = look_up(table, x);
    x = (entry >> 20) * (x >> ans::kTableLog2) + (entry >> (kPairs ? 4 : 8) & 0xFFF);
    x = refill(x, below, &place);
    entries[i] = entry;
  }
  *state = x;
#pragma unroll
  for (int q = 0; q < AnsFormat<kDType>::kStretchQuads; ++q) {
    if constexpr (kPairs) {
      quads[q] = permute(entries[2 * q], entries[2 * q + 1], 0x6420) & 0x0F0F0F0Fu;
    } else {
      const uint32_t low = permute(entries[4 * q], entries[4 * q + 1], 0x0040);
      const uint32_t high = permute(entries[4 * q + 2], entries[4 * q + 3], 0x0040);
      quads[q] = permute(low, high, 0x5410);
    }
  }
  words.end(place);
}

// Digits become what Quad::join() wants.
template <DType kDType>
UZIP_DEVICE void digits_to_symbols(uint32_t base, uint32_t quads[kHalfQuads]) {
  constexpr FloatFormat kFormat = float_format(kDType);
  const uint32_t bases = repeat(static_cast<int>(base));
#pragma unroll
  for (int q = 0; q < kHalfQuads; ++q) {
    if constexpr (kFormat.exponent_bits == 8) {
      quads[q] = base + kWindow > 256 ? add_bytes(quads[q], bases) : quads[q] + bases;
    } else if constexpr (kFormat.exponent_bits < 8) {
      quads[q] = (quads[q] + bases) & repeat(kFormat.symbols() - 1);
    }
  }
}

// Which values of half a tile have digit 15, one bit each.
UZIP_DEVICE uint32_t escapes_of(const uint32_t digits[kHalfQuads]) {
  uint32_t escaped = 0;
#pragma unroll
  for (int q = kHalfQuads - 1; q >= 0; --q) {
    escaped = funnel_left(pack_flags<4>((digits[q] + kOnes) & repeat(16)), escaped, 4);
  }
  return escaped;
}

// The raw symbols of a block as its warp takes them.
struct RawSymbols {
  const uint8_t* bytes;
  uint32_t n;
  uint32_t taken = 0;

  // Of the values in the mask: the index of the lane's first. False: there are not as many.
  UZIP_DEVICE bool take(uint32_t escaped, int lane, int* index) {
    uint32_t total;
    const uint32_t before = scan32(static_cast<uint32_t>(popcount(escaped)), lane, &total);
    *index = static_cast<int>(taken + before);
    taken += total;
    return taken <= n;
  }
};

// Puts raw symbols of one byte in the place of symbols. They are few.
template <DType kDType>
UZIP_DEVICE void put_raw_symbols(uint32_t escaped, const uint8_t* raw,
                                 uint32_t symbols[kHalfQuads]) {
  constexpr uint32_t kMask = (float_format(kDType).symbols() - 1) & 0xFF;
#pragma unroll 1
  for (; escaped != 0; escaped &= escaped - 1) {
    const auto i = static_cast<uint32_t>(lowest_bit(escaped));
    const uint32_t shift = 8 * (i % 4);
    const uint32_t symbol = (*raw++ & kMask) << shift;
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      const uint32_t mask = i / 4 == static_cast<uint32_t>(q) ? 0xFFu << shift : 0;
      symbols[q] = blend(mask, symbol, symbols[q]);
    }
  }
}

// A frame of codec ans as what decodes its blocks sees it.
template <DType kDType>
class AnsFrame {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);
  struct Block {
    uint32_t index;
    uint32_t place;  // place_of() it
  };

  UZIP_DEVICE AnsFrame(const Frame& frame, const Header& header)
      : frame_(frame),
        body_bytes_(header.body_bytes),
        code_(AnsFormat<kDType>::code(header.base, header.zero_planes)),
        sections_(AnsSections::of(header.count, kFormat.itemsize, code_.stride, header.menu)) {}

  UZIP_DEVICE const AnsSections& sections() const { return sections_; }
  UZIP_DEVICE const uint8_t* remainder() const { return frame_.bytes + sections_.remainder; }
  UZIP_DEVICE const uint16_t* frequencies() const {
    return reinterpret_cast<const uint16_t*>(frame_.bytes + sections_.table);
  }

  UZIP_DEVICE bool sizes_add_up() const {
    return frame_.size - kHeaderBytes >= body_bytes_ &&
           frame_.size - body_bytes_ == sections_.tails;
  }

  // Where a block is, from the start of the tail section, in units of 16 bytes.
  UZIP_DEVICE uint32_t place_of(uint32_t block) const {
    return *reinterpret_cast<const uint32_t*>(frame_.bytes + sections_.entry(block));
  }

  // A block, by a warp, as `next` will be. `sink_of(tile)` is where a tile's values go. False:
  // malformed.
  template <typename SinkOf>
  UZIP_DEVICE bool decode(const Block& here, const Block& next, AnsWarpRoom<kDType>& room, int lane,
                          const SinkOf& sink_of) const {
    const uint64_t place = uint64_t{here.place} * kAlignment;
    if (place > body_bytes_ || body_bytes_ - place < kAlignment) return false;
    const uint8_t* bytes = frame_.bytes + sections_.tails + place;
    const int n = sections_.tiles_in(here.index) * kTurns;
    const uint8_t* head = this->head(sections_.first_tile(here.index));
    wait_copies<0>();
    sync_lanes();  // the room may still be in use for the block before
    BlockBytes words(room.ring, bytes, body_bytes_ - place, lane);
    fetch_head(head, room.heads[0], lane);
    commit_copies();
    wait_copies<0>();
    sync_lanes();
    const BlockHeader header = words.header();
    const uint64_t room_left = body_bytes_ - place - sizeof(BlockHeader);
    if (header.kind == kRawBlock) return decode_raw(here.index, header, bytes, room_left, sink_of);
    const uint64_t word_bytes = 2 * uint64_t{header.n_words};
    const uint64_t block_bytes = sizeof(BlockHeader) + kStateBytes + word_bytes +
                                 uint64_t{header.n_raw} * kFormat.symbol_bytes();
    if (header.kind != kCodedBlock || align_up(block_bytes) > body_bytes_ - place) return false;

    uint32_t state = words.state();
    words.end_at(sizeof(BlockHeader) + kStateBytes + word_bytes);
    RawSymbols raw{bytes + sizeof(BlockHeader) + kStateBytes + word_bytes, header.n_raw};
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      sync_lanes();  // all have read what was there
      if (i + 1 < n) fetch_head(head + code_.stride, room.heads[(i + 1) % 2], lane);
      words.turn();
      if (i == n - kTurns) prefetch_start(next, lane);
      auto sink = sink_of(sections_.first_tile(here.index) + static_cast<uint32_t>(i / kTurns));
      const uint8_t* planes = kFetchesHeads<kDType> ? room.heads[i % 2] : head;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kPairs) {
          if (!decode_pairs(planes, half, words, &state, raw, lane, sink)) return false;
        } else {
          Run<kDType> run;
          static_assert(Run<kDType>::kWords == AnsFormat<kDType>::kStretchQuads);
          decode_stretch<kDType>(words, &state, run.words);
          sink.put(2 * (i % kTurns) + half, run);
        }
      }
      head += code_.stride;
    }
    return words.taken() == sizeof(BlockHeader) + kStateBytes + word_bytes && raw.taken == raw.n &&
           !any32(state != ans::kStateMin);
  }

 private:
  static constexpr bool kPairs = AnsFormat<kDType>::kPairs;
  static constexpr int kTurns = kPairs ? 1 : 2;  // of a tile

  UZIP_DEVICE const uint8_t* head(uint32_t tile) const {
    return frame_.bytes + kHeaderBytes + uint64_t{tile} * static_cast<uint32_t>(code_.stride);
  }

  UZIP_DEVICE void fetch_head(const uint8_t* head, uint8_t* to, int lane) const {
    if constexpr (kFetchesHeads<kDType>) {
      copy_chunks_later(reinterpret_cast<Chunk*>(to), head, code_.stride / kAlignment, lane);
    }
  }

  // Asks for the begin of a block, to the cache.
  UZIP_DEVICE void prefetch_start(const Block& block, int lane) const {
    if (block.index >= sections_.blocks) return;
    constexpr int kLine = 128;
    const uint64_t place = uint64_t{block.place} * kAlignment + static_cast<uint32_t>(kLine * lane);
    if (lane < ByteRing::kBytes / kLine && place < body_bytes_) {
      prefetch(frame_.bytes + sections_.tails + place);
    }
    const int line = kLine * (kLanes - 1 - lane);
    if (line < code_.stride) prefetch(head(sections_.first_tile(block.index)) + line);
  }

  template <typename SinkOf>
  UZIP_DEVICE bool decode_raw(uint32_t block, const BlockHeader& header, const uint8_t* bytes,
                              uint64_t room, const SinkOf& sink_of) const {
    const int n_tiles = sections_.tiles_in(block);
    const int tail_bytes = kFormat.tile_bytes() - code_.stride;
    if (header.n_words != 0 || header.n_raw != 0 ||
        room < static_cast<uint64_t>(n_tiles * tail_bytes)) {
      return false;
    }
    for (int i = 0; i < n_tiles; ++i) {
      const uint32_t tile = sections_.first_tile(block) + static_cast<uint32_t>(i);
      sink_of(tile).put_raw(head(tile), code_.stride, bytes + sizeof(BlockHeader) + i * tail_bytes);
    }
    return true;
  }

  template <typename Sink>
  UZIP_DEVICE bool decode_pairs(const uint8_t* head, int half, BlockBytes& words, uint32_t* state,
                                RawSymbols& raw, int lane, Sink& sink) const {
    uint32_t quads[kHalfQuads];
    decode_stretch<kDType>(words, state, quads);
    uint32_t flags = 0;
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) flags |= quads[q] + kOnes;
    const bool any_raw = any32((flags & repeat(16)) != 0);
    uint32_t escaped = 0;
    int index = 0;
    if (any_raw) {
      escaped = escapes_of(quads);
      if (!raw.take(escaped, lane, &index)) return false;
    }
    digits_to_symbols<kDType>(code_.base, quads);
    if constexpr (kFormat.symbol_bytes() == 1) {
      if (any_raw) put_raw_symbols<kDType>(escaped, raw.bytes + index, quads);
    }
    HalfPlanes<kDType> rests;
    rests.load(code_, head, half, lane);
    if constexpr (kFormat.symbol_bytes() == 2) {
      // As put_half() wants those without a rank: not below kWindow.
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) quads[q] += (quads[q] + kOnes) >> 4 & kOnes;
    }
    put_half(rests, quads, code_.base, any_raw ? raw.bytes : nullptr, index, half, sink);
    return true;
  }

  Frame frame_;
  uint64_t body_bytes_;
  TileCode code_;
  AnsSections sections_;
};

}  // namespace uzip::gpu
