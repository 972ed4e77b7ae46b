// What is needed to code a tile, from the parameters of a frame: in registers, or as tables for
// look-ups by quads.
#pragma once

#include "lanes_gpu.hpp"
#include "tier.hpp"

namespace uzip::gpu {

// Widths of a menu's levels, 4 bits each, 0 after the last; and the bits of the levels before each,
// likewise.
constexpr uint32_t pack_widths(int menu) {
  uint32_t packed = 0;
  for (int level = 0; level < kMaxLevels; ++level) {
    packed |= uint32_t{kMenuWidths[menu][level]} << 4 * level;
  }
  return packed;
}
constexpr uint32_t pack_shifts(int menu) {
  uint32_t packed = 0;
  uint32_t bits = 0;
  for (int level = 0; level <= kMaxLevels; ++level) {
    packed |= bits << 4 * level;
    if (level < kMaxLevels) bits += kMenuWidths[menu][level];
  }
  return packed;
}
constexpr int menu_levels(int menu) {
  int levels = 0;
  while (levels < kMaxLevels && kMenuWidths[menu][levels] != 0) ++levels;
  return levels;
}

// Constants to a device, which cannot call the functions.
template <int kMenu>
constexpr uint32_t kWidths = pack_widths(kMenu);
template <int kMenu>
constexpr uint32_t kShifts = pack_shifts(kMenu);
template <int kMenu>
constexpr int kLevels = menu_levels(kMenu);

// A menu in a form that registers hold.
struct Menu {
  uint32_t widths;
  uint32_t shifts;
  int levels;

  UZIP_DEVICE int width(int level) const { return static_cast<int>(widths >> 4 * level & 15); }
  // Bits of the levels before.
  UZIP_DEVICE int shift(int level) const { return static_cast<int>(shifts >> 4 * level & 15); }
  UZIP_DEVICE int digit_bits() const { return shift(kMaxLevels); }

  template <int kMenu>
  UZIP_DEVICE static Menu make() {
    return {kWidths<kMenu>, kShifts<kMenu>, kLevels<kMenu>};
  }
  UZIP_DEVICE static Menu of(int menu) {
    static_assert(kMenus == 8);
    switch (menu) {
      case 0:
        return make<0>();
      case 1:
        return make<1>();
      case 2:
        return make<2>();
      case 3:
        return make<3>();
      case 4:
        return make<4>();
      case 5:
        return make<5>();
      case 6:
        return make<6>();
      default:
        return make<7>();
    }
  }
};

// Coders are compiled for some menus, and once for any: kAnyMenu.
constexpr int kAnyMenu = -1;
template <int kMenu>
UZIP_DEVICE Menu fixed_menu(const Menu& menu) {
  if constexpr (kMenu == kAnyMenu) {
    return menu;
  } else {
    return Menu::make<kMenu>();
  }
}
template <int kMenu>
constexpr int kLevelUnroll = kMenu == kAnyMenu ? 1 : kMaxLevels;

// Calls code.run<menu>() where that is one of kMenus, else code.run<kAnyMenu>().
template <int... kMenus, typename Code>
UZIP_DEVICE void with_menu(int menu, Code& code) {
  const bool done = ((menu == kMenus && (code.template run<kMenus>(), true)) || ...);
  if (!done) code.template run<kAnyMenu>();
}

// Parameters of a frame, as a header has them.
struct TierParameters {
  int menu;
  uint32_t base;
  uint32_t zero_planes;
  uint32_t order[2];  // nibbles
};

UZIP_DEVICE uint32_t nibble(const uint32_t words[2], int i) {
  return words[i >> 3] >> 4 * (i & 7) & 15;
}

// What all lanes need to know to code a tile; every thread has its own.
struct TileCode {
  Menu menu;
  uint32_t base;
  uint32_t zero_planes;
  int stride;  // bytes of a head
  int digits;  // offset of level 1 in a head

  template <DType kDType>
  UZIP_DEVICE static TileCode of(const TierParameters& parameters) {
    constexpr FloatFormat kFormat = float_format(kDType);
    constexpr int kSubPlanes = plane_bytes(kFormat.sub_bits[0], kTileValues) +
                               plane_bytes(kFormat.sub_bits[1], kTileValues);
    TileCode code{Menu::of(parameters.menu), parameters.base, parameters.zero_planes, 0, 0};
    code.digits = code.byte_plane(kFormat.byte_planes) + kSubPlanes;
    code.stride = code.digits + plane_bytes(code.menu.width(0), kTileValues);
    return code;
  }

