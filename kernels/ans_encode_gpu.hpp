// One warp codes one block of an ans frame, from its last value to the first.
//
// The planes of half a tile are stored while its codes wait in registers; the entries of all its
// codes are fetched before the first step, so that a step's chain is arithmetic only. Words pile up
// downwards in shared memory until the block's size is known and one atomic addition has told where
// it goes. A block that would not fit there, or not be smaller, is raw.
#pragma once

#include "ans_select_gpu.hpp"
#include "frame_encode_gpu.hpp"

namespace uzip::gpu {

// What a step needs to know of a code. `fields`: shift of the quotient, bits 0..4; what is added to
// the state, bits 5..17; 4095 - frequency, from bit 20 on.
struct alignas(8) StepEntry {
  uint32_t reciprocal;
  uint32_t fields;
};

// Where the entry of a code is: the codes of neighbouring digits, the common ones, are to lie in
// different banks, so the rows of pair mode are 4 entries longer than they need be.
template <DType kDType>
struct StepTable {
  static constexpr bool kPairs = AnsFormat<kDType>::kPairs;
  static constexpr int kRow = 20;
  static constexpr int kEntries = kPairs ? 15 * kRow + 16 : ans::kCodes;
  StepEntry entries[kEntries];

  UZIP_DEVICE static int index(int code) { return kPairs ? code % 16 + code / 16 * kRow : code; }
};

UZIP_DEVICE StepEntry step_entry(uint32_t frequency, uint32_t cumulated) {
  const ans::EncodeEntry entry = ans::encode_entry(frequency, cumulated);
  // The quotient by 1 comes out 1 too small: 4096 - 1 makes up for it.
  const uint32_t added = frequency == 1 ? cumulated + ans::kTableSum - 1 : cumulated;
  return {entry.reciprocal,
          (ans::kMaxFrequency - frequency) << 20 | added << 5 | (entry.fields >> 24 & 15)};
}

// `sum`, and the products of the bytes of two words.
UZIP_DEVICE uint32_t add_products(uint32_t bytes, uint32_t factors, uint32_t sum) {
#if UZIP_PTX
  asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(bytes), "r"(factors));
  return sum;
#else
  for (int i = 0; i < 4; ++i) sum += (bytes >> 8 * i & 0xFF) * (factors >> 8 * i & 0xFF);
  return sum;
#endif
}

// Fetches the entries of the codes of a quad.
template <DType kDType>
UZIP_DEVICE void fetch_entries(const StepTable<kDType>& table, uint32_t quad,
                               StepEntry entries[AnsFormat<kDType>::kQuadCodes]) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(table.entries);
  constexpr uint32_t kEntry = sizeof(StepEntry);
#pragma unroll
  for (int i = 0; i < AnsFormat<kDType>::kQuadCodes; ++i) {
    constexpr uint32_t kPair = kEntry | kEntry * StepTable<kDType>::kRow << 8;
    const uint32_t factors = StepTable<kDType>::kPairs ? kPair << 16 * i : kEntry << 8 * i;
    entries[i] = *reinterpret_cast<const StepEntry*>(bytes + add_products(quad, factors, 0));
  }
}

// Lanes whose state is too large for the code, frequency * 2^20 or more, push a word, the highest
// lane first; `place` goes down to the last word. By all lanes; `below` has a bit for each lane
// below.
UZIP_DEVICE uint32_t emit(uint32_t state, uint32_t fields, uint32_t below, SharedPlace* place) {
#if UZIP_PTX
  // Compilers compare twice.
  asm volatile(
      "{ .reg .pred full; .reg .b32 all, n; .reg .b16 low, high;\n"
      "not.b32 n, %0;\n"
      "and.b32 n, n, 0xFFF00000;\n"
      "setp.le.u32 full, n, %2;\n"
      "vote.sync.ballot.b32 all, full, 0xFFFFFFFF;\n"
      "popc.b32 n, all;\n"
      "mad.lo.u32 %1, n, -2, %1;\n"
      "and.b32 n, all, %3;\n"
      "popc.b32 n, n;\n"
      "mad.lo.u32 n, n, 2, %1;\n"
      "mov.b32 {low, high}, %0;\n"
      "@full st.shared.u16 [n], low;\n"
      "@full shr.u32 %0, %0, 16; }"
      : "+r"(state), "+r"(*place)
      : "r"(fields), "r"(below)
      : "memory");
  return state;
#else
  const bool full = (~state & 0xFFF00000u) <= fields;
  const uint32_t all = ballot32(full);
  *place -= 2 * popcount(all);
  if (!full) return state;
  auto* words = reinterpret_cast<uint16_t*>(const_cast<uint8_t*>(*place));
  words[popcount(all & below)] = static_cast<uint16_t>(state);
  return state >> ans::kWordBits;
#endif
}

