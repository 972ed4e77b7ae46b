// One warp decodes one tile of the packed layout (FORMAT.md, tile kinds): constant ones, and those
// of which the values that are not zero are coded, behind a mask.
//
// All levels of a masked tile are as those beyond the first of another one. They yield a list of
// symbols; then each lane takes the symbols and rests of its own values, four at a time by a byte
// permutation that leaves zeros where the mask does. A tile that is coded whole is one whose mask
// is full.
#pragma once

#include "tier_decode_gpu.hpp"

namespace uzip::gpu {

// Hands a tile of equal values to a sink.
template <DType kDType, typename Sink>
UZIP_DEVICE void put_constant(const uint8_t* value, Sink& sink) {
  constexpr int kItemsize = float_format(kDType).itemsize;
  Run<kDType> run;
#pragma unroll
  for (int i = 0; i < Run<kDType>::kWords; ++i) {
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      word |= value == nullptr ? 0 : uint32_t{value[(4 * i + k) % kItemsize]} << 8 * k;
    }
    run.words[i] = word;
  }
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) sink.put(row, run);
}

// The mask that a masked tile begins with.
UZIP_DEVICE Mask read_mask(const uint8_t* tile, int lane) {
  const auto* halves = reinterpret_cast<const uint16_t*>(tile);
  return spread_half(halves[lane]) | spread_half(halves[kLanes + lane]) << 1;
}
UZIP_DEVICE int values_of_mask(Mask mask) {
  return static_cast<int>(sum32(static_cast<uint32_t>(popcount(mask))));
}

// Passes rows on, with zeros where a lane's mask has none of its values.
template <DType kDType, typename Sink>
struct MaskedSink {
  Sink& sink;
  Mask mask;

  UZIP_DEVICE void put(int row, Run<kDType>& run) {
    constexpr int kItemsize = float_format(kDType).itemsize;
    const Mask mine = mask >> (16 * (row % 2) + row / 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((mine >> 2 * i & 1) != 0) continue;
      if constexpr (kItemsize == 8) run.words[2 * i] = run.words[2 * i + 1] = 0;
      if constexpr (kItemsize == 4) run.words[i] = 0;
      if constexpr (kItemsize == 2) run.words[i / 2] &= 0xFFFF0000u >> 16 * (i % 2);
      if constexpr (kItemsize == 1) run.words[i / 4] &= ~(0xFFu << 8 * (i % 4));
    }
    sink.put(row, run);
  }
};

// Where the planes of a body of n values are, from its beginning, in bytes.
template <DType kDType>
struct BodyPlanes {
  static constexpr FloatFormat kFormat = float_format(kDType);
  int n;
  int stored;  // byte planes
  int digits;  // place of level 1

  UZIP_DEVICE static BodyPlanes of(const TileCode& code, int n) {
    BodyPlanes planes{n, 0, 0};
    for (int i = 0; i < kFormat.byte_planes; ++i) planes.stored += code.stores(i) ? 1 : 0;
    planes.digits = planes.sub_plane(1) + plane_bytes(kFormat.sub_bits[1], n);
    return planes;
  }
  UZIP_DEVICE int sub_plane(int i) const {
    return stored * n + (i == 0 ? 0 : plane_bytes(kFormat.sub_bits[0], n));
  }
};

// A tile's body in shared memory.
struct SharedBody {
  SharedPlace begin;

  // Four bytes.
  UZIP_DEVICE uint32_t load(int at) const { return load_bytes(begin + at); }
};
// In global memory, where nothing may be read behind its end.
struct GlobalBody {
  const uint8_t* begin;
  int size;

  UZIP_DEVICE uint32_t load(int at) const {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (at + i < size) word |= uint32_t{begin[at + i]} << 8 * i;
    }
    return word;
  }
};

// Fields of a sub-byte plane, one per byte.
template <int kWidth, typename Body>
UZIP_DEVICE uint32_t load_four_fields(const Body& body, int plane, int index) {
  const int bit = kWidth * index;
  return unpack<kWidth>(body.load(plane + (bit >> 3)) >> (bit & 7));
}

