// One warp decodes one tile of codec tier.
//
// Each lane keeps the ranks of its 32 values as 8 quads. A rank is the sum of the value's digits,
// so level after level the digits of the values that are still escaped are added: a scan tells
// where in the plane the lane's digits begin. Then ranks become symbols by table, and the symbols
// of values without a rank are taken from the end of the tail.
#pragma once

#include "tile_code_gpu.hpp"

namespace uzip::gpu {

template <int kWidth>
UZIP_DEVICE void load_fields(const uint8_t* plane, int half, int lane, uint32_t quads[kHalfQuads]) {
  if constexpr (kWidth == 8) {
    const Chunk chunk = reinterpret_cast<const Chunk*>(plane)[32 * half + lane];
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) quads[q] = chunk.words[q];
  } else if constexpr (kWidth == 4) {
    const Pair pair = reinterpret_cast<const Pair*>(plane)[32 * half + lane];
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) quads[q] = unpack<4>(pair.words[q / 2] >> 16 * (q % 2));
  } else {
    uint32_t word;
    if constexpr (kWidth == 2) {
      word = reinterpret_cast<const uint32_t*>(plane)[32 * half + lane];
    } else {
      word = reinterpret_cast<const uint16_t*>(plane)[32 * half + lane];
    }
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) quads[q] = unpack<kWidth>(word >> 4 * kWidth * q);
  }
}

// The rests of a lane's values in one half of a tile.
template <DType kDType>
struct HalfPlanes {
  static constexpr FloatFormat kFormat = float_format(kDType);
  uint32_t byte_plane[kFormat.byte_planes > 0 ? kFormat.byte_planes : 1][kHalfQuads];
  uint32_t sub_plane[kMaxSubPlanes][kHalfQuads];

  UZIP_DEVICE void load(const TileCode& code, const uint8_t* head, int half, int lane) {
#pragma unroll
    for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
      if (code.stores(plane)) {
        load_fields<8>(head + code.byte_plane(plane), half, lane, byte_plane[plane]);
      } else {
#pragma unroll
        for (int q = 0; q < kHalfQuads; ++q) byte_plane[plane][q] = 0;
      }
    }
    if constexpr (kFormat.sub_bits[0] != 0) {
      const uint8_t* sub = head + code.byte_plane(kFormat.byte_planes);
      load_fields<kFormat.sub_bits[0]>(sub, half, lane, sub_plane[0]);
      if constexpr (kFormat.sub_bits[1] != 0) {
        sub += plane_bytes(kFormat.sub_bits[0], kTileValues);
        load_fields<kFormat.sub_bits[1]>(sub, half, lane, sub_plane[1]);
      }
    }
  }

  UZIP_DEVICE Quad<kDType> quad(int q) const {
    Quad<kDType> result;
#pragma unroll
    for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
      result.byte_plane[plane] = byte_plane[plane][q];
    }
    if constexpr (kFormat.sub_bits[0] != 0) result.sub_plane[0] = sub_plane[0][q];
    if constexpr (kFormat.sub_bits[1] != 0) result.sub_plane[1] = sub_plane[1][q];
    return result;
  }
};

// Loads the digits of level 1 as ranks; returns which of the lane's values go on to level 2.
template <int kWidth>
UZIP_DEVICE uint32_t load_first_level(const uint8_t* plane, int lane, uint32_t ranks[kQuads]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t* quads = ranks + kHalfQuads * half;
    if constexpr (kWidth == 3) {
      uint32_t high[kHalfQuads];
      load_fields<2>(plane, half, lane, quads);
      load_fields<1>(plane + plane_bytes(2, kTileValues), half, lane, high);
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) quads[q] |= high[q] << 2;
    } else {
      load_fields<kWidth>(plane, half, lane, quads);
    }
  }
  uint32_t escaped = 0;
#pragma unroll
  for (int q = kQuads - 1; q >= 0; --q) {
    const uint32_t flags = (ranks[q] + kOnes) & repeat(1 << kWidth);
    escaped = funnel_left(pack_flags<kWidth>(flags), escaped, 4);
  }
  return escaped;
}

UZIP_DEVICE uint32_t load_first_level(int width, const uint8_t* plane, int lane,
                                      uint32_t ranks[kQuads]) {
  switch (width) {
    case 1:
      return load_first_level<1>(plane, lane, ranks);
    case 2:
      return load_first_level<2>(plane, lane, ranks);
    case 3:
      return load_first_level<3>(plane, lane, ranks);
    default:
      return load_first_level<4>(plane, lane, ranks);
  }
}

// 32 bits from any place.
UZIP_DEVICE uint32_t read_bits(const uint32_t* words, int bit) {
  const uint32_t* word = words + (bit >> 5);
  return funnel_right(word[0], word[1], bit & 31);
}