UZIP_DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}

// Puts a code into a state that has room for it.
UZIP_DEVICE uint32_t put_code(uint32_t state, StepEntry entry) {
  const uint32_t quotient =
      funnel_right(multiply_high(state, entry.reciprocal), 0, static_cast<int>(entry.fields));
  // A factor of 4096 - frequency, less 1 that is added here.
  return quotient * (entry.fields >> 20) + (state + (entry.fields >> 5 & 0x1FFF) + quotient);
}

template <DType kDType>
struct BlockRoom {
  // Four blocks of 8 warps on a multiprocessor; whole values need more for as many tiles, so three.
  static constexpr int kBytes = AnsFormat<kDType>::kPairs ? 6400 : 7936;
  // From the end downwards: words. From the beginning: raw symbols, the last one first.
  alignas(16) uint8_t bytes[kBytes];
  // The most that half a tile needs: a word for each code, and raw symbols.
  static constexpr int kHalfBytes =
      kLanes * (2 * AnsFormat<kDType>::kHalfCodes +
                (AnsFormat<kDType>::kPairs ? 16 * float_format(kDType).symbol_bytes() : 0));
  static constexpr uint32_t kUsable = kBytes - kHalfBytes;
};

template <DType kDType>
struct AnsEncodeRoom {
  union {
    SelectRoom<kDType> select;
    AnsSelectRoom select_table;
    BlockRoom<kDType> blocks[kWarps];
  };
  StepTable<kDType> table;
  Choice choice;
  AnsChoice ans;
  // Of the frame, when the choice is made: registers are for coding.
  AnsSections sections;
  uint32_t tail_room;  // see TailSection
  FinishRoom finish;
  Claims claims[kWarps];  // when each warp asked last
};

// Codes the blocks of a frame with several thread blocks.
template <DType kDType>
class BlockEncoder {
 public:
  using Format = AnsFormat<kDType>;
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE BlockEncoder(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                           AnsEncodeRoom<kDType>& room, Part part)
      : tensor_(tensor),
        frame_(frame),
        scratch_(scratch),
        room_(room),
        part_(part),
        code_(Format::code(room.ans.base, room.choice.parameters.zero_planes)),
        sections_(room.sections),
        lane_(thread_index() % kLanes),
        bottom_(room.blocks[thread_index() / kLanes].bytes) {}

  // What the room is to have first; by one thread.
  UZIP_DEVICE static void plan(uint64_t count, AnsEncodeRoom<kDType>& room) {
    const TileCode code = Format::code(room.ans.base, room.choice.parameters.zero_planes);
    room.sections = AnsSections::of(count, kFormat.itemsize, code.stride, room.ans.block_log2);
    room.tail_room = TailSection::room_between(room.sections.tails, bound(count, kDType));
  }

  // Whether a frame smaller than a raw one has room for blocks at all.
  UZIP_DEVICE bool has_room() const { return sections_.tails < bound(tensor_.count, kDType); }

  // Codes this warp's blocks. They are dealt out such that few are spread over many processors.
  UZIP_DEVICE void run() {
    const auto warp = static_cast<uint32_t>(thread_index() / kLanes);
    const auto blocks = static_cast<uint32_t>(sections_.blocks);
    for (uint32_t block = part_.block + warp * part_.blocks; block < blocks;
         block += kWarps * part_.blocks) {
      const Coded coded = code(block);
      if (coded.bytes < verbatim_bytes(block)) {
        store(block, coded);
      } else {
        store_raw(block);
      }
    }
  }

  // Writes what belongs to no block; by one thread block.
  UZIP_DEVICE void write_rest() const {
    const auto thread = static_cast<uint64_t>(thread_index());
    uint8_t* remainder = frame_ + sections_.remainder;
    TensorSource<kDType>{tensor_}.write_remainder(remainder);
    zero_bytes(remainder + sections_.remainder_bytes, frame_ + sections_.table, thread, kThreads);
    reinterpret_cast<uint16_t*>(frame_ + sections_.table)[thread] = room_.ans.frequencies[thread];
    zero_bytes(frame_ + sections_.entry(sections_.blocks), frame_ + sections_.tails, thread,
               kThreads);
  }

