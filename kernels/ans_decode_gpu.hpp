// One warp decodes one block of an ans frame: the lanes of the warp are those of the format.
//
// A step takes one look-up in a table of all 4096 slots, and the lanes that need a word take
// neighbouring ones: a ballot tells each how many are before it. Words pass through a window in
// shared memory, so that a block of any size needs little room; the loop checks nothing, as it can
// only read from the window, and what it took is compared with what there was at the end.
#pragma once

#include "ans_frame_gpu.hpp"
#include "frame_decode_gpu.hpp"

namespace uzip::gpu {

// Two halves of 512 bytes that are filled in turn, and the first one once more, so that a stretch
// of 8 steps, which takes 256 words at most, may read on past the end.
struct alignas(16) WordWindow {
  static constexpr int kHalf = 256;
  uint16_t words[3 * kHalf];
};

template <DType kDType>
struct AnsDecodeRoom {
  uint32_t table[ans::kTableSum];
  union {
    WordWindow windows[kWarps];
    struct {
      uint32_t sums[kWarps];
      uint16_t frequencies[ans::kCodes];
      uint16_t cumulated[ans::kCodes];
    };
  };
};

// An entry has the frequency in its top 12 bits. Pair mode: the digits in bits 0..3 and 16..19, so
// that a byte permutation gathers those of two codes; 12 bits from bit 4 on: the slot's place among
// those of the code. Byte mode: the code in bits 0..7, the place from bit 8 on.
template <bool kPairs>
UZIP_DEVICE uint32_t slot_entry(uint32_t code, uint32_t frequency, uint32_t place) {
  if constexpr (kPairs) return frequency << 20 | (code & 0xF0) << 12 | place << 4 | (code & 15);
  return frequency << 20 | place << 8 | code;
}

// Fills the table from the frequencies of a frame, by a whole block. False: these do not sum to
// 4096, or one is 4096.
template <DType kDType>
UZIP_DEVICE bool fill_slots(const uint16_t* frequencies, AnsDecodeRoom<kDType>& room) {
  const int code = thread_index();
  const uint32_t frequency = frequencies[code];
  uint32_t total;
  const uint32_t cumulated = sum_below(frequency, room.sums, &total);
  room.frequencies[code] = static_cast<uint16_t>(frequency);
  room.cumulated[code] = static_cast<uint16_t>(cumulated);
  if (code == 0) room.sums[0] = 0;
  sync_block();
  if (frequency > ans::kMaxFrequency) room.sums[0] = 1;
  sync_block();
  const bool sound = total == ans::kTableSum && room.sums[0] == 0;
  if (sound) {
    const int lane = thread_index() % kLanes;
    for (int c = thread_index() / kLanes; c < ans::kCodes; c += kWarps) {
      const uint32_t n = room.frequencies[c];
      uint32_t* slots = room.table + room.cumulated[c];
      for (auto i = static_cast<uint32_t>(lane); i < n; i += kLanes) {
        slots[i] = slot_entry<AnsFormat<kDType>::kPairs>(static_cast<uint32_t>(c), n, i);
      }
    }
  }
  sync_block();
  return sound;
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

// The words of a block as its warp takes them.
class WordReader {
 public:
  // The words begin kSkipped bytes after `chunks`, which is aligned to 16 and has `bytes` bytes
  // with them.
  static constexpr uint32_t kSkipped = 8;
  UZIP_DEVICE WordReader(WordWindow& window, const uint8_t* chunks, uint64_t bytes, int lane)
      : window_(window),
        chunks_(chunks + lane * kAlignment),
        n_chunks_(static_cast<uint32_t>(bytes / kAlignment)),
        n_last_(static_cast<uint32_t>(bytes % kAlignment)),
        lane_(lane),
        next_(static_cast<uint32_t>(lane)) {
    const Chunk first = load();
    const Chunk second = load();
    ahead_ = load();
    sync_lanes();  // the window may still be in use for the block before
    fill(0, first);
    fill(1, second);
    sync_lanes();
  }

  UZIP_DEVICE uint32_t lanes_below() const { return (1u << lane_) - 1; }

  // Where a stretch of steps begins to read.
  UZIP_DEVICE SharedPlace begin() const { return shared_place(window_.words) + place_; }

  // Where it has stopped: refills the half that it left.
  UZIP_DEVICE void end(SharedPlace stop) {
    const auto place = static_cast<uint32_t>(stop - shared_place(window_.words));
    const uint32_t half = place_ / kHalfBytes;
    taken_ += place - place_;
    place_ = place % (2 * kHalfBytes);
    if (place / kHalfBytes == half) return;
    sync_lanes();
    fill(half, ahead_);
    sync_lanes();
    ahead_ = load();
  }

  // Bytes so far.
  UZIP_DEVICE uint32_t taken() const { return taken_; }

 private:
  static constexpr uint32_t kHalfBytes = 2 * WordWindow::kHalf;

  // This lane's chunk of the next half.
  UZIP_DEVICE Chunk load() {
    Chunk chunk{};
    if (next_ < n_chunks_) {
      chunk = *reinterpret_cast<const Chunk*>(chunks_);
    } else if (next_ == n_chunks_) {
      // Without indices that change, so that the chunk stays in registers.
#pragma unroll
      for (int i = 0; i < kAlignment / 2; ++i) {
        if (2 * static_cast<uint32_t>(i) >= n_last_) continue;
        const uint32_t word = reinterpret_cast<const uint16_t*>(chunks_)[i];
        chunk.words[i / 2] |= word << 16 * (i % 2);
      }
    }
    next_ += kLanes;
    chunks_ += kHalfBytes;
    return chunk;
  }

  UZIP_DEVICE void fill(uint32_t half, const Chunk& chunk) {
    auto* chunks = reinterpret_cast<Chunk*>(window_.words);
    chunks[half * kLanes + lane_] = chunk;
    if (half == 0) chunks[2 * kLanes + lane_] = chunk;
  }

  WordWindow& window_;
  const uint8_t* chunks_;  // this lane's next
  uint32_t n_chunks_;      // whole ones
  uint32_t n_last_;        // bytes of the one after them, an even number
  int lane_;
  uint32_t next_;
  Chunk ahead_;
  uint32_t place_ = kSkipped;  // in the window, in bytes
  uint32_t taken_ = 0;
};

// Decodes a lane's next 8 codes, as quads of digits or of values.
template <DType kDType>
UZIP_DEVICE void decode_stretch(SharedPlace table, WordReader& words, uint32_t* state,
                                uint32_t quads[AnsFormat<kDType>::kStretchQuads]) {
  constexpr bool kPairs = AnsFormat<kDType>::kPairs;
  uint32_t x = *state;
  uint32_t entries[AnsFormat<kDType>::kStretch];
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

// Puts raw symbols of one byte in the place of symbols.
template <DType kDType>
UZIP_DEVICE void put_raw_symbols(uint32_t escaped, const uint8_t* raw,
                                 uint32_t symbols[kHalfQuads]) {
  constexpr uint32_t kMask = (float_format(kDType).symbols() - 1) & 0xFF;
#pragma unroll
  for (int i = 0; i < 4 * kHalfQuads; ++i) {
    if ((escaped >> i & 1) == 0) continue;
    uint32_t& quad = symbols[i / 4];
    const int shift = 8 * (i % 4);
    quad = (quad & ~(0xFFu << shift)) | (*raw++ & kMask) << shift;
  }
}

// A frame of codec ans as what decodes its blocks sees it.
template <DType kDType>
class AnsFrame {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

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

  // A block, by a warp. `sink_of(tile)` is where a tile's values go. False: malformed.
  template <typename SinkOf>
  UZIP_DEVICE bool decode(uint32_t block, const uint32_t table[ans::kTableSum], WordWindow& window,
                          int lane, const SinkOf& sink_of) const {
    const uint64_t place =
        uint64_t{*reinterpret_cast<const uint32_t*>(frame_.bytes + sections_.entry(block))} *
        kAlignment;
    if (place > body_bytes_ || body_bytes_ - place < sizeof(BlockHeader)) return false;
    const uint8_t* bytes = frame_.bytes + sections_.tails + place;
    const BlockHeader header = *reinterpret_cast<const BlockHeader*>(bytes);
    const uint64_t room = body_bytes_ - place - sizeof(BlockHeader);
    if (header.kind == kRawBlock) return decode_raw(block, header, bytes, room, sink_of);
    const uint64_t raw_bytes = uint64_t{header.n_raw} * kFormat.symbol_bytes();
    const uint64_t word_bytes = 2 * uint64_t{header.n_words};
    if (header.kind != kCodedBlock || kStateBytes + word_bytes + raw_bytes > room) return false;

    uint32_t state = reinterpret_cast<const uint32_t*>(bytes + sizeof(BlockHeader))[lane];
    // The last two states are in the chunk in which the words begin.
    WordReader words(window, bytes + kStateBytes, sizeof(BlockHeader) + word_bytes, lane);
    RawSymbols raw{bytes + sizeof(BlockHeader) + kStateBytes + word_bytes, header.n_raw};
    const SharedPlace slots = shared_place(table);
    const int n_tiles = sections_.tiles_in(block);
#pragma unroll 1
    for (int i = 0; i < n_tiles; ++i) {
      const uint32_t tile = sections_.first_tile(block) + static_cast<uint32_t>(i);
      auto sink = sink_of(tile);
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        if (!decode_half(tile, half, slots, words, &state, raw, lane, sink)) return false;
      }
    }
    return words.taken() == word_bytes && raw.taken == raw.n && !any32(state != ans::kStateMin);
  }

 private:
  UZIP_DEVICE const uint8_t* head(uint32_t tile) const {
    return frame_.bytes + kHeaderBytes + uint64_t{tile} * static_cast<uint32_t>(code_.stride);
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
  UZIP_DEVICE bool decode_half(uint32_t tile, int half, SharedPlace table, WordReader& words,
                               uint32_t* state, RawSymbols& raw, int lane, Sink& sink) const {
    if constexpr (AnsFormat<kDType>::kPairs) {
      return decode_pairs(head(tile), half, table, words, state, raw, lane, sink);
    } else {
#pragma unroll 1
      for (int r = 0; r < 2; ++r) {
        Run<kDType> run;
        static_assert(Run<kDType>::kWords == AnsFormat<kDType>::kStretchQuads);
        decode_stretch<kDType>(table, words, state, run.words);
        sink.put(2 * half + r, run);
      }
      return true;
    }
  }

  template <typename Sink>
  UZIP_DEVICE bool decode_pairs(const uint8_t* head, int half, SharedPlace table, WordReader& words,
                                uint32_t* state, RawSymbols& raw, int lane, Sink& sink) const {
    HalfPlanes<kDType> planes;
    // Few planes arrive while the codes are decoded; more would take too many registers.
    constexpr bool kEarly = kFormat.itemsize <= 4;
    if constexpr (kEarly) planes.load(code_, head, half, lane);
    uint32_t quads[kHalfQuads];
    decode_stretch<kDType>(table, words, state, quads);
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
    if constexpr (!kEarly) planes.load(code_, head, half, lane);
    if constexpr (kFormat.symbol_bytes() == 2) {
      // As put_half() wants those without a rank: not below kWindow.
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) quads[q] += (quads[q] + kOnes) >> 4 & kOnes;
    }
    put_half(planes, quads, code_.base, any_raw ? raw.bytes : nullptr, index, half, sink);
    return true;
  }

  Frame frame_;
  uint64_t body_bytes_;
  TileCode code_;
  AnsSections sections_;
};

}  // namespace uzip::gpu
