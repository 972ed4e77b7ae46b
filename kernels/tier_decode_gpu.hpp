// One warp decodes one tile of codec tier, the deepest level first.
//
// A first pass over the digits of each level tells how many values go on to the next, and so where
// that level's plane begins and, by a scan, which of its entries belong to which lane. Then lists
// of symbols are made from the end of the tail backwards: a level's list holds the symbols of all
// values that reached it, in order of position. A lane expands 16 entries at a time, four by one
// byte permutation, which takes either the symbol that a digit stands for or, for an escape, the
// next symbol of the list below. The list of level 1 is the tile, and the raw symbols, which the
// tail ends with, are the list below the last level.
//
// So all but the first level is work on as many values as reached it, spread evenly over the lanes.
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

  // Bytes of half a head without the digits.
  static constexpr int kPlaneBytes = kTileValues / 2;
  static constexpr int kBytes = kPlaneBytes * kFormat.byte_planes +
                                kPlaneBytes / 8 * (kFormat.sub_bits[0] + kFormat.sub_bits[1]);

  // Asks for half a head, for load_fetched().
  UZIP_DEVICE static void fetch(const TileCode& code, const uint8_t* head, int half, uint8_t* to,
                                int lane) {
#pragma unroll
    for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
      if (!code.stores(plane)) continue;
      copy_later(to + kPlaneBytes * plane + kAlignment * lane,
                 head + code.byte_plane(plane) + kPlaneBytes * half + kAlignment * lane);
    }
    const uint8_t* sub = head + code.byte_plane(kFormat.byte_planes);
    to += kPlaneBytes * kFormat.byte_planes;
    fetch_fields<kFormat.sub_bits[0]>(sub, half, to, lane);
    fetch_fields<kFormat.sub_bits[1]>(sub + plane_bytes(kFormat.sub_bits[0], kTileValues), half,
                                      to + kPlaneBytes / 8 * kFormat.sub_bits[0], lane);
  }

  UZIP_DEVICE void load_fetched(const TileCode& code, const uint8_t* from, int lane) {
#pragma unroll
    for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
      if (code.stores(plane)) {
        load_fields<8>(from + kPlaneBytes * plane, 0, lane, byte_plane[plane]);
      } else {
#pragma unroll
        for (int q = 0; q < kHalfQuads; ++q) byte_plane[plane][q] = 0;
      }
    }
    from += kPlaneBytes * kFormat.byte_planes;
    if constexpr (kFormat.sub_bits[0] != 0) {
      load_fields<kFormat.sub_bits[0]>(from, 0, lane, sub_plane[0]);
      from += kPlaneBytes / 8 * kFormat.sub_bits[0];
    }
    if constexpr (kFormat.sub_bits[1] != 0) {
      load_fields<kFormat.sub_bits[1]>(from, 0, lane, sub_plane[1]);
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

 private:
  template <int kWidth>
  UZIP_DEVICE static void fetch_fields(const uint8_t* plane, int half, uint8_t* to, int lane) {
    constexpr int kFieldBytes = kPlaneBytes / 8 * kWidth;
    if constexpr (kWidth > 0) {
      if (kAlignment * lane >= kFieldBytes) return;
      copy_later(to + kAlignment * lane, plane + kFieldBytes * half + kAlignment * lane);
    }
  }
};

constexpr int kRun = 16;  // digits that a lane expands at a time
constexpr int kMaxRuns = kTileValues / kRun;

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

// Room in shared memory for the longest tail, which may begin within a chunk.
template <DType kDType>
struct alignas(16) TailRoom {
  uint32_t words[(kTailBytes<kDType> + kAlignment + kTailSlack) / 4];
};

// What a warp needs in shared memory to decode a tile.
template <DType kDType>
struct alignas(16) LevelRoom {
  // Of two levels in turn. Somewhat more is read than there is.
  uint32_t lists[2][kTileValues / 4 + 4];
  // Of each level but the first: where in the list below the symbols of a run's escapes begin.
  uint16_t starts[kMaxLevels - 1][kMaxRuns];
};

