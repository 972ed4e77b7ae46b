// The levels of codec tier whose digits are in a tail, as a warp decodes them: what each lane reads
// of them, and how it makes lists of symbols (tier_decode_gpu.hpp says of what use these are).
#pragma once

#include "tile_code_gpu.hpp"

namespace uzip::gpu {

constexpr int kRun = 16;  // digits that a lane expands at a time

// How four digits choose bytes: selectors for permute(list, symbols), list being the next four
// symbols of the list below; and, from bit 16 on, how many of these are taken. In shared memory.
struct DecodeTables {
  uint32_t pairs[256];          // by four 2-bit digits
  uint32_t singles[16];         // by four 1-bit digits
  uint32_t merges[kQuadMasks];  // by a quad's mask of escapes: the others keep their bytes

  // By a block.
  UZIP_DEVICE void fill(int thread) {
    pairs[thread] = make_selector(static_cast<uint32_t>(thread), 2);
    if (thread >= 16) return;
    const auto mask = static_cast<uint32_t>(thread);
    singles[mask] = make_selector(mask, 1);
    uint32_t kept = 0x7654;
    uint32_t taken = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((mask >> i & 1) != 0) kept = (kept & ~(0xFu << 4 * i)) | taken++ << 4 * i;
    }
    merges[spread_bits(mask)] = kept | taken << 16;
  }

 private:
  UZIP_DEVICE static uint32_t make_selector(uint32_t digits, int width) {
    const uint32_t escape = (1u << width) - 1;
    uint32_t selector = 0;
    uint32_t taken = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t digit = digits >> width * i & escape;
      selector |= (digit == escape ? taken : 4 + digit) << 4 * i;
      taken += digit == escape ? 1 : 0;
    }
    return selector | taken << 16;
  }
};

// A tile's tail: bytes `begin` .. `end` of shared memory that is read by words, of which up to
// `padding` may be unused. Up to kTailSlack bytes behind it are read.
struct Tail {
  const uint32_t* words;
  int begin;
  int end;
  int padding;
};
constexpr int kTailSlack = 32;

// Room in shared memory for the longest tail, which may begin within a chunk, and for the digits of
// level 1 before it: of all levels together a value has 8 bits of digits at most.
template <DType kDType>
struct alignas(16) TailRoom {
  static constexpr int kBytes = kTailBytes<kDType> + kTileValues / 8 + kAlignment;
  uint32_t words[(kBytes + kAlignment + kTailSlack) / 4];
};

// What a warp needs in shared memory to decode a tile.
template <DType kDType>
struct alignas(16) LevelRoom {
  // Of two levels in turn. Somewhat more is read than there is.
  uint32_t lists[2][kTileValues / 4 + 4];
};

// Bits 0..15 to bits 0, 2, 4, ..
UZIP_DEVICE uint32_t spread_half(uint32_t bits) {
  bits = (bits | bits << 8) & 0x00FF00FFu;
  bits = (bits | bits << 4) & 0x0F0F0F0Fu;
  bits = (bits | bits << 2) & 0x33333333u;
  return (bits | bits << 1) & kHalfMask;
}

// In lists, in place of a symbol of two bytes; other bytes of these lists are offsets.
constexpr uint32_t kWideSymbols = kWindow * kOnes;

// Where symbols come from: those of the ranks of a level, and the list of the level below.
struct Source {
  uint32_t symbols[2];  // of the level's first 8 ranks
  SharedPlace next;     // of the list
};

// The digits of a level of 16 neighbouring positions.
template <int kWidth>
struct Digits {
  uint32_t low;   // a digit's low two bits; 4-bit digits: the first 8
  uint32_t high;  // of 3-bit digits the high bits; of 4-bit digits the others

  // Of run `run` of a whole plane.
  UZIP_DEVICE static Digits load(const uint8_t* plane, int run) {
    if constexpr (kWidth == 1) return {reinterpret_cast<const uint16_t*>(plane)[run], 0};
    if constexpr (kWidth == 4) {
      const Pair pair = reinterpret_cast<const Pair*>(plane)[run];
      return {pair.words[0], pair.words[1]};
    }
    const uint32_t low = reinterpret_cast<const uint32_t*>(plane)[run];
    if constexpr (kWidth == 2) return {low, 0};
    plane += plane_bytes(2, kTileValues);
    return {low, reinterpret_cast<const uint16_t*>(plane)[run]};
  }

  // Of a plane of `n` digits. Digits beyond the last are 0.
  UZIP_DEVICE static Digits read(SharedPlace plane, int n, int run) {
    constexpr int kLow = kWidth == 3 ? 2 : kWidth;
    int left = n - kRun * run;
    if (left < 0) left = 0;
    if (run > n / kRun) run = n / kRun;
    const uint32_t low = load_bytes(plane + 2 * kLow * run) & low_bits(kLow * left);
    if constexpr (kWidth == 1) return {low & 0xFFFF, 0};
    if constexpr (kWidth == 2) return {low, 0};
    if constexpr (kWidth == 3) return {low, load_bytes(plane + plane_bytes(2, n) + 2 * run)};
    const uint32_t high = load_bytes(plane + 2 * kLow * run + 4);
    return {low, high & low_bits(left > 8 ? kLow * (left - 8) : 0)};
  }

