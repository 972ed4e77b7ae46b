// One warp decodes one tile of codec tier, the deepest level first.
//
// A first pass over the digits of each level tells how many values go on to the next, and so where
// that level's plane begins; scans over all levels at once tell which of its entries belong to
// which lane. Then lists of symbols are made from the end of the tail backwards: a level's list
// holds the symbols of all values that reached it, in order of position. A lane expands 16 entries
// at a time, four by one byte permutation, which takes either the symbol that a digit stands for
// or, for an escape, the next symbol of the list below. The list of level 1 is the tile, and the
// raw symbols, which the tail ends with, are the list below the last level.
//
// So all but the first level is work on as many values as reached it, spread evenly over the lanes.
#pragma once

#include "tier_levels_gpu.hpp"

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

// Replaces the symbols of a row's values that have no rank, for symbols of two bytes. `raw`: those
// of the tile; `index`: of the next of them.
template <DType kDType>
UZIP_DEVICE void patch_symbols(const uint32_t quads[2], const uint8_t* raw, int* index,
                               Run<kDType>& run) {
  static_assert(kDType == DType::kFloat64);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if ((quads[i / 4] >> 8 * (i % 4) & 0xFF) < kWindow) continue;
    const uint32_t symbol = raw[2 * *index] | static_cast<uint32_t>(raw[2 * *index + 1]) << 8;
    uint32_t& high = run.words[2 * i + 1];
    high = (high & 0x800FFFFFu) | (symbol & 0x7FF) << 20;
    ++*index;
  }
}

// Where the raw symbols of two bytes of a lane are among those of the tile.
UZIP_DEVICE Places places_of_raw(const uint32_t quads[kQuads], int lane) {
  Mask mask = 0;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const uint32_t flags = (quads[q] & kWideSymbols) * (kGatherPairs >> 4) >> 24;
    mask |= flags << (8 * (q % kHalfQuads) + q / kHalfQuads);
  }
  return Places::of(mask, lane);
}

// Hands over half a tile, a row of the lane's 8 values at a time. `raw`: symbols of two bytes that
// are still to be taken, or nullptr; `index`: of the lane's first.
template <DType kDType, typename Sink>
UZIP_DEVICE void put_half(const HalfPlanes<kDType>& planes, const uint32_t symbols[kHalfQuads],
                          uint32_t base, const uint8_t* raw, int index, int half, Sink& sink) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    Run<kDType> run;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      planes.quad(2 * r + q).join(symbols[2 * r + q], base, run.words + q * Quad<kDType>::kWords);
    }
    if constexpr (float_format(kDType).symbol_bytes() == 2) {
      if (raw != nullptr) patch_symbols<kDType>(symbols + 2 * r, raw, &index, run);
    }
    sink.put(2 * half + r, run);
  }
}

// Raw symbols are only known to be bytes.
template <DType kDType>
UZIP_DEVICE void mask_symbols(uint32_t quads[kQuads]) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) quads[q] &= repeat((float_format(kDType).symbols() - 1) & 0xFF);
}

// The symbols of a tile whose digits of level 1 are known.
template <DType kDType, int kMenu>
class SymbolDecoder {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);
  static constexpr int kFirst = kLevelWidth<kMenu, 0>;

  UZIP_DEVICE void load(const uint8_t* plane, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      first_[half] = Digits<kFirst>::load(plane, 32 * half + lane);
  }

  // Finds the digits of all levels in the tail. False: it is malformed.
  UZIP_DEVICE bool measure(const Tail& tail, int lane) {
    const auto low = static_cast<uint32_t>(popcount(first_[0].escapes()));
    const auto high = static_cast<uint32_t>(popcount(first_[1].escapes()));
    counts_ = {};
    counts_.words[0] = low | high << kHalfBits;
    const uint32_t totals = sum32(counts_.words[0]);
    low_ = static_cast<int>(totals & kHalfCount);
    const int n = low_ + static_cast<int>(totals >> kHalfBits);
    const SharedPlace begin = shared_place(tail.words) + tail.begin;
    const SharedPlace end = deep_.read(begin, n, lane, &counts_);
    counts_.scan(lane);
    const int unused = tail.end - tail.begin - static_cast<int>(end - begin);
    return unused >= 0 && unused <= tail.padding;
  }

  UZIP_DEVICE const uint8_t* wide_raw(const Tail& tail) const { return gpu::wide_raw(deep_, tail); }

  UZIP_DEVICE void expand(const DecodeTables& tables, const RankSymbols<kDType>& symbols,
                          LevelRoom<kDType>& room, int lane, uint32_t quads[kQuads]) const {
    const SharedPlace list = deep_.expand(tables, symbols, counts_, room, lane);
    sync_lanes();
    const uint32_t starts = counts_.words[0];
    const auto low = static_cast<int>(starts & kHalfCount);
    const auto high = low_ + static_cast<int>(starts >> kHalfBits & kHalfCount);
    first_[0].expand(tables, symbols, source_of<kDType, kMenu, 0>(symbols, list + low), quads);
    first_[1].expand(tables, symbols, source_of<kDType, kMenu, 0>(symbols, list + high),
                     quads + kHalfQuads);
    if constexpr (kFormat.exponent_bits < 8) {
      if (deep_.n_raw() != 0) mask_symbols<kDType>(quads);
    }
  }

 private:
  static constexpr int kHalfBits = 10;
  static constexpr uint32_t kHalfCount = (1 << kHalfBits) - 1;

  Digits<kFirst> first_[2];
  int low_;  // escapes of the lower half
  DeepLevel<kDType, kMenu, 1> deep_;
  LevelCounts<kMenu> counts_;  // after measure(): of the lanes below
};