// Four bytes from any place.
UZIP_DEVICE uint32_t fetch(const uint32_t* words, int byte) {
  const uint32_t* word = words + (byte >> 2);
  return funnel_right(word[0], word[1], 8 * byte & 31);
}

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
  const uint32_t* list;
  int place;  // of the next symbol of the list, in bytes
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

  // Of a plane of `n` digits that begins at byte `place` of a tail. Digits beyond the last are 0.
  UZIP_DEVICE static Digits read(const uint32_t* tail, int place, int n, int run) {
    static_assert(kWidth <= 3);
    constexpr int kLow = kWidth == 1 ? 1 : 2;
    const int left = n - kRun * run;
    if (left <= 0) return {0, 0};
    uint32_t low = fetch(tail, place + 2 * kLow * run);
    if (kLow == 1) low &= 0xFFFF;
    if (left < kRun) low &= (1u << kLow * left) - 1;
    if constexpr (kWidth < 3) return {low, 0};
    return {low, fetch(tail, place + plane_bytes(2, n) + 2 * run)};
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
      quads[q] = permute(fetch(source.list, source.place), candidates, selector);
      source.place += static_cast<int>(selector >> 16);
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

// The symbol of each rank.
template <DType kDType>
struct RankSymbols {
  static constexpr FloatFormat kFormat = float_format(kDType);
  Table offsets;  // from base
  uint32_t base;

  // For a selector of four ranks. Symbols of more than a byte stay offsets.
  UZIP_DEVICE uint32_t lookup(uint32_t ranks) const {
    const uint32_t quad = offsets.lookup(ranks);
    if constexpr (kFormat.symbol_bytes() == 2) return quad;
    const uint32_t symbols = kFormat.exponent_bits == 8
                                 ? add_bytes(quad, repeat(static_cast<int>(base)))
                                 : quad + repeat(static_cast<int>(base));
    return symbols & repeat((kFormat.symbols() - 1) & 0xFF);
  }
  UZIP_DEVICE uint32_t four_from(int rank) const {
    return lookup(static_cast<uint32_t>(rank) * 0x1111u + 0x3210u);
  }
};

// Where a level's digits are in the tail, and how many.
struct LevelPlane {
  int place;
  int n;
};

// Counts the escapes of a level beyond the first; notes where those of each run begin.
template <int kWidth>
UZIP_DEVICE int count_escapes(const uint32_t* tail, const LevelPlane& level, uint16_t* starts,
                              int lane) {
  int total = 0;
#pragma unroll 1  // mostly one round
  for (int first = 0; kRun * first < level.n; first += kLanes) {
    const auto digits = Digits<kWidth>::read(tail, level.place, level.n, first + lane);
    uint32_t here;
    const uint32_t before = scan32(static_cast<uint32_t>(popcount(digits.escapes())), lane, &here);
    starts[first + lane] = static_cast<uint16_t>(static_cast<uint32_t>(total) + before);
    total += static_cast<int>(here);
  }
  return total;
}
UZIP_DEVICE int count_escapes(int width, const uint32_t* tail, const LevelPlane& level,
                              uint16_t* starts, int lane) {
  switch (width) {
    case 1:
      return count_escapes<1>(tail, level, starts, lane);
    case 2:
      return count_escapes<2>(tail, level, starts, lane);
    default:
      return count_escapes<3>(tail, level, starts, lane);
  }
}

// Writes the list of a level beyond the first.
template <int kWidth, typename Symbols>
UZIP_DEVICE void expand_level(const DecodeTables& tables, const Symbols& symbols,
                              const uint32_t* tail, const LevelPlane& level, const uint16_t* starts,
                              const Source& source, uint32_t* list, int lane) {
#pragma unroll 1
  for (int run = lane; kRun * run < level.n; run += kLanes) {
    Source from = source;
    from.place += starts[run];
    Chunk chunk;
    Digits<kWidth>::read(tail, level.place, level.n, run)
        .expand(tables, symbols, from, chunk.words);
    reinterpret_cast<Chunk*>(list)[run] = chunk;
  }
}
template <typename Symbols>
UZIP_DEVICE void expand_level(int width, const DecodeTables& tables, const Symbols& symbols,
                              const uint32_t* tail, const LevelPlane& level, const uint16_t* starts,
                              const Source& source, uint32_t* list, int lane) {
  switch (width) {
    case 1:
      return expand_level<1>(tables, symbols, tail, level, starts, source, list, lane);
    case 2:
      return expand_level<2>(tables, symbols, tail, level, starts, source, list, lane);
    default:
      return expand_level<3>(tables, symbols, tail, level, starts, source, list, lane);
  }
}

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

// The symbols of a tile whose digits of level 1 are known.
template <DType kDType, int kMenu, int kFirst>
class SymbolDecoder {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE SymbolDecoder(const Menu& menu, const DecodeTables& tables,
                            const RankSymbols<kDType>& symbols, const Tail& tail,
                            LevelRoom<kDType>& room, int lane)
      : any_menu_(menu),
        tables_(tables),
        symbols_(symbols),
        tail_(tail),
        room_(room),
        lane_(lane) {}

  UZIP_DEVICE void load(const uint8_t* plane) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      first_[half] = Digits<kFirst>::load(plane, 32 * half + lane_);
  }

  // Finds the planes of all levels in the tail. False: it is malformed.
  UZIP_DEVICE bool measure() {
    starts_ = Places::of(first_[0].escapes() | first_[1].escapes() << 1, lane_);
    int n = starts_.n;
    int place = tail_.begin;
#pragma unroll kLevelUnroll < kMenu>
    for (int level = 1; level < menu().levels; ++level) {
      levels_[level - 1] = {place, n};
      place += digit_plane_bytes(menu().width(level), n);
      if (place > tail_.end) return false;
      n = count_escapes(menu().width(level), tail_.words, levels_[level - 1],
                        room_.starts[level - 1], lane_);
    }
    raw_ = {place, n};
    const int unused = tail_.end - (place + n * kFormat.symbol_bytes());
    return unused >= 0 && unused <= tail_.padding;
  }

  // Bytes of the tile's raw symbols, where they are two bytes each and there are any.
  UZIP_DEVICE const uint8_t* wide_raw() const {
    if (kFormat.symbol_bytes() == 1 || raw_.n == 0) return nullptr;
    return reinterpret_cast<const uint8_t*>(tail_.words) + raw_.place;
  }

  UZIP_DEVICE void expand(uint32_t quads[kQuads]) {
    Source source = raw_symbols();
    int rank = ranks();
#pragma unroll kLevelUnroll < kMenu>
    for (int level = menu().levels - 1; level > 0; --level) {
      rank -= (1 << menu().width(level)) - 1;
      set_symbols(rank, &source);
      uint32_t* list = room_.lists[level & 1];
      sync_lanes();  // what the level below wrote, and `starts`
      expand_level(menu().width(level), tables_, symbols_, tail_.words, levels_[level - 1],
                   room_.starts[level - 1], source, list, lane_);
      source.list = list;
      source.place = 0;
    }
    sync_lanes();
    set_symbols(0, &source);
    constexpr uint32_t kSymbolMask = repeat((kFormat.symbols() - 1) & 0xFF);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Source from = source;
      from.place += starts_.first[half];
      first_[half].expand(tables_, symbols_, from, quads + kHalfQuads * half);
      if constexpr (kFormat.exponent_bits < 8) {
        // Raw symbols are only known to be bytes.
#pragma unroll
        for (int q = 0; q < kHalfQuads; ++q) quads[kHalfQuads * half + q] &= kSymbolMask;
      }
    }
  }

 private:
  // Of the frame; a constant where it is fixed, whatever becomes of this object.
  UZIP_DEVICE Menu menu() const { return fixed_menu<kMenu>(any_menu_); }

  UZIP_DEVICE Source raw_symbols() {
    if constexpr (kFormat.symbol_bytes() == 1) {
      return {{0, 0}, tail_.words, raw_.place};
    } else {
      uint32_t* list = room_.lists[menu().levels & 1];
      for (int i = lane_; 4 * i < raw_.n + 8; i += kLanes) list[i] = kWideSymbols;
      return {{0, 0}, list, 0};
    }
  }

  // How many ranks the menu has.
  UZIP_DEVICE int ranks() const {
    int ranks = 0;
#pragma unroll
    for (int level = 0; level < kMaxLevels; ++level) ranks += (1 << menu().width(level)) - 1;
    return ranks;
  }

  UZIP_DEVICE void set_symbols(int rank, Source* source) const {
    source->symbols[0] = symbols_.four_from(rank);
    source->symbols[1] = rank + 4 < kWindow ? symbols_.four_from(rank + 4) : 0;
  }

  Menu any_menu_;
  const DecodeTables& tables_;
  const RankSymbols<kDType>& symbols_;
  Tail tail_;
  LevelRoom<kDType>& room_;
  int lane_;
  Digits<kFirst> first_[2];
  Places starts_;  // of level 1
  LevelPlane levels_[kMaxLevels - 1];
  LevelPlane raw_;
};

