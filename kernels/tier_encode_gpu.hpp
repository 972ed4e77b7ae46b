// One warp codes one tile of codec tier, in one pass over its values and without a barrier beyond
// the warp.
//
// Each lane looks up the digits of its 32 values, all levels of a value in a byte, four values at a
// time, and transposes them to words with one field of 16 values each, as planes have them. The
// first level is stored so. Of every other level, a scan over the lanes of how many values reach it
// yields where each lane's digits begin in the plane; they are brought together by a table and ORed
// there. So values never move between lanes.
#pragma once

#include "tile_code_gpu.hpp"

namespace uzip::gpu {

// The fields of one half of a lane's values as a word: 16 of 1 or 2 bits. They begin at bit `shift`
// of their bytes, where a byte has room for them; elsewhere the quads are 0.
template <int kWidth>
UZIP_DEVICE uint32_t pack_half(const uint32_t quads[kHalfQuads], int shift = 0) {
  static_assert(kWidth <= 2);
  const uint32_t multiplier = (kWidth == 1 ? kGatherBits : kGatherPairs) >> shift;
  uint32_t word = 0;
#pragma unroll
  for (int i = kHalfQuads - 1; i >= 0; --i) {
    word = funnel_left(quads[i] * multiplier, word, 4 * kWidth);
  }
  return word;
}

// Stores a plane of kWidth-bit fields of one half of a tile: 16 fields of each lane.
template <int kWidth>
UZIP_DEVICE void store_fields(const uint32_t quads[kHalfQuads], uint8_t* plane, int half,
                              int lane) {
  if constexpr (kWidth == 8) {
    (reinterpret_cast<Chunk*>(plane) + static_cast<uint32_t>(lane))[32 * half] =
        Chunk{{quads[0], quads[1], quads[2], quads[3]}};
  } else if constexpr (kWidth == 4) {
    Pair pair;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pair.words[i] =
          funnel_left(pack_top<4>(quads[2 * i]), pack_top<4>(quads[2 * i + 1]) >> 16, 16);
    }
    reinterpret_cast<Pair*>(plane)[32 * half + lane] = pair;
  } else if constexpr (kWidth == 2) {
    reinterpret_cast<uint32_t*>(plane)[32 * half + lane] = pack_half<2>(quads);
  } else {
    reinterpret_cast<uint16_t*>(plane)[32 * half + lane] =
        static_cast<uint16_t>(pack_half<1>(quads));
  }
}

// Stores the planes of the rests of one half; returns the bits of the planes that the frame lacks.
template <DType kDType>
UZIP_DEVICE uint32_t store_rests(const TileCode& code, const Quad<kDType> quads[kHalfQuads],
                                 uint8_t* head, int half, int lane) {
  constexpr FloatFormat kFormat = float_format(kDType);
  uint32_t lost = 0;
  uint32_t fields[kHalfQuads];
#pragma unroll
  for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) fields[q] = quads[q].byte_plane[plane];
    if (code.stores(plane)) {
      store_fields<8>(fields, head + code.byte_plane(plane), half, lane);
    } else {
      lost |= fields[0] | fields[1] | fields[2] | fields[3];
    }
  }
  if constexpr (kFormat.sub_bits[0] != 0) {
    uint8_t* sub = head + code.byte_plane(kFormat.byte_planes);
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) fields[q] = quads[q].sub_plane[0];
    store_fields<kFormat.sub_bits[0]>(fields, sub, half, lane);
    if constexpr (kFormat.sub_bits[1] != 0) {
      sub += plane_bytes(kFormat.sub_bits[0], kTileValues);
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) fields[q] = quads[q].sub_plane[1];
      store_fields<kFormat.sub_bits[1]>(fields, sub, half, lane);
    }
  }
  return lost;
}

// Loads a lane's values of some rows of a tile.
template <DType kDType, int kCount>
UZIP_DEVICE void load_rows(const uint8_t* values, int first, bool aligned, int lane,
                           Run<kDType> rows[kCount]) {
  constexpr int kItemsize = float_format(kDType).itemsize;
  const uint8_t* from = values + static_cast<uint32_t>(lane * 8 * kItemsize);
  from += first * kRowValues * kItemsize;
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      rows[i] = Run<kDType>::template load<true>(from + i * kRowValues * kItemsize);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      rows[i] = Run<kDType>::template load<false>(from + i * kRowValues * kItemsize);
    }
  }
}

