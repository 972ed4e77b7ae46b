// One warp codes one tile of codec tier, in one pass over its values and without a barrier beyond
// the warp.
//
// Each lane keeps the digits of its 32 values, all levels of a value in a byte, as 8 quads. For
// every level, a mask of the values that reach it is counted, a scan over the lanes yields where
// each lane's digits begin in the plane, and the lane ORs its digits there. So values never move
// between lanes. Loops that mostly run once are not unrolled: what surrounds an unrolled loop costs
// more than the loop.
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
};
template <DType kDType>
struct StagedRows {
  static constexpr bool kEarly = false;
  const Chunk* stage;

  template <int kCount>
  UZIP_DEVICE void load(int first, int lane, Run<kDType> rows[kCount]) const {
    load_rows<kDType, kCount>(reinterpret_cast<const uint8_t*>(stage), first, true, lane, rows);
  }
};

// Splits the values, stores the planes of the rests, and leaves the digits; the offsets from the
// window's base go to the room. False: a plane of zero_planes is not zero.
template <DType kDType, int kMenu, typename Rows>
UZIP_DEVICE bool split_rows(const TileCode& code, const DigitTable& table, const Rows& source,
                            uint8_t* head, OffsetRoom<kDType>& room, int lane,
                            uint32_t digits[kQuads]) {
  constexpr FloatFormat kFormat = float_format(kDType);
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
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      quads[q] = Quad<kDType>::split(mine[q / 2].words + q % 2 * Quad<kDType>::kWords, code.base);
    }
    lost |= store_rests<kDType>(code, quads, head, half, lane);
    uint32_t offsets[kHalfQuads];
    uint32_t outside = 0;
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      offsets[q] = quads[q].offset;
      const uint32_t selector = selector_of(offsets[q]);
      outside |= offsets[q] & 0xF0F0F0F0u;
      uint32_t quad = table.low.lookup(selector);
      if (menu.digit_bits() == 8) quad |= table.high.lookup(selector) << 7;
      digits[kHalfQuads * half + q] = quad;
    }
    room.store_half(lane, half, offsets);
    if (kFormat.exponent_bits > 4 && any32(outside != 0)) {
      const uint32_t no_rank = repeat((1 << menu.digit_bits()) - 1);
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) {
        const uint32_t high = offsets[q] >> 4 & 0x0F0F0F0Fu;
        const uint32_t bytes = ((high + 0x0F0F0F0Fu) >> 4 & kOnes) * 0xFF;
        digits[kHalfQuads * half + q] |= bytes & no_rank;
      }
    }
  }
  return !any32(lost != 0);
}

// Stores the digit plane of level 1; returns which values go on to level 2.
template <int kWidth>
UZIP_DEVICE Mask store_first_level(const uint32_t digits[kQuads], uint8_t* plane, int lane) {
  constexpr int kEscape = (1 << kWidth) - 1;
  Mask escaped = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t fields[kHalfQuads];
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      fields[q] = digits[kHalfQuads * half + q] & repeat(kEscape);
    }
    if constexpr (kWidth == 2) {
      const uint32_t word = pack_half<2>(fields);
      reinterpret_cast<uint32_t*>(plane)[32 * half + lane] = word;
      escaped |= (word & word >> 1 & kHalfMask) << half;
    } else {
      uint32_t flags[kHalfQuads];
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) flags[q] = (fields[q] + kOnes) & repeat(1 << kWidth);
      escaped |= pack_half<2>(flags, kWidth) << half;
      if constexpr (kWidth == 3) {
        uint32_t low[kHalfQuads];
#pragma unroll
        for (int q = 0; q < kHalfQuads; ++q) {
          low[q] = fields[q] & repeat(3);
          fields[q] = fields[q] >> 2 & kOnes;
        }
        store_fields<2>(low, plane, half, lane);
        store_fields<1>(fields, plane + plane_bytes(2, kTileValues), half, lane);
      } else {
        store_fields<kWidth>(fields, plane, half, lane);
      }
    }
  }
  return escaped;
}