// Adds the fields that begin at a bit of the plane to the values in the mask of one half; returns
// which of these were all ones.
template <int kWidth>
UZIP_DEVICE uint32_t add_fields(const uint32_t* spreads, uint32_t mask, const uint32_t* plane,
                                int bit, int shift, uint32_t quads[kHalfQuads]) {
  uint32_t fields = read_bits(plane, bit);
  uint32_t full = 0;
#pragma unroll
  for (int q = 0; q < kHalfQuads; ++q) {
    const uint32_t spread = spreads[mask >> 4 * q & 15];
    const uint32_t quad = permute(unpack<kWidth>(fields), 0, spread);
    fields >>= kWidth * (spread >> 16);
    quads[q] += quad << shift;
    const uint32_t flags = (quad + kOnes) & repeat(1 << kWidth);
    full |= pack_flags<kWidth>(flags) >> 28 << 4 * q;
  }
  return full;
}

// Adds a further level that many values reach, `start` bits from the beginning of `tail`; returns
// which values go on.
UZIP_DEVICE uint32_t add_dense_level(const uint32_t* spreads, int width, uint32_t mask,
                                     const Places& places, const uint32_t* tail, int start,
                                     uint32_t ranks[kQuads]) {
  uint32_t escaped = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t* quads = ranks + kHalfQuads * half;
    const uint32_t reached = mask >> 16 * half & 0xFFFF;
    const int first = places.first[half];
    uint32_t full;
    if (width == 1) {
      full = add_fields<1>(spreads, reached, tail, start + first, 0, quads);
    } else {
      full = add_fields<2>(spreads, reached, tail, start + 2 * first, 0, quads);
      if (width == 3) {
        const int high = start + 8 * plane_bytes(2, places.n);
        full &= add_fields<1>(spreads, reached, tail, high + first, 2, quads);
      }
    }
    escaped |= full << 16 * half;
  }
  return escaped;
}

// The fields of all values of a mask, in order: those of the lane's first half below those of the
// second.
UZIP_DEVICE uint64_t read_fields(const uint32_t* plane, int start, int width, uint32_t mask,
                                 const Places& places) {
  const uint64_t low = read_bits(plane, start + width * places.first[0]);
  const uint64_t high = read_bits(plane, start + width * places.first[1]);
  const int bits = width * popcount(mask & 0xFFFF);
  return (low & ((uint64_t{1} << bits) - 1)) | high << bits;
}

// Adds a further level that few values reach to the ranks in the warp's room; returns which values
// go on.
template <typename Room>
UZIP_DEVICE uint32_t add_sparse_level(int width, uint32_t mask, const Places& places,
                                      const uint32_t* tail, int start, Room& room, int lane) {
  const int low_width = width == 1 ? 1 : 2;
  const uint32_t low_mask = (1u << low_width) - 1;
  const uint32_t escape = (1u << width) - 1;
  uint64_t fields = read_fields(tail, start, low_width, mask, places);
  uint32_t high = 0;
  if (width == 3) {
    const int plane = start + 8 * plane_bytes(2, places.n);
    high = static_cast<uint32_t>(read_fields(tail, plane, 1, mask, places));
  }
  uint32_t escaped = 0;
  while (mask != 0) {
    const uint32_t others = mask & (mask - 1);
    const uint32_t digit = (static_cast<uint32_t>(fields) & low_mask) | (high & 1) << 2;
    fields >>= low_width;
    high >>= 1;
    uint8_t& rank = room.byte(lane, lowest_bit(mask));
    rank = static_cast<uint8_t>(rank + digit);
    if (digit == escape) escaped |= mask ^ others;
    mask = others;
  }
  return escaped;
}

// Adds all levels from `level` on to the ranks. `escaped` becomes the values without a rank,
// `place` the byte at which their symbols begin. False: the digits ask for more than the tail's
// `end`. Bytes count from `tail`, an aligned address at or before the tail's first byte.
template <int kMenu, typename Room>
UZIP_DEVICE bool add_levels(const Menu& menu, const uint32_t* spreads, int level,
                            const uint32_t* tail, int end, Room& room, int lane,
                            uint32_t ranks[kQuads], uint32_t* escaped, int* place) {
  bool sparse = false;  // the ranks are in the room
#pragma unroll kLevelUnroll < kMenu>
  for (; level < menu.levels; ++level) {
    const Places places = Places::of(*escaped, lane);
    const int width = menu.width(level);
    const int start = 8 * *place;
    *place += digit_plane_bytes(width, places.n);
    if (*place > end) return false;
    if (places.n > kSparse) {
      if (sparse) room.load_quads(lane, ranks);
      sparse = false;
      *escaped = add_dense_level(spreads, width, *escaped, places, tail, start, ranks);
    } else {
      if (!sparse) room.store_quads(lane, ranks);
      sparse = true;
      *escaped = add_sparse_level(width, *escaped, places, tail, start, room, lane);
    }
  }
  if (sparse) room.load_quads(lane, ranks);
  return true;
}

