// One warp decodes one tile of the packed layout (FORMAT.md, tile kinds): constant ones, and those
// of which the values that are not zero are coded, behind a mask.
//
// The digits of a masked tile are decoded as if zeros followed the values that are there, which
// yields a list of symbols; then each lane takes the symbols and rests of its own values, whose
// places in list and planes a scan over the mask tells. So a masked tile costs more per value than
// another, but its values still leave in whole rows.
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
  int end;     // of level 1

  UZIP_DEVICE static BodyPlanes of(const TileCode& code, int n) {
    BodyPlanes planes{n, 0, 0, 0};
    for (int i = 0; i < kFormat.byte_planes; ++i) planes.stored += code.stores(i) ? 1 : 0;
    planes.digits = planes.sub_plane(1) + plane_bytes(kFormat.sub_bits[1], n);
    planes.end = planes.digits + digit_plane_bytes(code.menu.width(0), n);
    return planes;
  }
  UZIP_DEVICE int sub_plane(int i) const {
    return stored * n + (i == 0 ? 0 : plane_bytes(kFormat.sub_bits[0], n));
  }
};

UZIP_DEVICE uint32_t field_of_plane(const uint8_t* plane, int width, int index) {
  const int bit = width * index;
  return static_cast<uint32_t>(plane[bit >> 3] >> (bit & 7)) & ((1u << width) - 1);
}

// The rests of a lane's values in one half of a tile: those of the mask, of which `index` is the
// first.
template <DType kDType>
UZIP_DEVICE void gather_rests(const TileCode& code, const BodyPlanes<kDType>& planes,
                              const uint8_t* body, Mask mask, int half, int index,
                              HalfPlanes<kDType>* rests) {
  constexpr FloatFormat kFormat = float_format(kDType);
  *rests = {};
#pragma unroll
  for (int i = 0; i < 4 * kHalfQuads; ++i) {
    if ((mask >> (2 * i + half) & 1) == 0) continue;
    const int shift = 8 * (i % 4);
    int place = index;
#pragma unroll
    for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
      if (!code.stores(plane)) continue;
      rests->byte_plane[plane][i / 4] |= uint32_t{body[place]} << shift;
      place += planes.n;
    }
    if constexpr (kFormat.sub_bits[0] != 0) {
      const uint32_t field = field_of_plane(body + planes.sub_plane(0), kFormat.sub_bits[0], index);
      rests->sub_plane[0][i / 4] |= field << shift;
    }
    if constexpr (kFormat.sub_bits[1] != 0) {
      const uint32_t field = field_of_plane(body + planes.sub_plane(1), kFormat.sub_bits[1], index);
      rests->sub_plane[1][i / 4] |= field << shift;
    }
    ++index;
  }
}

// Copies a plane of n fields to shared memory as one of a whole tile: zeros follow.
UZIP_DEVICE void copy_plane(const uint8_t* from, int width, int n, uint8_t* to, int lane) {
  const int bits = width * n;
  for (int i = lane; i < plane_bytes(width, kTileValues); i += kLanes) {
    const int left = bits - 8 * i;
    uint32_t byte = left > 0 ? from[i] : 0;
    if (left > 0 && left < 8) byte &= (1u << left) - 1;
    to[i] = static_cast<uint8_t>(byte);
  }
}

// Decodes a masked tile. False: malformed, and nothing went to the sink.
template <DType kDType, int kMenu, typename Sink>
UZIP_DEVICE bool decode_masked_of(const TileCode& code, const DecodeTables& tables,
                                  const RankSymbols<kDType>& symbols,
                                  const BodyPlanes<kDType>& planes, const uint8_t* body, Mask mask,
                                  const Tail& tail, LevelRoom<kDType>& room, Sink& sink, int lane) {
  constexpr int kFirst = kLevelWidth<kMenu, 0>;
  auto* plane = reinterpret_cast<uint8_t*>(room.lists[0]);
  if constexpr (kFirst == 3) {
    copy_plane(body + planes.digits, 2, planes.n, plane, lane);
    copy_plane(body + planes.digits + plane_bytes(2, planes.n), 1, planes.n,
               plane + plane_bytes(2, kTileValues), lane);
  } else {
    copy_plane(body + planes.digits, kFirst, planes.n, plane, lane);
  }
  sync_lanes();
  SymbolDecoder<kDType, kMenu> decoder;
  decoder.load(plane, lane);
  sync_lanes();
  if (!decoder.measure(tail, lane)) return false;
  uint32_t quads[kQuads];
  decoder.expand(tables, symbols, room, lane, quads);
  // The list that level 1 does not read.
  auto* list = reinterpret_cast<Chunk*>(room.lists[0]);
  sync_lanes();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t* q = quads + kHalfQuads * half;
    list[32 * half + lane] = Chunk{{q[0], q[1], q[2], q[3]}};
  }
  sync_lanes();
  const Places places = Places::of(mask, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int index = places.first[half];
#pragma unroll
    for (int i = 0; i < 4 * kHalfQuads; ++i) {
      uint32_t& quad = quads[kHalfQuads * half + i / 4];
      if (i % 4 == 0) quad = 0;
      if ((mask >> (2 * i + half) & 1) == 0) continue;
      quad |= uint32_t{reinterpret_cast<const uint8_t*>(list)[index++]} << 8 * (i % 4);
    }
  }
  const uint8_t* raw = decoder.wide_raw(tail);
  Places raw_places{};
  if (raw != nullptr) raw_places = places_of_raw(quads, lane);
  MaskedSink<kDType, Sink> masked{sink, mask};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    HalfPlanes<kDType> rests;
    gather_rests(code, planes, body, mask, half, places.first[half], &rests);
    put_half(rests, quads + kHalfQuads * half, code.base, raw, raw_places.first[half], half,
             masked);
  }
  return true;
}

// For with_menu().
template <DType kDType, typename Sink>
struct MaskedTile {
  const TileCode& code;
  const DecodeTables& tables;
  const RankSymbols<kDType>& symbols;
  const BodyPlanes<kDType>& planes;
  const uint8_t* body;
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

template <DType kDType, typename Sink>
UZIP_DEVICE bool decode_masked(const TileCode& code, const DecodeTables& tables,
                               const RankSymbols<kDType>& symbols, const BodyPlanes<kDType>& planes,
                               const uint8_t* body, Mask mask, const Tail& tail,
                               LevelRoom<kDType>& room, Sink& sink, int lane) {
  MaskedTile<kDType, Sink> tile{code, tables, symbols, planes, body, mask,
                                tail, room,   sink,    lane,   false};
  with_menu(code.menu, tile);
  return tile.good;
}

}  // namespace uzip::gpu