UZIP_DEVICE Mask store_first_level(int width, const uint32_t digits[kQuads], uint8_t* plane,
                                   int lane) {
  switch (width) {
    case 1:
      return store_first_level<1>(digits, plane, lane);
    case 2:
      return store_first_level<2>(digits, plane, lane);
    case 3:
      return store_first_level<3>(digits, plane, lane);
    default:
      return store_first_level<4>(digits, plane, lane);
  }
}

// ORs up to 32 bits into a plane in shared memory.
UZIP_DEVICE void or_bits(uint32_t* plane, int bit, uint32_t bits) {
  uint32_t* word = plane + (bit >> 5);
  atomic_or(word, funnel_left(0, bits, bit));
  atomic_or(word + 1, funnel_left(bits, 0, bit));
}

// Writes some fields of the quads of one half, all of them 0 but for the values that `indices` tell
// of, as bits of the plane.
UZIP_DEVICE void put_fields(const Gather gathers[kGathers], const uint32_t fields[kHalfQuads],
                            uint32_t indices, uint32_t* plane, int bit) {
  uint32_t packed = 0;
#pragma unroll
  for (int q = kHalfQuads - 1; q >= 0; --q) {
    const Gather gather = gathers[gather_index(indices, q)];
    packed = funnel_left(fields[q] * gather.multiplier, packed, gather.bits);
  }
  or_bits(plane, bit, packed);
}

// Writes a level that many values reach, `start` bits into the tail; returns which go on.
// `gathers`: of the digits, which begin at bit `shift` in the bytes of the quads; `high`: see
// GatherTables.
template <int kWidth>
UZIP_DEVICE Mask put_dense_level(const Gather gathers[kGathers],
                                 const Gather high_gathers[kGathers], int shift,
                                 const uint32_t digits[kQuads], Mask mask, const Places& places,
                                 uint32_t* tail, int start) {
  constexpr int kLow = kWidth == 1 ? 1 : 2;
  Mask escaped = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first = places.first[half];
    const uint32_t indices = gather_indices(mask, half);
    uint32_t fields[kHalfQuads];
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      fields[q] = digits[kHalfQuads * half + q] & repeat(((1 << kLow) - 1) << shift);
    }
    put_fields(gathers, fields, indices, tail, start + kLow * first);
    // Where the level is not reached, digits are 0.
    const uint32_t word = pack_half<2>(fields, shift);
    Mask full = kWidth == 1 ? word : word & word >> 1 & kHalfMask;
    if constexpr (kWidth == 3) {
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) {
        fields[q] = digits[kHalfQuads * half + q] & repeat(4 << shift);
      }
      const int high = start + 8 * plane_bytes(2, places.n);
      put_fields(high_gathers, fields, indices, tail, high + first);
      // The bits may be the highest of their bytes, too far up for the multiplier.
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) fields[q] >>= 2;
      full &= pack_half<2>(fields, shift) & kHalfMask;
    }
    escaped |= full << half;
  }
  return escaped;
}

UZIP_DEVICE Mask put_dense_level(const GatherTables& tables, int level, int width, int shift,
                                 const uint32_t digits[kQuads], Mask mask, const Places& places,
                                 uint32_t* tail, int start) {
  const Gather* gathers = tables.levels[level - 1];
  const Gather* high = tables.high;
  switch (width) {
    case 1:
      return put_dense_level<1>(gathers, high, shift, digits, mask, places, tail, start);
    case 2:
      return put_dense_level<2>(gathers, high, shift, digits, mask, places, tail, start);
    default:
      return put_dense_level<3>(gathers, high, shift, digits, mask, places, tail, start);
  }
}