// Where a tile's head is.
enum class HeadPlace { kGlobal, kShared };

// Calls code.run<menu>().
template <int kMenu = 0, typename Code>
UZIP_DEVICE void with_menu(const Menu& menu, Code& code) {
  if constexpr (kMenu + 1 < kMenus) {
    if (menu.widths != kWidths<kMenu>) return with_menu<kMenu + 1>(menu, code);
  }
  code.template run<kMenu>();
}

// Decodes a coded tile to a sink. False: malformed, and nothing went there.
template <DType kDType, int kMenu, HeadPlace kPlace = HeadPlace::kGlobal, typename Sink>
UZIP_DEVICE bool decode_dense_tile(const TileCode& code, const DecodeTables& tables,
                                   const RankSymbols<kDType>& symbols, const uint8_t* head,
                                   const Tail& tail, LevelRoom<kDType>& room, Sink& sink, int lane);

// For with_menu().
template <DType kDType, HeadPlace kPlace, typename Sink>
struct DenseTile {
  const TileCode& code;
  const DecodeTables& tables;
  const RankSymbols<kDType>& symbols;
  const uint8_t* head;
  const Tail& tail;
  LevelRoom<kDType>& room;
  Sink& sink;
  int lane;
  bool good;

  template <int kMenu>
  UZIP_DEVICE void run() {
    good = decode_dense_tile<kDType, kMenu, kPlace>(code, tables, symbols, head, tail, room, sink,
                                                    lane);
  }
};

template <DType kDType, int kMenu, HeadPlace kPlace, typename Sink>
UZIP_DEVICE bool decode_dense_tile(const TileCode& code, const DecodeTables& tables,
                                   const RankSymbols<kDType>& symbols, const uint8_t* head,
                                   const Tail& tail, LevelRoom<kDType>& room, Sink& sink,
                                   int lane) {
  if constexpr (kMenu == kAnyMenu) {
    DenseTile<kDType, kPlace, Sink> tile{code, tables, symbols, head, tail,
                                         room, sink,   lane,    false};
    with_menu(code.menu, tile);
    return tile.good;
  } else {
    // Far away, and few enough to be held while the digits are decoded.
    constexpr bool kEarly = kPlace == HeadPlace::kGlobal && float_format(kDType).byte_planes <= 1;
    HalfPlanes<kDType> planes[2];
    if constexpr (kEarly) {
      planes[0].load(code, head, 0, lane);
      planes[1].load(code, head, 1, lane);
    }
    SymbolDecoder<kDType, kMenu> decoder;
    decoder.load(head + code.digits, lane);
    if (!decoder.measure(tail, lane)) return false;
    uint32_t quads[kQuads];
    decoder.expand(tables, symbols, room, lane, quads);
    const uint8_t* raw = decoder.wide_raw(tail);
    Places places{};
    if (raw != nullptr) places = places_of_raw(quads, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (!kEarly) planes[half].load(code, head, half, lane);
      put_half(planes[half], quads + kHalfQuads * half, code.base, raw, places.first[half], half,
               sink);
    }
    return true;
  }
}

}  // namespace uzip::gpu