// Where a lane's rows of a tile come from: memory, or a copy in shared memory, of chunks.
template <DType kDType>
struct MemoryRows {
  // Few enough to be loaded all at once.
  static constexpr bool kEarly = float_format(kDType).itemsize <= 2;
  const uint8_t* values;
  bool aligned;

  template <int kCount>
  UZIP_DEVICE void load(int first, int lane, Run<kDType> rows[kCount]) const {
    load_rows<kDType, kCount>(values, first, aligned, lane, rows);
  }
  UZIP_DEVICE const uint8_t* bytes() const { return values; }
};
template <DType kDType>
struct StagedRows {
  static constexpr bool kEarly = false;
  const Chunk* stage;

  template <int kCount>
  UZIP_DEVICE void load(int first, int lane, Run<kDType> rows[kCount]) const {
    load_rows<kDType, kCount>(bytes(), first, true, lane, rows);
  }
  UZIP_DEVICE const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(stage); }
};

// Which of a lane's values reach a level: bit 2i of a half stands for value i of it.
struct Reached {
  uint32_t halves[2];

  UZIP_DEVICE static Reached of(Mask mask) { return {{mask & kHalfMask, mask >> 1 & kHalfMask}}; }
  UZIP_DEVICE Places places(int lane) const { return Places::of(halves[0], halves[1], lane); }
  UZIP_DEVICE int count() const { return popcount(halves[0]) + popcount(halves[1]); }
};

// The digits of a lane's values: of each half four words of pairs of bits, pair i of value i.
constexpr int kDigitWords = 4;

// A field of all values of a half, as pairs of bits.
UZIP_DEVICE uint32_t field_of(const uint32_t pairs[kDigitWords], int place, int width) {
  uint32_t word = pairs[0];
  // Not by index, which would need an array in memory where the menu is no constant.
  if (place >> 1 == 1) word = pairs[1];
  if (place >> 1 == 2) word = pairs[2];
  if (place >> 1 == 3) word = pairs[3];
  return width == 1 ? word >> (place & 1) & kHalfMask : word;
}
// Which values have all bits of the field set.
UZIP_DEVICE uint32_t full_fields(uint32_t field, int width) {
  return width == 1 ? field : field & field >> 1 & kHalfMask;
}

// The fields of a level of all values of a half.
struct Level {
  int width;
  uint32_t low;   // of two bits, or of one
  uint32_t high;  // of wider digits, the other bits

  UZIP_DEVICE static Level of(const Menu& menu, int level, const uint32_t pairs[kDigitWords]) {
    const int width = menu.width(level);
    return {width, field_of(pairs, menu.low_place(level), width < 2 ? 1 : 2),
            width > 2 ? field_of(pairs, menu.high_place(level), width - 2) : 0};
  }
  // Digits of values that the level is not reached by are 0.
  UZIP_DEVICE uint32_t escapes() const {
    const uint32_t full = full_fields(low, width < 2 ? 1 : 2);
    return width > 2 ? full & full_fields(high, width - 2) : full;
  }
};

// Byte by byte, pair p of word w becomes pair w of word p.
UZIP_DEVICE void transpose_pairs(const uint32_t words[kHalfQuads], uint32_t pairs[kDigitWords]) {
  constexpr uint32_t kLowHalves = 0x0F0F0F0Fu;
  constexpr uint32_t kEven = 0x33333333u;
  const uint32_t a = blend(kLowHalves, words[0], words[2] << 4);
  const uint32_t b = blend(kLowHalves, words[1], words[3] << 4);
  const uint32_t c = blend(kLowHalves, words[0] >> 4, words[2]);
  const uint32_t d = blend(kLowHalves, words[1] >> 4, words[3]);
  pairs[0] = blend(kEven, a, b << 2);
  pairs[1] = blend(kEven, a >> 2, b);
  pairs[2] = blend(kEven, c, d << 2);
  pairs[3] = blend(kEven, c >> 2, d);
}