// Turns ranks into what Quad::join() wants; takes the raw symbols, unless these are wider than a
// byte.
template <DType kDType>
UZIP_DEVICE void ranks_to_symbols(const Table& offset_of_rank, uint32_t first, uint32_t escaped,
                                  Places places, bool any_raw, const uint8_t* raw,
                                  WarpRoom<kDType>& room, int lane, uint32_t quads[kQuads]) {
  constexpr FloatFormat kFormat = float_format(kDType);
  const uint32_t base = repeat(static_cast<int>(first));
  constexpr uint32_t kSymbolMask = repeat((kFormat.symbols() - 1) & 0xFF);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) quads[q] = offset_of_rank.lookup(selector_of(quads[q]));
  if (kFormat.exponent_bits == 8 && first + kWindow > 256) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) quads[q] = add_bytes(quads[q], base);
  } else if (kFormat.exponent_bits <= 8) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) quads[q] = (quads[q] + base) & kSymbolMask;
  }
  if (kFormat.symbol_bytes() > 1 || !any_raw) return;
  room.store_quads(lane, quads);
  while (escaped != 0) {
    const int i = lowest_bit(escaped);
    escaped &= escaped - 1;
    const int index = i < 16 ? places.first[0]++ : places.first[1]++;
    room.byte(lane, i) = raw[index] & static_cast<uint8_t>(kSymbolMask);
  }
  room.load_quads(lane, quads);
}

// Replaces the symbols of a row's values that have no rank, for symbols of two bytes. `raw`: those
// of the tile; `index`: of the next of them.
template <DType kDType>
UZIP_DEVICE void patch_symbols(uint32_t escaped, const uint8_t* raw, int* index, Run<kDType>& run) {
  static_assert(kDType == DType::kFloat64);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if ((escaped >> i & 1) == 0) continue;
    const uint32_t symbol = raw[2 * *index] | static_cast<uint32_t>(raw[2 * *index + 1]) << 8;
    uint32_t& high = run.words[2 * i + 1];
    high = (high & 0x800FFFFFu) | (symbol & 0x7FF) << 20;
    ++*index;
  }
}

// Hands over half a tile, a row of the lane's 8 values at a time. `escaped`: its values whose raw
// symbols are still to be taken.
template <DType kDType, typename Sink>
UZIP_DEVICE void put_half(const HalfPlanes<kDType>& planes, const uint32_t symbols[kHalfQuads],
                          uint32_t base, uint32_t escaped, bool any_raw, const uint8_t* raw,
                          int index, int half, Sink& sink) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    Run<kDType> run;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      planes.quad(2 * r + q).join(symbols[2 * r + q], base, run.words + q * Quad<kDType>::kWords);
    }
    if constexpr (float_format(kDType).symbol_bytes() == 2) {
      if (any_raw) patch_symbols<kDType>(escaped >> 8 * r, raw, &index, run);
    }
    sink.put(2 * half + r, run);
  }
}

// Decodes a coded tile of the dense layout, whose tail is bytes `begin` .. `end` of the room, to a
// sink. False: malformed, and nothing went there.
template <DType kDType, int kMenu, typename Sink>
UZIP_DEVICE bool decode_dense_tile(const TileCode& code, const Table& offset_of_rank,
                                   const uint32_t* spreads, const uint8_t* head,
                                   WarpRoom<kDType>& room, int begin, int end, Sink& sink,
                                   int lane) {
  constexpr FloatFormat kFormat = float_format(kDType);
  constexpr bool kEarly =
      kFormat.byte_planes <= 1;  // few enough to be held while the digits are decoded
  HalfPlanes<kDType> planes[2];
  if constexpr (kEarly) {
    planes[0].load(code, head, 0, lane);
    planes[1].load(code, head, 1, lane);
  }
  const Menu menu = fixed_menu<kMenu>(code.menu);
  uint32_t quads[kQuads];
  uint32_t escaped = load_first_level(menu.width(0), head + code.digits, lane, quads);
  int place = begin;
  if (!add_levels<kMenu>(menu, spreads, 1, room.tail, end, room, lane, quads, &escaped, &place))
    return false;
  const Places places = Places::of(escaped, lane);
  if (place + places.n * kFormat.symbol_bytes() != end) return false;
  const uint8_t* raw = reinterpret_cast<const uint8_t*>(room.tail) + place;
  ranks_to_symbols<kDType>(offset_of_rank, code.base, escaped, places, places.n != 0, raw, room,
                           lane, quads);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (!kEarly) planes[half].load(code, head, half, lane);
    put_half(planes[half], quads + kHalfQuads * half, code.base, escaped >> 16 * half,
             places.n != 0, raw, places.first[half], half, sink);
  }
  return true;
}

}  // namespace uzip::gpu
