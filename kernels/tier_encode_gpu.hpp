// One warp codes one tile of codec tier, in one pass over its values and without a barrier beyond
// the warp.
//
// Each lane keeps the digits of its 32 values, all levels of a value in a byte, as 8 quads. For
// every level, a mask of the values that reach it is counted, a scan over the lanes yields where
// each lane's digits begin in the plane, and the lane ORs its digits there. So values never move
// between lanes.
#pragma once

#include "tile_code_gpu.hpp"

namespace uzip::gpu {

// Stores a plane of kWidth-bit fields of one half of a tile: 16 fields of each lane.
template <int kWidth>
UZIP_DEVICE void store_fields(const uint32_t quads[kHalfQuads], uint8_t* plane, int half,
                              int lane) {
  if constexpr (kWidth == 8) {
    reinterpret_cast<Chunk*>(plane)[32 * half + lane] =
        Chunk{{quads[0], quads[1], quads[2], quads[3]}};
  } else if constexpr (kWidth == 4) {
    Pair pair;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pair.words[i] =
          funnel_left(pack_top<4>(quads[2 * i]), pack_top<4>(quads[2 * i + 1]) >> 16, 16);
    }
    reinterpret_cast<Pair*>(plane)[32 * half + lane] = pair;
  } else {
    uint32_t word = 0;
#pragma unroll
    for (int i = kHalfQuads - 1; i >= 0; --i) {
      word = funnel_left(pack_top<kWidth>(quads[i]), word, 4 * kWidth);
    }
    if constexpr (kWidth == 2) {
      reinterpret_cast<uint32_t*>(plane)[32 * half + lane] = word;
    } else {
      reinterpret_cast<uint16_t*>(plane)[32 * half + lane] = static_cast<uint16_t>(word);
    }
  }
}

// Splits the values, stores the planes of the rests, and leaves the digits. False: a plane of
// zero_planes is not zero.
template <DType kDType>
UZIP_DEVICE bool split_tile(const TileCode& code, const DigitTable& table, const uint8_t* values,
                            bool aligned, uint8_t* head, int lane, uint32_t digits[kQuads]) {
  constexpr FloatFormat kFormat = float_format(kDType);
  uint32_t lost = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Quad<kDType> quads[kHalfQuads];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int first = value_index(lane, 16 * half + 8 * r);
      const auto run = Run<kDType>::load(values + first * kFormat.itemsize, aligned);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        quads[2 * r + q] = Quad<kDType>::split(run.words + q * Quad<kDType>::kWords, code.base);
      }
    }
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
    uint32_t outside = 0;
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      const uint32_t selector = selector_of(quads[q].offset);
      outside |= quads[q].offset & 0xF0F0F0F0u;
      uint32_t quad = table.low.lookup(selector);
      if (code.menu.digit_bits() == 8) quad |= table.high.lookup(selector) << 7;
      digits[kHalfQuads * half + q] = quad;
    }
    if (kFormat.exponent_bits > 4 && any32(outside != 0)) {
      const uint32_t no_rank = repeat((1 << code.menu.digit_bits()) - 1);
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) {
        const uint32_t high = quads[q].offset >> 4 & 0x0F0F0F0Fu;
        const uint32_t bytes = ((high + 0x0F0F0F0Fu) >> 4 & kOnes) * 0xFF;
        digits[kHalfQuads * half + q] |= bytes & no_rank;
      }
    }
  }
  return !any32(lost != 0);
}