// Looks up the digits of a half's symbols.
template <int kMenu>
UZIP_DEVICE void look_up_digits(const Menu& menu, const DigitTable& table,
                                const uint32_t symbols[kHalfQuads], uint32_t pairs[kDigitWords]) {
  // Bytes of two values each, of the first eight and of the others; byte k of value k of the quads.
  const uint32_t first = blend(0x0F0F0F0Fu, symbols[0], symbols[1] << 4);
  const uint32_t second = blend(0x0F0F0F0Fu, symbols[2], symbols[3] << 4);
  constexpr uint32_t kSelectors[kHalfQuads] = {0x40, 0x51, 0x62, 0x73};
  uint32_t digits[kHalfQuads];  // of value k of each quad
#pragma unroll
  for (int k = 0; k < kHalfQuads; ++k) {
    const uint32_t selector = permute(first, second, kSelectors[k]);
    digits[k] = table.low.lookup(selector);
    if (menu.digit_bits == 8) digits[k] |= table.high.lookup(selector) << 7;
  }
  transpose_pairs(digits, pairs);
}

// Makes digits of values outside the window say that there is no rank. `outside` as Quad has it.
UZIP_DEVICE void put_no_ranks(const Menu& menu, const uint32_t outside[kHalfQuads],
                              uint32_t pairs[kDigitWords]) {
  uint32_t flags[kHalfQuads];
#pragma unroll
  for (int q = 0; q < kHalfQuads; ++q) {
    flags[q] = ((outside[q] >> 4) + 0x0F0F0F0Fu) >> 4 & kOnes;
  }
  const uint32_t values = pack_half<2>(flags) * 3;
#pragma unroll
  for (int i = 0; i < kDigitWords; ++i) {
    const auto bits = ((1u << menu.digit_bits) - 1) >> 2 * i & 3;
    pairs[i] |= values & bits * kHalfMask;
  }
}

// Which values have no rank.
UZIP_DEVICE Reached without_rank(const Menu& menu, const uint32_t digits[kQuads]) {
  Reached found;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t full = ~0u;
#pragma unroll
    for (int i = 0; i < kDigitWords; ++i) {
      const auto bits = ((1u << menu.digit_bits) - 1) >> 2 * i & 3;
      full &= digits[kDigitWords * half + i] | ~(bits * kHalfMask);
    }
    found.halves[half] = full & full >> 1 & kHalfMask;
  }
  return found;
}

// Calls put(place, symbol) for the symbols of the values in a mask, in order of position.
template <DType kDType, typename Put>
UZIP_DEVICE void each_symbol(const uint8_t* values, const Reached& reached, const Places& places,
                             int lane, const Put& put) {
  using V = Value<kDType>;
  const auto* words = reinterpret_cast<const typename V::Word*>(values);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int place = places.first[half];
#pragma unroll 1
    for (uint32_t mask = reached.halves[half]; mask != 0; mask &= mask - 1) {
      const int i = 16 * half + (lowest_bit(mask) >> 1);
      put(place++, static_cast<uint32_t>(V::symbol(words[value_index(lane, i)])));
    }
  }
}

// Splits the values, stores the planes of the rests, and leaves the digits, those of values that
// are not `present` as 0; few symbols without a rank go to the room. False: a plane of zero_planes
// is not zero.
template <DType kDType, int kMenu, typename Rows>
UZIP_DEVICE bool split_rows(const TileCode& code, const DigitTable& table, const Rows& source,
                            uint8_t* head, RawRoom<kDType>& room, int lane, uint32_t digits[kQuads],
                            Mask present = ~Mask{0}) {
  const Menu menu = fixed_menu<kMenu>(code.menu);
  constexpr int kHalfRows = kRows / 2;
  Run<kDType> rows[kRows];
  if constexpr (Rows::kEarly) source.template load<kRows>(0, lane, rows);
  uint32_t lost = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Run<kDType>* mine = rows + kHalfRows * half;
    if constexpr (!Rows::kEarly) source.template load<kHalfRows>(kHalfRows * half, lane, mine);
    Quad<kDType> quads[kHalfQuads];
    uint32_t symbols[kHalfQuads];
    uint32_t outside[kHalfQuads];
    uint32_t any = 0;
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      quads[q] = Quad<kDType>::split(mine[q / 2].words + q % 2 * Quad<kDType>::kWords, code.base);
      symbols[q] = quads[q].symbol;
      outside[q] = Quad<kDType>::outside(symbols[q], code.base);
      any |= outside[q];
    }
    lost |= store_rests<kDType>(code, quads, head, half, lane);
    uint32_t* pairs = digits + kDigitWords * half;
    look_up_digits<kMenu>(menu, table, symbols, pairs);
    if (float_format(kDType).exponent_bits > 4 && any32(any != 0)) {
      put_no_ranks(menu, outside, pairs);
    }
    const uint32_t kept = (present >> half & kHalfMask) * 3;