// Value i of a half of a lane's, as lists have it.
template <DType kDType>
UZIP_DEVICE typename OffsetRoom<kDType>::Listed listed_value(const uint8_t* values,
                                                             OffsetRoom<kDType>& room, int lane,
                                                             int half, uint32_t i) {
  using V = Value<kDType>;
  if constexpr (V::kFormat.symbol_bytes() == 1) {
    return room.half(lane, half)[i];
  } else {
    const auto* words = reinterpret_cast<const typename V::Word*>(values);
    const int index = value_index(lane, 16 * half + static_cast<int>(i));
    return static_cast<uint16_t>(V::symbol(words[index]));
  }
}

// Of a value in a list; kWindow beyond the window.
template <DType kDType>
UZIP_DEVICE uint32_t offset_of(uint32_t listed, uint32_t base) {
  constexpr FloatFormat kFormat = float_format(kDType);
  const uint32_t offset =
      kFormat.symbol_bytes() == 1 ? listed : (listed - base) & (kFormat.symbols() - 1);
  return offset < kWindow ? offset : kWindow;
}
template <DType kDType>
UZIP_DEVICE uint32_t symbol_of(uint32_t listed, uint32_t base) {
  constexpr FloatFormat kFormat = float_format(kDType);
  if constexpr (kFormat.symbol_bytes() == 2) return listed;
  return (listed + base) & (kFormat.symbols() - 1);
}

// Lists the values in a mask.
template <DType kDType>
UZIP_DEVICE void list_values(const uint8_t* values, Mask mask, const Places& places,
                             OffsetRoom<kDType>& room, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Mask mine = mask >> half & kHalfMask;
    // From the last to the first: the highest bit is found faster than the lowest.
    auto* to = room.list + places.first[half] + popcount(mine);
#pragma unroll 1
    while (mine != 0) {
      const auto bit = static_cast<uint32_t>(highest_bit(mine));
      mine ^= 1u << bit;
      *--to = listed_value(values, room, lane, half, bit / 2);
    }
  }
  sync_lanes();
}

// Stores a plane of the fields of two values of each lane, `fields`: those of one byte are brought
// together in one lane.
template <int kWidth>
UZIP_DEVICE void store_pairs(uint32_t fields, int bytes, uint8_t* plane, int lane) {
  static_assert(kWidth <= 2);
  constexpr int kShare = 4 / kWidth;  // lanes whose fields make a byte
#pragma unroll
  for (int by = 1; by < kShare; by *= 2) fields |= shuffle_xor32(fields, by) << 2 * kWidth * by;
  const int byte = lane / kShare;
  if (lane % kShare == 0 && byte < bytes) plane[byte] = static_cast<uint8_t>(fields);
}

// Writes a level of the n values in the list, and leaves those that go on; returns how many these
// are. `digits_of`: by offset from the window's base.
template <DType kDType, int kWidth>
UZIP_DEVICE int put_listed_level(const uint8_t* digits_of, uint32_t base, int shift, int n,
                                 uint8_t* plane, OffsetRoom<kDType>& room, int lane) {
  using Listed = typename OffsetRoom<kDType>::Listed;
  using Two = typename Item<2 * sizeof(Listed)>::Word;
  constexpr uint32_t kEscape = (1u << kWidth) - 1;
  const uint32_t two = reinterpret_cast<const Two*>(room.list)[lane];
  const uint32_t listed[2] = {static_cast<Listed>(two), two >> 8 * sizeof(Listed)};
  uint32_t digit[2];
  uint32_t votes[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Of what the list has not, any digit but an escape.
    const uint32_t found = digits_of[offset_of<kDType>(listed[i], base)] >> shift & kEscape;
    digit[i] = 2 * lane + i < n ? found : 0;
    votes[i] = ballot32(digit[i] == kEscape);
  }
  if constexpr (kWidth == 1) {
    store_pairs<1>(digit[0] | digit[1] << 1, plane_bytes(1, n), plane, lane);
  } else {
    const int bytes = plane_bytes(2, n);
    store_pairs<2>((digit[0] & 3) | (digit[1] & 3) << 2, bytes, plane, lane);
    if constexpr (kWidth == 3) {
      const uint32_t high = digit[0] >> 2 | digit[1] >> 2 << 1;
      store_pairs<1>(high, plane_bytes(1, n), plane + bytes, lane);
    }
  }
  if ((votes[0] | votes[1]) == 0) return 0;
  const uint32_t below = (1u << lane) - 1;
  int place = popcount(votes[0] & below) + popcount(votes[1] & below);
  sync_lanes();  // the list has been read
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (digit[i] == kEscape) room.list[place++] = static_cast<Listed>(listed[i]);
  }
  sync_lanes();
  return popcount(votes[0]) + popcount(votes[1]);
}
template <DType kDType>
UZIP_DEVICE int put_listed_level(const uint8_t* digits_of, uint32_t base, int width, int shift,
                                 int n, uint8_t* plane, OffsetRoom<kDType>& room, int lane) {
  switch (width) {
    case 1:
      return put_listed_level<kDType, 1>(digits_of, base, shift, n, plane, room, lane);
    case 2:
      return put_listed_level<kDType, 2>(digits_of, base, shift, n, plane, room, lane);
    default:
      return put_listed_level<kDType, 3>(digits_of, base, shift, n, plane, room, lane);
  }
}