  // Called by all thread blocks when their blocks are done.
  UZIP_DEVICE void finish() {
    const auto complete = [&](bool overflow, uint64_t body) {
      if (overflow) return;
      const uint32_t zero_planes = room_.choice.parameters.zero_planes;
      write_header(frame_, kDType, Codec::kAns, tensor_.count, sections_.tails + body, body,
                   {sections_.block_log2, room_.ans.base, zero_planes, {}});
    };
    const auto rewrite = [&](Part piece) { write_raw(tensor_, kDType, frame_, piece); };
    if (lane_ == 0) room_.claims[thread_index() / kLanes] = claims_;
    sync_block();
    Claims latest{};
#pragma unroll
    for (const Claims& claims : room_.claims) {
      if (claims.groups() > latest.groups()) latest = claims;
    }
    // The others have none.
    const auto blocks = static_cast<uint32_t>(sections_.blocks);
    const Part part{part_.block, part_.blocks < blocks ? part_.blocks : blocks};
    if (part.block >= part.blocks) return;
    finish_frame<false>(tails(), part, &room_.finish, latest, complete, rewrite);
  }

 private:
  static constexpr int kNotCoded = 1 << 30;
  static constexpr int kHalfRows = kRows / 2;
  // Values are loaded while the codes of the half before are put in, where registers allow it.
  static constexpr bool kEarly = kFormat.itemsize <= 2;

  // A block whose words and raw symbols are in the room.
  struct Coded {
    int bytes;  // of the block, not padded; kNotCoded: it is to be raw
    uint32_t state;
    int n_words;
    int n_raw;
  };

  // What changes from half to half of a block.
  struct Progress {
    uint32_t state;
    SharedPlace place;  // of the last word
    int n_raw;
    uint32_t lost;  // bits of planes that the frame lacks
  };

  UZIP_DEVICE const uint8_t* values_of(uint32_t tile) const {
    return tensor_.values + uint64_t{tile} * kFormat.tile_bytes();
  }
  UZIP_DEVICE uint8_t* head_of(uint32_t tile) const {
    return frame_ + kHeaderBytes + uint64_t{tile} * static_cast<uint32_t>(code_.stride);
  }
  UZIP_DEVICE int tail_bytes() const { return kFormat.tile_bytes() - code_.stride; }
  // Of a raw block, padded: a coded one must be smaller, padded too.
  UZIP_DEVICE int verbatim_bytes(uint32_t block) const {
    const int bytes =
        static_cast<int>(sizeof(BlockHeader)) + sections_.tiles_in(block) * tail_bytes();
    return (bytes + kAlignment - 1) / kAlignment * kAlignment - (kAlignment - 1);
  }

  UZIP_DEVICE void load(const uint8_t* values, int half, Run<kDType> rows[kHalfRows]) const {
    load_rows<kDType, kHalfRows>(values, kHalfRows * half, tensor_.aligned, lane_, rows);
  }

  // Codes a block but for its place: heads go to theirs, the rest to the room.
  UZIP_DEVICE Coded code(uint32_t block) {
    const int n_tiles = sections_.tiles_in(block);
    const SharedPlace bottom = shared_place(bottom_);
    const SharedPlace top = bottom + BlockRoom<kDType>::kBytes;
    Progress progress{ans::kStateMin, top, 0, 0};
    Run<kDType> rows[kHalfRows];
    sync_lanes();  // the room may still be in use for the block before
    if constexpr (kEarly) load(values_of(sections_.first_tile(block) + n_tiles - 1), 1, rows);
#pragma unroll 1
    for (int i = 2 * n_tiles - 1; i >= 0; --i) {
      const uint32_t tile = sections_.first_tile(block) + static_cast<uint32_t>(i / 2);
      if constexpr (!kEarly) load(values_of(tile), i % 2, rows);
      uint32_t quads[kHalfQuads];
      if (!split_half(tile, i % 2, rows, bottom, &progress, quads)) {
        return {kNotCoded, 0, 0, 0};
      }
      if constexpr (kEarly) {
        const int next = i > 0 ? i - 1 : 0;
        load(values_of(sections_.first_tile(block) + static_cast<uint32_t>(next / 2)), next % 2,
             rows);
      }
      put_half(quads, &progress);
    }
    sync_lanes();
    const int word_bytes = static_cast<int>(top - progress.place);
    const int bytes = static_cast<int>(sizeof(BlockHeader)) + kStateBytes + word_bytes +
                      progress.n_raw * kFormat.symbol_bytes();
    return {any32(progress.lost != 0) ? kNotCoded : bytes, progress.state, word_bytes / 2,
            progress.n_raw};
  }