  UZIP_DEVICE bool stores(int plane) const { return (zero_planes >> plane & 1) == 0; }
  // Offset of a byte plane in a head; of the last one's end.
  UZIP_DEVICE int byte_plane(int plane) const {
    int place = 0;
    for (int i = 0; i < plane; ++i) place += stores(i) ? kTileValues : 0;
    return place;
  }
};

// The digits of the symbol at each offset of the window, as one byte: those of level 1 lowest.
// Where a level is not reached they are 0, so that all ones mean: no rank.
struct DigitTable {
  Table low;   // without bit 7
  Table high;  // bit 7
};

// The digits of a rank.
UZIP_DEVICE uint32_t digits_of_rank(const Menu& menu, int rank) {
  uint32_t digits = 0;
#pragma unroll
  for (int level = 0; level < kMaxLevels; ++level) {
    const int escape = (1 << menu.width(level)) - 1;
    const int digit = rank < escape ? rank : escape;
    digits |= static_cast<uint32_t>(digit) << menu.shift(level);
    rank = digit == escape ? rank - escape : 0;
  }
  // A rank that the menu lacks has used up no digit but escapes.
  return digits;
}

// Fills the entry of the symbol of a rank.
UZIP_DEVICE void set_digits(const Menu& menu, int offset, int rank, DigitTable* table) {
  const uint32_t digits = digits_of_rank(menu, rank);
  reinterpret_cast<uint8_t*>(table->low.words)[offset] = static_cast<uint8_t>(digits & 0x7F);
  reinterpret_cast<uint8_t*>(table->high.words)[offset] = static_cast<uint8_t>(digits >> 7);
}

// Offset from base of the symbol of each rank.
UZIP_DEVICE Table offsets_of_ranks(const uint32_t order[2]) {
  return {{unpack<4>(order[0]), unpack<4>(order[0] >> 16), unpack<4>(order[1]),
           unpack<4>(order[1] >> 16)}};
}

// How to pack the fields of some values of a quad, by a bit mask of these values.
struct Gather {
  uint32_t multiplier;  // moves the fields to the top bits of a word
  int bits;             // of the fields together
};

UZIP_DEVICE Gather make_gather(int mask, int width) {
  Gather gather{0, popcount(static_cast<uint32_t>(mask)) * width};
  int place = 32 - gather.bits;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if ((mask >> i & 1) == 0) continue;
    gather.multiplier |= 1u << (place - 8 * i);
    place += width;
  }
  return gather;
}

// The selector that hands out the next fields to the values of a mask; their number in the upper
// half.
UZIP_DEVICE uint32_t make_spread(int mask) {
  uint32_t selector = 0;
  uint32_t n = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool set = (mask >> i & 1) != 0;
    selector |= (set ? n : 4) << 4 * i;
    n += set ? 1 : 0;
  }
  return selector | n << 16;
}

// In shared memory, by mask.
struct GatherTables {
  Gather gathers[2][16];  // of 1-bit and of 2-bit fields

  UZIP_DEVICE void fill(int lane) {
    gathers[lane >> 4][lane & 15] = make_gather(lane & 15, 1 + (lane >> 4));
  }
};

// The values of a lane that reached a level, and where their fields are in the planes of that
// level.
struct Places {
  int first[2];  // index of the lane's first field in each half of the tile
  int n;         // fields of all lanes

  // `mask`: bit i set for value i of the lane.
  UZIP_DEVICE static Places of(uint32_t mask, int lane) {
    const uint32_t counts = static_cast<uint32_t>(popcount(mask & 0xFFFF)) |
                            static_cast<uint32_t>(popcount(mask >> 16)) << 16;
    uint32_t total;
    const uint32_t before = scan32(counts, lane, &total);
    const int half = static_cast<int>(total & 0xFFFF);
    return {{static_cast<int>(before & 0xFFFF), half + static_cast<int>(before >> 16)},
            half + static_cast<int>(total >> 16)};
  }
};

UZIP_DEVICE int digit_plane_bytes(int width, int n) {
  return width == 3 ? plane_bytes(2, n) + plane_bytes(1, n) : plane_bytes(width, n);
}

// Levels that few values reach are coded value by value instead of quad by quad; about where both
// cost the same.
constexpr int kSparse = 96;

// Most bytes of a tail: 7 bits of digits, and the symbol, of each value.
template <DType kDType>
constexpr int kTailBytes = kTileValues * 7 / 8 + kTileValues * float_format(kDType).symbol_bytes();

// Bytes of a warp in shared memory: a tail, and a byte for each value.
template <DType kDType>
struct alignas(16) WarpRoom {
  // Read and written by words; may begin within a chunk.
  uint32_t tail[kTailBytes<kDType> / 4 + 12];
  uint8_t bytes[kTileValues];

  // Of value i of a lane, next to those of the lane's other values in the half.
  UZIP_DEVICE uint8_t& byte(int lane, int i) { return bytes[lane * 16 + i + (i & 16) * 31]; }
  UZIP_DEVICE void store_quads(int lane, const uint32_t quads[kQuads]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* q = quads + kHalfQuads * half;
      reinterpret_cast<Chunk*>(bytes)[32 * half + lane] = Chunk{{q[0], q[1], q[2], q[3]}};
    }
  }
  UZIP_DEVICE void load_quads(int lane, uint32_t quads[kQuads]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Chunk chunk = reinterpret_cast<const Chunk*>(bytes)[32 * half + lane];
#pragma unroll
      for (int q = 0; q < kHalfQuads; ++q) quads[kHalfQuads * half + q] = chunk.words[q];
    }
  }
};

}  // namespace uzip::gpu