// Stores the digit plane of level 1; returns which values of the lane go on to level 2.
template <int kWidth>
UZIP_DEVICE uint32_t store_first_level(const uint32_t digits[kQuads], uint8_t* plane, int lane) {
  constexpr int kEscape = (1 << kWidth) - 1;
  uint32_t escaped = 0;
#pragma unroll
  for (int half = 1; half >= 0; --half) {
    uint32_t fields[kHalfQuads];
#pragma unroll
    for (int q = kHalfQuads - 1; q >= 0; --q) {
      fields[q] = digits[kHalfQuads * half + q] & repeat(kEscape);
      const uint32_t flags = (fields[q] + kOnes) & repeat(1 << kWidth);
      escaped = funnel_left(pack_flags<kWidth>(flags), escaped, 4);
    }
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
  return escaped;
}

UZIP_DEVICE uint32_t store_first_level(int width, const uint32_t digits[kQuads], uint8_t* plane,
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
  const int shift = bit & 31;
  atomic_or(word, bits << shift);
  const uint32_t rest = funnel_left(bits, 0, shift);
  if (rest != 0) atomic_or(word + 1, rest);
}

// Writes the fields, which are 0 but for the values in the mask of one half, as bits of the plane.
template <int kWidth>
UZIP_DEVICE void put_fields(const GatherTables& tables, const uint32_t fields[kHalfQuads],
                            uint32_t mask, uint32_t* plane, int bit) {
  uint32_t packed = 0;
#pragma unroll
  for (int q = kHalfQuads - 1; q >= 0; --q) {
    const Gather gather = tables.gathers[kWidth - 1][mask >> 4 * q & 15];
    packed = funnel_left(fields[q] * gather.multiplier, packed, gather.bits);
  }
  or_bits(plane, bit, packed);
}

// Writes a further level that many values reach, `start` bits into the tail; returns which of the
// lane's values go on.
template <int kWidth>
UZIP_DEVICE uint32_t put_dense_level(const GatherTables& tables, int shift,
                                     const uint32_t digits[kQuads], uint32_t mask,
                                     const Places& places, uint32_t* tail, int start) {
  uint32_t escaped = 0;
#pragma unroll
  for (int half = 1; half >= 0; --half) {
    const uint32_t reached = mask >> 16 * half & 0xFFFF;
    const int first = places.first[half];
    uint32_t fields[kHalfQuads];
#pragma unroll
    for (int q = kHalfQuads - 1; q >= 0; --q) {
      fields[q] = digits[kHalfQuads * half + q] >> shift & repeat((1 << kWidth) - 1);
      const uint32_t flags = (fields[q] + kOnes) & repeat(1 << kWidth);
      escaped = funnel_left(pack_flags<kWidth>(flags), escaped, 4);
    }
    if constexpr (kWidth == 3) {
      uint32_t high[kHalfQuads];
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) {
        high[q] = fields[q] >> 2 & kOnes;
        fields[q] &= repeat(3);
      }
      put_fields<1>(tables, high, reached, tail, start + 8 * plane_bytes(2, places.n) + first);
      put_fields<2>(tables, fields, reached, tail, start + 2 * first);
    } else {
      put_fields<kWidth>(tables, fields, reached, tail, start + kWidth * first);
    }
  }
  return escaped;
}

UZIP_DEVICE uint32_t put_dense_level(const GatherTables& tables, int width, int shift,
                                     const uint32_t digits[kQuads], uint32_t mask,
                                     const Places& places, uint32_t* tail, int start) {
  switch (width) {
    case 1:
      return put_dense_level<1>(tables, shift, digits, mask, places, tail, start);
    case 2:
      return put_dense_level<2>(tables, shift, digits, mask, places, tail, start);
    default:
      return put_dense_level<3>(tables, shift, digits, mask, places, tail, start);
  }
}

// ORs the fields of all values of a mask, in order, into a plane.
UZIP_DEVICE void or_fields(uint32_t* plane, int start, int width, uint64_t fields, uint32_t mask,
                           const Places& places) {
  const int bits = width * popcount(mask & 0xFFFF);
  const auto low = static_cast<uint32_t>(fields & ((uint64_t{1} << bits) - 1));
  const auto high = static_cast<uint32_t>(fields >> bits);
  if (low != 0) or_bits(plane, start + width * places.first[0], low);
  if (high != 0) or_bits(plane, start + width * places.first[1], high);
}