  // Stores the planes of half a tile and puts its raw symbols into the room; what remains are
  // digits, or values. False: there is not room enough.
  UZIP_DEVICE bool split_half(uint32_t tile, int half, const Run<kDType> rows[kHalfRows],
                              SharedPlace bottom, Progress* progress, uint32_t digits[kHalfQuads]) {
    const auto left =
        static_cast<int>(progress->place - bottom) - progress->n_raw * kFormat.symbol_bytes();
    if (left < BlockRoom<kDType>::kHalfBytes) return false;
    if constexpr (!Format::kPairs) {
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) digits[q] = rows[q / 2].words[q % 2];
    } else {
      Quad<kDType> quads[kHalfQuads];
      uint32_t outside = 0;
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) {
        quads[q] =
            Quad<kDType>::split(rows[q / 2].words + q % 2 * Quad<kDType>::kWords, code_.base);
        digits[q] = quads[q].offset;
        outside |= digits[q] | (digits[q] + kOnes);
      }
      progress->lost |= store_rests<kDType>(code_, quads, head_of(tile), half, lane_);
      if (any32((outside & 0xF0F0F0F0u) != 0)) put_raw_symbols(tile, half, progress, digits);
    }
    return true;
  }

  // Symbols of digit 15, and beyond, go to the room, behind those of the halves that come later.
  UZIP_DEVICE void put_raw_symbols(uint32_t tile, int half, Progress* progress,
                                   uint32_t digits[kHalfQuads]) {
    using V = Value<kDType>;
    constexpr int kSymbolBytes = kFormat.symbol_bytes();
    uint32_t escaped = 0;
#pragma unroll
    for (int q = kHalfQuads - 1; q >= 0; --q) {
      digits[q] = clamp_digits(digits[q]);
      escaped = funnel_left(pack_flags<4>((digits[q] + kOnes) & repeat(16)), escaped, 4);
    }
    uint32_t total;
    const uint32_t before = scan32(static_cast<uint32_t>(popcount(escaped)), lane_, &total);
    progress->n_raw += static_cast<int>(total);
    int index = progress->n_raw - 1 - static_cast<int>(before);
    const auto* words = reinterpret_cast<const typename V::Word*>(values_of(tile));
    while (escaped != 0) {
      const int i = lowest_bit(escaped);
      escaped &= escaped - 1;
      const int symbol = V::symbol(words[value_index(lane_, 16 * half + i)]);
#pragma unroll
      for (int k = 0; k < kSymbolBytes; ++k) {
        bottom_[index * kSymbolBytes + k] = static_cast<uint8_t>(symbol >> 8 * k);
      }
      --index;
    }
  }

  UZIP_DEVICE void put_half(const uint32_t quads[kHalfQuads], Progress* progress) const {
    constexpr int kStretchQuads = Format::kStretchQuads;
    const uint32_t below = (1u << lane_) - 1;
    uint32_t state = progress->state;
    SharedPlace place = progress->place;
#pragma unroll
    for (int first = kHalfQuads - kStretchQuads; first >= 0; first -= kStretchQuads) {
      StepEntry entries[Format::kStretch];
#pragma unroll
      for (int q = 0; q < kStretchQuads; ++q) {
        fetch_entries<kDType>(room_.table, quads[first + q], entries + q * Format::kQuadCodes);
      }
#pragma unroll
      for (int i = Format::kStretch - 1; i >= 0; --i) {
        state = put_code(emit(state, entries[i].fields, below, &place), entries[i]);
      }
    }
    progress->state = state;
    progress->place = place;
  }

  UZIP_DEVICE TailSection tails() const {
    const int tiles = 1 << sections_.block_log2;
    const int most = static_cast<int>(sizeof(BlockHeader)) + tiles * tail_bytes();
    return {scratch_, room_.tail_room, static_cast<uint32_t>(sections_.blocks),
            TailSection::units_of(most)};
  }

  // A place for a block of so many bytes; nullptr where the frame would become too large.
  UZIP_DEVICE uint8_t* place_block(uint32_t block, int bytes) {
    uint32_t unit = 0;
    if (lane_ == 0) {
      const uint32_t units = TailSection::units_of(bytes);
      claims_ = tails().claim(units);
      unit = tails().enter(frame_ + sections_.entry(block), claims_, units);
    }
    unit = shuffle32(unit, 0);
    if (unit == kNoUnit) return nullptr;
    return frame_ + sections_.tails + uint64_t{unit} * kAlignment;
  }

  UZIP_DEVICE void store(uint32_t block, const Coded& coded) {
    uint8_t* to = place_block(block, coded.bytes);
    if (to == nullptr) return;
    if (lane_ == 0) {
      *reinterpret_cast<BlockHeader*>(to) = {static_cast<uint32_t>(coded.n_words),
                                             static_cast<uint16_t>(coded.n_raw), kCodedBlock};
    }
    to += sizeof(BlockHeader);
    reinterpret_cast<uint32_t*>(to)[lane_] = coded.state;
    to += kStateBytes;
    store_words(to, coded.n_words);
    to += 2 * coded.n_words;
    constexpr int kSymbolBytes = kFormat.symbol_bytes();
    for (int i = lane_; i < coded.n_raw; i += kLanes) {
#pragma unroll
      for (int k = 0; k < kSymbolBytes; ++k) {
        to[i * kSymbolBytes + k] = bottom_[(coded.n_raw - 1 - i) * kSymbolBytes + k];
      }
    }
    to += coded.n_raw * kSymbolBytes;
    if (lane_ < (-coded.bytes & (kAlignment - 1))) to[lane_] = 0;
  }

  // Words from the end of the room to a multiple of 8 bytes, two at a time.
  UZIP_DEVICE void store_words(uint8_t* to, int n_words) const {
    const int first = BlockRoom<kDType>::kBytes - 2 * n_words;
    const auto* from = reinterpret_cast<const uint32_t*>(bottom_ + first / 4 * 4);
    const int pairs = n_words / 2;
    const int shift = first % 4 * 8;
#pragma unroll 2
    for (int i = lane_; i < pairs; i += kLanes) {
      // Aligned words end with the room.
      const uint32_t next = shift != 0 ? from[i + 1] : 0;
      reinterpret_cast<uint32_t*>(to)[i] = funnel_right(from[i], next, shift);
    }
    if (n_words % 2 != 0 && lane_ == 0) {
      reinterpret_cast<uint16_t*>(to)[n_words - 1] =
          reinterpret_cast<const uint16_t*>(bottom_)[BlockRoom<kDType>::kBytes / 2 - 1];
    }
  }

  UZIP_DEVICE void store_raw(uint32_t block) {
    const int n_tiles = sections_.tiles_in(block);
    const int bytes = static_cast<int>(sizeof(BlockHeader)) + n_tiles * tail_bytes();
    uint8_t* to = place_block(block, bytes);
    if (to == nullptr) return;
    sync_lanes();  // planes were stored where the values go
    const auto lane = static_cast<uint64_t>(lane_);
    if (lane_ == 0) *reinterpret_cast<BlockHeader*>(to) = {0, 0, kRawBlock};
    for (int i = 0; i < n_tiles; ++i) {
      const uint32_t tile = sections_.first_tile(block) + static_cast<uint32_t>(i);
      const uint8_t* values = values_of(tile);
      copy_bytes(head_of(tile), values, static_cast<uint64_t>(code_.stride), lane, kLanes);
      copy_bytes(to + sizeof(BlockHeader) + i * tail_bytes(), values + code_.stride,
                 static_cast<uint64_t>(tail_bytes()), lane, kLanes);
    }
    if (lane_ < (-bytes & (kAlignment - 1))) to[bytes + lane_] = 0;
  }

  const Tensor& tensor_;
  uint8_t* frame_;
  EncodeScratch* scratch_;
  AnsEncodeRoom<kDType>& room_;
  Part part_;
  TileCode code_;
  const AnsSections& sections_;
  int lane_;
  uint8_t* bottom_;
  Claims claims_{};  // lane 0: when the warp asked last
};

}  // namespace uzip::gpu