  // Bit 2i is set where digit i is an escape.
  UZIP_DEVICE Mask escapes() const {
    if constexpr (kWidth == 1) return spread_half(low);
    if constexpr (kWidth == 4) return full_nibbles(low) | full_nibbles(high) << 16;
    const Mask pairs = low & low >> 1 & kHalfMask;
    if constexpr (kWidth == 2) return pairs;
    return pairs & spread_half(high & 0xFFFF);
  }

  // The symbols, as quads. Offsets from the window's base in `offsets` serve 4-bit digits.
  template <typename Symbols>
  UZIP_DEVICE void expand(const DecodeTables& tables, const Symbols& symbols, Source source,
                          uint32_t quads[kHalfQuads]) const {
    const Mask mask = kWidth >= 3 ? escapes() : 0;
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      uint32_t selector;
      uint32_t candidates = source.symbols[0];
      if constexpr (kWidth == 1) {
        selector = tables.singles[low >> 4 * q & 0xF];
      } else if constexpr (kWidth == 2) {
        selector = tables.pairs[low >> 8 * q & 0xFF];
      } else {
        selector = tables.merges[quad_mask(mask, 0, q)];
        if constexpr (kWidth == 3) {
          const uint32_t digits = unpack<2>(low >> 8 * q) | unpack<1>(high >> 4 * q) << 2;
          candidates = permute(source.symbols[0], source.symbols[1], selector_of(digits));
        } else {
          candidates = symbols.lookup((q < 2 ? low : high) >> 16 * (q & 1));
        }
      }
      quads[q] = permute(load_bytes(source.next), candidates, selector);
      source.next += selector >> 16;
    }
  }

 private:
  // Bit 2i of 16 bits is set where nibble i is 15.
  UZIP_DEVICE static uint32_t full_nibbles(uint32_t nibbles) {
    uint32_t full = nibbles & nibbles >> 1;
    full = full & full >> 2 & 0x11111111u;
    full = (full | full >> 2) & 0x05050505u;
    full = (full | full >> 4) & 0x00550055u;
    return (full | full >> 8) & 0x5555u;
  }
};

// The symbol of each rank. Symbols of more than a byte are offsets from the window's base.
template <DType kDType>
struct RankSymbols {
  static constexpr FloatFormat kFormat = float_format(kDType);
  Table offsets;  // from base
  uint32_t base;
  uint32_t quads[kWindow];  // of four ranks, from each on; beyond the last rubbish

  UZIP_DEVICE static RankSymbols of(const TierParameters& parameters) {
    RankSymbols symbols{offsets_of_ranks(parameters.order), parameters.base, {}};
#pragma unroll
    for (int rank = 0; rank < kWindow; ++rank) {
      const uint32_t* words = symbols.offsets.words + rank / 4;
      const uint32_t next = rank / 4 < kWindow / 4 - 1 ? words[1] : 0;
      symbols.quads[rank] = symbols.of_offsets(funnel_right(words[0], next, 8 * (rank % 4)));
    }
    return symbols;
  }

  // For a selector of four ranks.
  UZIP_DEVICE uint32_t lookup(uint32_t ranks) const { return of_offsets(offsets.lookup(ranks)); }

 private:
  UZIP_DEVICE uint32_t of_offsets(uint32_t quad) const {
    if constexpr (kFormat.symbol_bytes() == 2) return quad;
    const uint32_t symbols = kFormat.exponent_bits == 8
                                 ? add_bytes(quad, repeat(static_cast<int>(base)))
                                 : quad + repeat(static_cast<int>(base));
    return symbols & repeat((kFormat.symbols() - 1) & 0xFF);
  }
};

// The width of a menu's level, and the first rank that it codes.
template <int kMenu, int kLevel>
constexpr int kLevelWidth = static_cast<int>(kWidths<kMenu> >> 4 * kLevel & 15);
template <int kMenu, int kLevel>
constexpr int kFirstRank = kFirstRank<kMenu, kLevel - 1> + (1 << kLevelWidth<kMenu, kLevel - 1>)-1;
template <int kMenu>
constexpr int kFirstRank<kMenu, 0> = 0;

template <DType kDType, int kMenu, int kLevel>
UZIP_DEVICE Source source_of(const RankSymbols<kDType>& symbols, SharedPlace next) {
  constexpr int kRank = kFirstRank<kMenu, kLevel>;
  constexpr bool kWide = kLevelWidth<kMenu, kLevel> == 3 && kRank + 4 < kWindow;
  return {{symbols.quads[kRank], kWide ? symbols.quads[kRank + 4] : 0}, next};
}

// Counts of each lane, of which the sums over the lanes below are wanted: of a level at most 1024
// together. Those of the first may be two, of the halves of a tile.
template <int kMenu>
struct LevelCounts {
  static constexpr int kUsed = kLevels<kMenu> > 4 ? 3 : kLevels<kMenu> > 2 ? 2 : 1;
  uint32_t words[kUsed];

