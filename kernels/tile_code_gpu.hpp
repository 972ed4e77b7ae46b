// What is needed to code a tile, from the parameters of a frame: in registers, or as tables for
// look-ups by quads.
#pragma once

#include <type_traits>

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
constexpr uint32_t pack_first_widths() {
  uint32_t packed = 0;
  for (int menu = 0; menu < kMenus; ++menu) packed |= uint32_t{kMenuWidths[menu][0]} << 4 * menu;
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
constexpr uint32_t kFirstWidths = pack_first_widths();

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
  UZIP_DEVICE static int first_width(int menu) {
    return static_cast<int>(kFirstWidths >> 4 * menu & 15);
  }
  // Without branches, as lanes may ask for different ones.
  UZIP_DEVICE static Menu of(int menu) {
    static_assert(kMenus == 8);
    Menu found = make<0>();
    if (menu == 1) found = make<1>();
    if (menu == 2) found = make<2>();
    if (menu == 3) found = make<3>();
    if (menu == 4) found = make<4>();
    if (menu == 5) found = make<5>();
    if (menu == 6) found = make<6>();
    if (menu == 7) found = make<7>();
    return found;
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

// The menus that they are compiled for: those that normally and uniformly distributed values make
// best, and the one with fewest levels that is good for both.
template <int... kMenus>
struct MenuList {
  UZIP_DEVICE static constexpr bool has(int menu) { return ((menu == kMenus) || ...); }

  // Calls code.run<menu>() where that is one of the list, else code.run<kAnyMenu>().
  template <typename Code>
  UZIP_DEVICE static void choose(int menu, Code& code) {
    const bool done = ((menu == kMenus && (code.template run<kMenus>(), true)) || ...);
    if (!done) code.template run<kAnyMenu>();
  }
};
// Where each takes a compiler a minute, the one of several levels.
using CompiledMenus = std::conditional_t<kCompilesSoon, MenuList<1, 2, 3, 5>, MenuList<2>>;
// Of code that would take registers from what is around it.
using FewMenus = MenuList<1, 2, 3>;
// Those that the gathers of 2/2/3 serve: where they have a level, it has as many bits as there.
using ForeseenMenus = MenuList<0, 1, 2, 3>;

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
    code.stride = code.digits + plane_bytes(Menu::first_width(parameters.menu), kTileValues);
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

// Which of a lane's 32 values reach a level: bit 2i + h stands for value i of half h.
using Mask = uint32_t;
constexpr Mask kHalfMask = 0x55555555u;

// The values of a quad in a mask: bits 0, 2, 4 and 6. An index to tables.
UZIP_DEVICE uint32_t quad_mask(Mask mask, int half, int quad) {
  return mask >> (8 * quad + half) & 0x55;
}
constexpr int kQuadMasks = 0x56;
UZIP_DEVICE uint32_t spread_bits(uint32_t bits) {
  return (bits & 1) | (bits & 2) << 1 | (bits & 4) << 2 | (bits & 8) << 3;
}
// The bytes of the quad that these are.
UZIP_DEVICE uint32_t quad_bytes(Mask mask, int half, int quad) {
  return (quad_mask(mask, half, quad) * 0x00041041u & kOnes) * 0xFF;
}

// How to pack the fields of some values of a quad.
struct Gather {
  uint32_t multiplier;  // moves the fields to the top bits of a word
  int bits;             // of the fields together
};

// `values`: bit i is set for value i. The fields begin at bit `shift` of their bytes; elsewhere the
// quad is 0.
UZIP_DEVICE Gather make_gather(uint32_t values, int width, int shift) {
  Gather gather{0, popcount(values) * width};
  int place = 32 - gather.bits;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if ((values >> i & 1) == 0) continue;
    gather.multiplier |= 1u << (place - 8 * i - shift);
    place += width;
  }
  return gather;
}

// One half of a mask as indices to tables of gathers, one a byte, in the order of the quads: below
// 16, so that no two of a table are in the same bank. Values 1 and 2 have changed places in them.
constexpr int kGathers = 16;
UZIP_DEVICE uint32_t gather_indices(Mask mask, int half) {
  const uint32_t bits = mask >> half & kHalfMask;
  return (bits | bits >> 3) & 0x0F0F0F0Fu;
}
UZIP_DEVICE uint32_t gather_index(uint32_t indices, int quad) { return indices >> 8 * quad & 0xF; }

// The bytes of a quad that an index means, brought together: a selector for permute(), which makes
// the rest 0.
UZIP_DEVICE uint32_t values_of_index(int index) {
  return static_cast<uint32_t>((index & 9) | (index & 2) << 1 | (index & 4) >> 1);
}
UZIP_DEVICE uint32_t make_byte_selector(uint32_t values) {
  uint32_t selector = 0x4444;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    if ((values >> i & 1) != 0) selector = selector << 4 | static_cast<uint32_t>(i);
  }
  return selector & 0xFFFF;
}