// Where a tile's head is.
enum class HeadPlace { kGlobal, kShared };

template <DType kDType, int kMenu, int kFirst, HeadPlace kPlace, typename Sink>
UZIP_DEVICE bool decode_dense_tile_from(const TileCode& code, const DecodeTables& tables,
                                        const RankSymbols<kDType>& symbols, const uint8_t* head,
                                        const Tail& tail, LevelRoom<kDType>& room, Sink& sink,
                                        int lane) {
  // Far away, and few enough to be held while the digits are decoded.
  constexpr bool kEarly = kPlace == HeadPlace::kGlobal && float_format(kDType).byte_planes <= 1;
  HalfPlanes<kDType> planes[2];
  if constexpr (kEarly) {
    planes[0].load(code, head, 0, lane);
    planes[1].load(code, head, 1, lane);
  }
  SymbolDecoder<kDType, kMenu, kFirst> decoder(fixed_menu<kMenu>(code.menu), tables, symbols, tail,
                                               room, lane);
  decoder.load(head + code.digits);
  if (!decoder.measure()) return false;
  uint32_t quads[kQuads];
  decoder.expand(quads);
  const uint8_t* raw = decoder.wide_raw();
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

// Decodes a coded tile to a sink. False: malformed, and nothing went there.
template <DType kDType, int kMenu, HeadPlace kPlace = HeadPlace::kGlobal, typename Sink>
UZIP_DEVICE bool decode_dense_tile(const TileCode& code, const DecodeTables& tables,
                                   const RankSymbols<kDType>& symbols, const uint8_t* head,
                                   const Tail& tail, LevelRoom<kDType>& room, Sink& sink,
                                   int lane) {
  if constexpr (kMenu != kAnyMenu) {
    return decode_dense_tile_from<kDType, kMenu, kWidths<kMenu> & 15, kPlace>(
        code, tables, symbols, head, tail, room, sink, lane);
  } else {
    switch (code.menu.width(0)) {
      case 1:
        return decode_dense_tile_from<kDType, kMenu, 1, kPlace>(code, tables, symbols, head, tail,
                                                                room, sink, lane);
      case 2:
        return decode_dense_tile_from<kDType, kMenu, 2, kPlace>(code, tables, symbols, head, tail,
                                                                room, sink, lane);
      case 3:
        return decode_dense_tile_from<kDType, kMenu, 3, kPlace>(code, tables, symbols, head, tail,
                                                                room, sink, lane);
      default:
        return decode_dense_tile_from<kDType, kMenu, 4, kPlace>(code, tables, symbols, head, tail,
                                                                room, sink, lane);
    }
  }
}

}  // namespace uzip::gpu