// The symbols and rests of a lane's values in one half of a tile: those of the mask, of which
// `index` is the first; the others are 0.
template <DType kDType, typename Body>
UZIP_DEVICE void gather_half(const TileCode& code, const DecodeTables& tables,
                             const BodyPlanes<kDType>& planes, const Body& body, SharedPlace list,
                             Mask mask, int half, int index, uint32_t symbols[kHalfQuads],
                             HalfPlanes<kDType>* rests) {
  constexpr FloatFormat kFormat = float_format(kDType);
#pragma unroll
  for (int q = 0; q < kHalfQuads; ++q) {
    const uint32_t selector = tables.merges[quad_mask(mask, half, q)];
    symbols[q] = permute(load_bytes(list + index), 0, selector);
    int place = index;
#pragma unroll
    for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
      rests->byte_plane[plane][q] = 0;
      if (!code.stores(plane)) continue;
      rests->byte_plane[plane][q] = permute(body.load(place), 0, selector);
      place += planes.n;
    }
    if constexpr (kFormat.sub_bits[0] != 0) {
      rests->sub_plane[0][q] = permute(
          load_four_fields<kFormat.sub_bits[0]>(body, planes.sub_plane(0), index), 0, selector);
    }
    if constexpr (kFormat.sub_bits[1] != 0) {
      rests->sub_plane[1][q] = permute(
          load_four_fields<kFormat.sub_bits[1]>(body, planes.sub_plane(1), index), 0, selector);
    }
    index += static_cast<int>(selector >> 16);
  }
}

// Decodes a masked tile. `tail` begins with the digits of level 1. False: malformed, and nothing
// went to the sink.
template <DType kDType, int kMenu, typename Body, typename Sink>
UZIP_DEVICE bool decode_masked_of(const TileCode& code, const DecodeTables& tables,
                                  const RankSymbols<kDType>& symbols,
                                  const BodyPlanes<kDType>& planes, const Body& body, Mask mask,
                                  const Tail& tail, LevelRoom<kDType>& room, Sink& sink, int lane) {
  constexpr FloatFormat kFormat = float_format(kDType);
  DeepLevel<kDType, kMenu, 0> level;
  LevelCounts<kMenu> counts{};
  const SharedPlace begin = shared_place(tail.words) + tail.begin;
  const SharedPlace end = level.read(begin, planes.n, lane, &counts);
  counts.scan(lane);
  const int unused = tail.end - tail.begin - static_cast<int>(end - begin);
  if (unused < 0 || unused > tail.padding) return false;
  const SharedPlace list = level.expand(tables, symbols, counts, room, lane);
  const Places places = Places::of(mask, lane);
  sync_lanes();
  uint32_t quads[kQuads];
  HalfPlanes<kDType> rests[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    gather_half(code, tables, planes, body, list, mask, half, places.first[half],
                quads + kHalfQuads * half, &rests[half]);
  }
  if constexpr (kFormat.exponent_bits < 8) {
    if (level.n_raw() != 0) mask_symbols<kDType>(quads);
  }
  if constexpr (kFormat.symbol_bytes() == 1) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      put_half(rests[half], quads + kHalfQuads * half, code.base, nullptr, 0, half, sink);
    }
  } else {
    // Zeros would be values of symbol `base`.
    MaskedSink<kDType, Sink> masked{sink, mask};
    const uint8_t* raw = wide_raw(level, tail);
    Places raw_places{};
    if (raw != nullptr) raw_places = places_of_raw(quads, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      put_half(rests[half], quads + kHalfQuads * half, code.base, raw, raw_places.first[half], half,
               masked);
    }
  }
  return true;
}

// For with_menu().
template <DType kDType, typename Body, typename Sink>
struct MaskedTile {
  const TileCode& code;
  const DecodeTables& tables;
  const RankSymbols<kDType>& symbols;
  const BodyPlanes<kDType>& planes;
  const Body& body;
  Mask mask;
  const Tail& tail;
  LevelRoom<kDType>& room;
  Sink& sink;
  int lane;
  bool good;

  template <int kMenu>
  UZIP_DEVICE void run() {
    good = decode_masked_of<kDType, kMenu>(code, tables, symbols, planes, body, mask, tail, room,
                                           sink, lane);
  }
};

template <DType kDType, typename Body, typename Sink>
UZIP_DEVICE bool decode_masked(const TileCode& code, const DecodeTables& tables,
                               const RankSymbols<kDType>& symbols, const BodyPlanes<kDType>& planes,
                               const Body& body, Mask mask, const Tail& tail,
                               LevelRoom<kDType>& room, Sink& sink, int lane) {
  MaskedTile<kDType, Body, Sink> tile{code, tables, symbols, planes, body, mask,
                                      tail, room,   sink,    lane,   false};
  with_menu(code.menu, tile);
  return tile.good;
}

}  // namespace uzip::gpu