// In shared memory: of the digits of each level but the first, of which a 3-bit digit has its low
// two bits here and its high bit apart. No menu has two such levels. Those of the first level,
// where it has at most two bits, are where only menus of most levels have another.
struct GatherTables {
  Gather levels[kMaxLevels - 1][kGathers];
  Gather high[kGathers];
  uint32_t byte_selectors[kGathers];

  UZIP_DEVICE const Gather* first_level() const { return levels[kMaxLevels - 2]; }

  // By kMaxLevels * kGathers threads at least.
  UZIP_DEVICE void fill(const Menu& menu, int thread) {
    const int level = thread / kGathers + 1;
    if (level > kMaxLevels) return;
    const int index = thread % kGathers;
    const uint32_t values = values_of_index(index);
    if (level < menu.levels) {
      const int width = menu.width(level) < 2 ? 1 : 2;
      levels[level - 1][index] = make_gather(values, width, menu.shift(level));
    } else if (level == kMaxLevels - 1) {
      levels[level - 1][index] = make_gather(values, menu.width(0) < 2 ? 1 : 2, 0);
    } else if (level == kMaxLevels) {
      high[index] = make_gather(values, 1, menu.digit_bits() - 1);
      byte_selectors[index] = make_byte_selector(values);
    }
  }
};

// The values of a lane that reached a level, and where their fields are in the planes of that
// level.
struct Places {
  int first[2];  // index of the lane's first field in each half of the tile
  int n;         // fields of all lanes

  UZIP_DEVICE static Places of(Mask mask, int lane) {
    const uint32_t counts = static_cast<uint32_t>(popcount(mask & kHalfMask)) |
                            static_cast<uint32_t>(popcount(mask & ~kHalfMask)) << 16;
    uint32_t total;
    const uint32_t before = scan32(counts, lane, &total);
    const int half = static_cast<int>(total & 0xFFFF);
    return {{static_cast<int>(before & 0xFFFF), half + static_cast<int>(before >> 16)},
            half + static_cast<int>(total >> 16)};
  }

  // Index of the next field of a half.
  UZIP_DEVICE int take(int half) { return half == 0 ? first[0]++ : first[1]++; }
};

UZIP_DEVICE int digit_plane_bytes(int width, int n) {
  return width == 3 ? plane_bytes(2, n) + plane_bytes(1, n) : plane_bytes(width, n);
}

// Levels that so few values reach are coded from a list of these values, two a lane, instead of
// quad by quad.
constexpr int kSparse = 2 * kLanes;

// Most bytes of a tail: 7 bits of digits, and the symbol, of each value.
template <DType kDType>
constexpr int kTailBytes = kTileValues * 7 / 8 + kTileValues * float_format(kDType).symbol_bytes();
// Words of a room for a tail: up to two behind it are cleared and ORed to.
template <DType kDType>
constexpr int kTailWords = kTailBytes<kDType> / 4 + 2;

// What a warp needs in shared memory to make a tail: a byte for each value, and a list of some.
template <DType kDType>
struct alignas(16) OffsetRoom {
  uint8_t bytes[kTileValues];
  // Of values in order of position: their offsets from the window's base, or, where these are no
  // bytes, their symbols.
  using Listed = typename Item<float_format(kDType).symbol_bytes()>::Word;
  alignas(16) Listed list[kSparse];

  // Those of a lane's values in a half.
  UZIP_DEVICE const uint8_t* half(int lane, int half) const {
    return bytes + lane * 16 + half * 512;
  }
  UZIP_DEVICE void store_half(int lane, int half, const uint32_t quads[kHalfQuads]) {
    reinterpret_cast<Chunk*>(bytes)[32 * half + lane] =
        Chunk{{quads[0], quads[1], quads[2], quads[3]}};
  }
};

// The same, with the tail.
template <DType kDType>
struct alignas(16) WarpRoom {
  OffsetRoom<kDType> offsets;
  uint32_t tail[kTailWords<kDType>];
};

}  // namespace uzip::gpu