UZIP_DEVICE void store_symbol(uint8_t* raw, int place, uint32_t symbol, int bytes) {
  raw[bytes * place] = static_cast<uint8_t>(symbol);
  if (bytes == 2) raw[2 * place + 1] = static_cast<uint8_t>(symbol >> 8);
}

// Writes the symbols of values without a rank behind the digits.
template <DType kDType>
UZIP_DEVICE void put_raw_symbols(const TileCode& code, const uint8_t* values, Mask mask,
                                 Places places, OffsetRoom<kDType>& room, uint8_t* raw, int lane) {
#pragma unroll 1
  for (; mask != 0; mask &= mask - 1) {
    const int i = lowest_bit(mask);
    const uint32_t listed = listed_value(values, room, lane, i & 1, static_cast<uint32_t>(i) / 2);
    store_symbol(raw, places.take(i & 1), symbol_of<kDType>(listed, code.base),
                 float_format(kDType).symbol_bytes());
  }
}

// What a block knows of the digits, in shared memory.
struct EncodeTables {
  GatherTables gathers;
  uint8_t digits_of[kLanes];  // by offset from the window's base; beyond the window none has a rank

  // Those of ForeseenMenus, whose gathers can be made before the menu is chosen. By a block, or all
  // but its first warp.
  static_assert(kThreads - kLanes >= kMaxLevels * kGathers);
  UZIP_DEVICE void foresee(int thread) { gathers.fill(Menu::make<3>(), thread); }
  // What is missing then. By the first warp.
  UZIP_DEVICE void fill_digits(const Menu& menu, const DigitTable& digits, int lane) {
    uint32_t all = (1u << menu.digit_bits()) - 1;
    if (lane < kWindow) {
      all = reinterpret_cast<const uint8_t*>(digits.low.words)[lane] |
            static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(digits.high.words)[lane]) << 7;
    }
    digits_of[lane] = static_cast<uint8_t>(all);
  }
  // Of any menu. By a block.
  UZIP_DEVICE void fill(const Menu& menu, const DigitTable& digits, int thread) {
    gathers.fill(menu, thread);
    if (thread < kLanes) fill_digits(menu, digits, thread);
  }
};