#pragma unroll
    for (int i = 0; i < kDigitWords; ++i) pairs[i] &= kept;
  }
  const Reached raw = without_rank(menu, digits);
  if (any32((raw.halves[0] | raw.halves[1]) != 0)) {
    const Places places = raw.places(lane);
    if (places.n <= kFewRaw) {
      each_symbol<kDType>(source.bytes(), raw, places, lane, [&](int place, uint32_t symbol) {
        room.symbols[place] = static_cast<typename RawRoom<kDType>::Symbol>(symbol);
      });
    }
  }
  return !any32(lost != 0);
}

// Stores the digit plane of level 1; returns which values go on to level 2.
UZIP_DEVICE Reached store_first_level(const Menu& menu, const uint32_t digits[kQuads],
                                      uint8_t* plane, int lane) {
  Reached escaped;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Level level = Level::of(menu, 0, digits + kDigitWords * half);
    const int place = 32 * half + lane;
    if (level.width == 1) {
      reinterpret_cast<uint16_t*>(plane)[place] = static_cast<uint16_t>(gather_half(level.low));
    } else if (level.width == 4) {
      reinterpret_cast<Pair*>(plane)[place] =
          Pair{{spread_pairs(level.low) | spread_pairs(level.high) << 2,
                spread_pairs(level.low >> 16) | spread_pairs(level.high >> 16) << 2}};
    } else {
      reinterpret_cast<uint32_t*>(plane)[place] = level.low;
    }
    if (level.width == 3) {
      reinterpret_cast<uint16_t*>(plane + plane_bytes(2, kTileValues))[place] =
          static_cast<uint16_t>(gather_half(level.high));
    }
    escaped.halves[half] = level.escapes();
  }
  return escaped;
}

// ORs up to 32 bits into a plane in shared memory.
UZIP_DEVICE void or_bits(uint32_t* plane, int bit, uint32_t bits) {
  uint32_t* word = plane + (bit >> 5);
  or_word(word, funnel_left(0, bits, bit));
  or_word(word + 1, funnel_left(bits, 0, bit));
}

// Writes the digits of the values that reach a level, `start` bits into a plane of zeros; returns
// which go on.
UZIP_DEVICE Reached put_level(const EncodeTables& tables, const Menu& menu, int index,
                              const uint32_t digits[kQuads], const Reached& reached,
                              const Places& places, uint32_t* plane, int start) {
  Reached escaped;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Level level = Level::of(menu, index, digits + kDigitWords * half);
    const int first = places.first[half];
    const uint32_t mask = reached.halves[half];
    const uint32_t low = tables.compress(level.low, mask);
    if (level.width == 1) {
      or_bits(plane, start + first, gather_half(low));
    } else if (level.width == 4) {
      const uint32_t high = tables.compress(level.high, mask);
      const int bit = start + 4 * first;
      or_bits(plane, bit, spread_pairs(low) | spread_pairs(high) << 2);
      or_bits(plane, bit + 32, spread_pairs(low >> 16) | spread_pairs(high >> 16) << 2);
    } else {
      or_bits(plane, start + 2 * first, low);
    }
    if (level.width == 3) {
      const uint32_t high = gather_half(tables.compress(level.high, mask));
      or_bits(plane, start + 8 * plane_bytes(2, places.n) + first, high);
    }
    escaped.halves[half] = level.escapes();
  }
  return escaped;
}