  template <int kLevel>
  UZIP_DEVICE void put(int count) {
    words[kLevel / 2] |= static_cast<uint32_t>(count) << shift(kLevel);
  }
  template <int kLevel>
  UZIP_DEVICE int get() const {
    return static_cast<int>(words[kLevel / 2] >> shift(kLevel) & 0xFFF);
  }
  UZIP_DEVICE void scan(int lane) {
#pragma unroll
    for (int i = 0; i < kUsed; ++i) words[i] = scan32(words[i], lane);
  }

 private:
  UZIP_DEVICE static constexpr int shift(int level) {
    return level == 1 ? 20 : level % 2 == 0 ? 0 : 16;
  }
};

// A level whose digits are in the tail and those below it. A lane has a run of its digits, or two
// where there are more than 512.
template <DType kDType, int kMenu, int kLevel, bool kIsBelow = kLevel == kLevels<kMenu>>
struct DeepLevel {
  static constexpr int kWidth = kLevelWidth<kMenu, kLevel>;
  Digits<kWidth> runs[2];
  int first;        // run of the lane
  int second_from;  // escapes of it
  bool two;
  DeepLevel<kDType, kMenu, kLevel + 1> below;

  // Reads the digits of `n` values, and all below. Returns where what is not read begins.
  UZIP_DEVICE SharedPlace read(SharedPlace plane, int n, int lane, LevelCounts<kMenu>* counts) {
    two = n > kRun * kLanes;
    first = two ? 2 * lane : lane;
    runs[0] = Digits<kWidth>::read(plane, n, first);
    second_from = popcount(runs[0].escapes());
    int count = second_from;
    if (two) {
      runs[1] = Digits<kWidth>::read(plane, n, first + 1);
      count += popcount(runs[1].escapes());
    }
    counts->template put<kLevel>(count);
    const auto total = static_cast<int>(sum32(static_cast<uint32_t>(count)));
    return below.read(plane + digit_plane_bytes(kWidth, n), total, lane, counts);
  }

  // Makes the list of the level's symbols. Returns where it begins.
  UZIP_DEVICE SharedPlace expand(const DecodeTables& tables, const RankSymbols<kDType>& symbols,
                                 const LevelCounts<kMenu>& starts, LevelRoom<kDType>& room,
                                 int lane) const {
    const SharedPlace list = below.expand(tables, symbols, starts, room, lane);
    Source source = source_of<kDType, kMenu, kLevel>(symbols, list + starts.template get<kLevel>());
    auto* to = reinterpret_cast<Chunk*>(room.lists[kLevel & 1]) + first;
    sync_lanes();  // the list below is whole
    expand_run(tables, symbols, runs[0], source, to);
    if (two) {
      source.next += second_from;
      expand_run(tables, symbols, runs[1], source, to + 1);
    }
    return shared_place(room.lists[kLevel & 1]);
  }

  UZIP_DEVICE int n_raw() const { return below.n_raw(); }
  UZIP_DEVICE SharedPlace raw() const { return below.raw(); }

 private:
  UZIP_DEVICE static void expand_run(const DecodeTables& tables, const RankSymbols<kDType>& symbols,
                                     const Digits<kWidth>& digits, const Source& source,
                                     Chunk* to) {
    Chunk chunk;
    digits.expand(tables, symbols, source, chunk.words);
    *to = chunk;
  }
};

// What is below the last level: raw symbols.
template <DType kDType, int kMenu, int kLevel>
struct DeepLevel<kDType, kMenu, kLevel, true> {
  SharedPlace place;
  int n;

  UZIP_DEVICE SharedPlace read(SharedPlace plane, int count, int, LevelCounts<kMenu>*) {
    place = plane;
    n = count;
    return plane + n * float_format(kDType).symbol_bytes();
  }

  UZIP_DEVICE SharedPlace expand(const DecodeTables&, const RankSymbols<kDType>&,
                                 const LevelCounts<kMenu>&, LevelRoom<kDType>& room,
                                 int lane) const {
    if constexpr (float_format(kDType).symbol_bytes() == 1) return place;
    uint32_t* list = room.lists[kLevel & 1];
    for (int i = lane; 4 * i < n + 8; i += kLanes) list[i] = kWideSymbols;
    return shared_place(list);
  }

  UZIP_DEVICE int n_raw() const { return n; }
  UZIP_DEVICE SharedPlace raw() const { return place; }
};

// Bytes of a tile's raw symbols, where they are two bytes each and there are any.
template <DType kDType, int kMenu, int kLevel>
UZIP_DEVICE const uint8_t* wide_raw(const DeepLevel<kDType, kMenu, kLevel>& level,
                                    const Tail& tail) {
  if (float_format(kDType).symbol_bytes() == 1 || level.n_raw() == 0) return nullptr;
  return reinterpret_cast<const uint8_t*>(tail.words) +
         static_cast<int>(level.raw() - shared_place(tail.words));
}

}  // namespace uzip::gpu