// Writes a further level that few values reach; returns which of the lane's values go on.
template <typename Room>
UZIP_DEVICE uint32_t put_sparse_level(int width, int shift, uint32_t mask, const Places& places,
                                      Room& room, int start, int lane) {
  const int low_width = width == 1 ? 1 : 2;
  const uint32_t low_mask = (1u << low_width) - 1;
  const uint32_t escape = (1u << width) - 1;
  uint64_t low = 0;
  uint32_t high = 0;
  uint32_t escaped = 0;
  for (uint32_t left = mask;
       left != 0;) {  // the last value first, so that the fields shift by a constant
    const int i = highest_bit(left);
    const uint32_t digit = static_cast<uint32_t>(room.byte(lane, i)) >> shift & escape;
    low = low << low_width | (digit & low_mask);
    high = high << 1 | digit >> 2;
    left ^= 1u << i;
    if (digit == escape) escaped |= 1u << i;
  }
  or_fields(room.tail, start, low_width, low, mask, places);
  if (width == 3) or_fields(room.tail, start + 8 * plane_bytes(2, places.n), 1, high, mask, places);
  return escaped;
}

// Writes a tile's tail to the warp's room. `escaped`: the values beyond level 1. Returns its bytes,
// or kNotCodable when they are `limit` or more.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_tail(const Menu& menu, const GatherTables& tables, const uint8_t* values,
                            const uint32_t digits[kQuads], uint32_t escaped, int limit,
                            WarpRoom<kDType>& room, int lane) {
  if (menu.levels > 1) room.store_quads(lane, digits);
  int bytes = 0;
  int cleared = 0;  // words
#pragma unroll kLevelUnroll < kMenu>
  for (int level = 1; level < menu.levels; ++level) {
    const int width = menu.width(level);
    const int shift = menu.shift(level);
    const Places places = Places::of(escaped, lane);
    const int begin = 8 * bytes;
    bytes += digit_plane_bytes(width, places.n);
    if (bytes >= limit) return kNotCodable;
    const int words = (bytes + 3) / 4 + 1;
    for (int word = cleared + lane; word < words; word += kLanes) room.tail[word] = 0;
    cleared = words;
    sync_lanes();
    if (places.n > kSparse) {
      escaped = put_dense_level(tables, width, shift, digits, escaped, places, room.tail, begin);
    } else {
      escaped = put_sparse_level(width, shift, escaped, places, room, begin, lane);
    }
    sync_lanes();
  }
  using V = Value<kDType>;
  constexpr int kSymbolBytes = V::kFormat.symbol_bytes();
  Places places = Places::of(escaped, lane);
  const int begin = bytes;
  bytes += places.n * kSymbolBytes;
  if (bytes >= limit) return kNotCodable;
  uint8_t* raw = reinterpret_cast<uint8_t*>(room.tail) + begin;
  while (escaped != 0) {
    const int i = lowest_bit(escaped);
    escaped &= escaped - 1;
    const int index = i < 16 ? places.first[0]++ : places.first[1]++;
    const int symbol =
        V::symbol(reinterpret_cast<const typename V::Word*>(values)[value_index(lane, i)]);
#pragma unroll
    for (int k = 0; k < kSymbolBytes; ++k) {
      raw[index * kSymbolBytes + k] = static_cast<uint8_t>(symbol >> 8 * k);
    }
  }
  return bytes;
}

// Codes a tile of the dense layout: its head in place, its tail to the warp's room. Returns the
// bytes of the tail, or kNotCodable: then the tile is to be raw.
template <DType kDType, int kMenu>
UZIP_DEVICE int encode_dense_tile(const TileCode& code, const DigitTable& digit_table,
                                  const GatherTables& tables, const uint8_t* values, bool aligned,
                                  uint8_t* head, WarpRoom<kDType>& room, int lane) {
  const Menu menu = fixed_menu<kMenu>(code.menu);
  uint32_t digits[kQuads];
  const bool codable = split_tile<kDType>(code, digit_table, values, aligned, head, lane, digits);
  const uint32_t escaped = store_first_level(menu.width(0), digits, head + code.digits, lane);
  if (!codable) return kNotCodable;
  const int limit = float_format(kDType).tile_bytes() - code.stride;
  return encode_tail<kDType, kMenu>(menu, tables, values, digits, escaped, limit, room, lane);
}

}  // namespace uzip::gpu