UZIP_DEVICE void store_symbol(uint8_t* raw, int place, uint32_t symbol, int bytes) {
  raw[bytes * place] = static_cast<uint8_t>(symbol);
  if (bytes == 2) raw[2 * place + 1] = static_cast<uint8_t>(symbol >> 8);
}

// Writes the n symbols of values without a rank behind the digits.
template <DType kDType>
UZIP_DEVICE void put_raw_symbols(const uint8_t* values, const Reached& reached, int n,
                                 const RawRoom<kDType>& room, uint8_t* raw, int lane) {
  constexpr int kBytes = float_format(kDType).symbol_bytes();
  if (n <= kFewRaw) {
#pragma unroll 1
    for (int i = lane; i < n; i += kLanes) store_symbol(raw, i, room.symbols[i], kBytes);
    return;
  }
  each_symbol<kDType>(
      values, reached, reached.places(lane), lane,
      [&](int place, uint32_t symbol) { store_symbol(raw, place, symbol, kBytes); });
}

// Writes a tile's tail. `reached`: the values beyond level 1. Returns its bytes, or kNotCodable
// when they are `limit` or more.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_tail(const TileCode& code, const EncodeTables& tables, const uint8_t* values,
                            const uint32_t digits[kQuads], Reached reached, int limit,
                            const RawRoom<kDType>& room, uint32_t* tail, int lane) {
  const Menu menu = fixed_menu<kMenu>(code.menu);
  int bytes = 0;
  int cleared = 0;  // words
#pragma unroll kLevelUnroll < kMenu>
  for (int level = 1; level < menu.levels; ++level) {
    const Places places = reached.places(lane);
    const int begin = 8 * bytes;
    bytes += digit_plane_bytes(menu.width(level), places.n);
    if (bytes >= limit) return kNotCodable;
    const int words = (bytes + 3) / 4 + 1;
#pragma unroll 1
    for (; cleared < words; cleared += kLanes) tail[cleared + lane] = 0;
    sync_lanes();
    reached = put_level(tables, menu, level, digits, reached, places, tail, begin);
  }
  const auto n = static_cast<int>(sum32(static_cast<uint32_t>(reached.count())));
  uint8_t* raw = reinterpret_cast<uint8_t*>(tail) + bytes;
  bytes += n * float_format(kDType).symbol_bytes();
  if (bytes >= limit) return kNotCodable;
  sync_lanes();
  if (n != 0) put_raw_symbols<kDType>(values, reached, n, room, raw, lane);
  return bytes;
}

// Codes a tile of the dense layout, from level 1 on, when its values are split.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_digits(const TileCode& code, const EncodeTables& tables,
                              const uint8_t* values, const uint32_t digits[kQuads], uint8_t* head,
                              RawRoom<kDType>& room, uint32_t* tail, int lane) {
  const Reached reached =
      store_first_level(fixed_menu<kMenu>(code.menu), digits, head + code.digits, lane);
  const int limit = float_format(kDType).tile_bytes() - code.stride;
  return encode_tail<kDType, kMenu>(code, tables, values, digits, reached, limit, room, tail, lane);
}

// Codes a tile of the dense layout: its head in place, its tail to `tail`. Returns the bytes of the
// tail, or kNotCodable: then the tile is to be raw.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_dense_tile(const TileCode& code, const DigitTable& digit_table,
                                  const EncodeTables& tables, const uint8_t* values, bool aligned,
                                  uint8_t* head, RawRoom<kDType>& room, uint32_t* tail,
                                  int lane) {
  uint32_t digits[kQuads];
  if (!split_rows<kDType, kMenu>(code, digit_table, MemoryRows<kDType>{values, aligned}, head, room,
                                 lane, digits)) {
    return kNotCodable;
  }
  return encode_digits<kDType, kMenu>(code, tables, values, digits, head, room, tail, lane);
}
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_dense_tile(const TileCode& code, const DigitTable& digit_table,
                                  const EncodeTables& tables, const uint8_t* values, bool aligned,
                                  uint8_t* head, WarpRoom<kDType>& room, int lane) {
  return encode_dense_tile<kDType, kMenu>(code, digit_table, tables, values, aligned, head,
                                          room.raw, room.tail, lane);
}

}  // namespace uzip::gpu