// Writes the end of a tail, from byte `bytes` on: what follows when so few values reach level
// `first` that they fit a list. Returns the bytes of the whole tail, or kNotCodable.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_sparse_tail(const TileCode& code, const EncodeTables& tables,
                                   const uint8_t* values, Mask mask, const Places& places,
                                   int first, int bytes, int limit, OffsetRoom<kDType>& room,
                                   uint8_t* tail, int lane) {
  constexpr int kSymbolBytes = float_format(kDType).symbol_bytes();
  const Menu menu = fixed_menu<kMenu>(code.menu);
  list_values(values, mask, places, room, lane);
  int n = places.n;
#pragma unroll kLevelUnroll < kMenu>
  for (int level = 1; level < menu.levels; ++level) {
    if (level < first) continue;  // so that the level is a constant where the menu is
    const int width = menu.width(level);
    uint8_t* plane = tail + bytes;
    bytes += digit_plane_bytes(width, n);
    if (bytes >= limit) return kNotCodable;
    n = put_listed_level(tables.digits_of, code.base, width, menu.shift(level), n, plane, room,
                         lane);
  }
  uint8_t* raw = tail + bytes;
  bytes += n * kSymbolBytes;
  if (bytes >= limit) return kNotCodable;
#pragma unroll 1
  for (int i = lane; i < n; i += kLanes) {
    store_symbol(raw, i, symbol_of<kDType>(room.list[i], code.base), kSymbolBytes);
  }
  return bytes;
}

// Writes a tile's tail, from byte `bytes` of the room on, before the end of the first word; the
// bytes before it stay, and those behind it in that word are 0. The offsets are in the room.
// `mask`: the values beyond level 1. Returns where it ends, or kNotCodable when that is `limit` or
// more.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_tail(const TileCode& code, const EncodeTables& tables, const uint8_t* values,
                            const uint32_t digits[kQuads], Mask mask, int bytes, int limit,
                            OffsetRoom<kDType>& room, uint32_t* tail, int lane) {
  const Menu menu = fixed_menu<kMenu>(code.menu);
  int cleared = (bytes + 3) / 4;  // words
#pragma unroll kLevelUnroll < kMenu>
  for (int level = 1; level < menu.levels; ++level) {
    const Places places = Places::of(mask, lane);
    if (places.n <= kSparse) {
      return encode_sparse_tail<kDType, kMenu>(code, tables, values, mask, places, level, bytes,
                                               limit, room, reinterpret_cast<uint8_t*>(tail), lane);
    }
    const int width = menu.width(level);
    const int begin = 8 * bytes;
    bytes += digit_plane_bytes(width, places.n);
    if (bytes >= limit) return kNotCodable;
    const int words = (bytes + 3) / 4 + 1;
#pragma unroll 1
    for (int word = cleared + lane; word < words; word += kLanes) tail[word] = 0;
    cleared = words;
    sync_lanes();
    mask = put_dense_level(tables.gathers, level, width, menu.shift(level), digits, mask, places,
                           tail, begin);
    sync_lanes();
  }
  const Places places = Places::of(mask, lane);
  uint8_t* raw = reinterpret_cast<uint8_t*>(tail) + bytes;
  bytes += places.n * float_format(kDType).symbol_bytes();
  if (bytes >= limit) return kNotCodable;
  put_raw_symbols<kDType>(code, values, mask, places, room, raw, lane);
  return bytes;
}

// Codes a tile of the dense layout, from level 1 on, when its values are split. The tail begins
// with byte `begin` of a word, as encode_tail() says.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_digits(const TileCode& code, const EncodeTables& tables,
                              const uint8_t* values, const uint32_t digits[kQuads], uint8_t* head,
                              OffsetRoom<kDType>& room, uint32_t* tail, int lane, int begin = 0) {
  const int width = fixed_menu<kMenu>(code.menu).width(0);
  const Mask mask = store_first_level(width, digits, head + code.digits, lane);
  const int limit = begin + float_format(kDType).tile_bytes() - code.stride;
  const int end = encode_tail<kDType, kMenu>(code, tables, values, digits, mask, begin, limit, room,
                                             tail, lane);
  return end == kNotCodable ? end : end - begin;
}

// Codes a tile of the dense layout: its head in place, its tail to `tail`. Returns the bytes of the
// tail, or kNotCodable: then the tile is to be raw.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_dense_tile(const TileCode& code, const DigitTable& digit_table,
                                  const EncodeTables& tables, const uint8_t* values, bool aligned,
                                  uint8_t* head, OffsetRoom<kDType>& room, uint32_t* tail,
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
                                          room.offsets, room.tail, lane);
}

}  // namespace uzip::gpu
