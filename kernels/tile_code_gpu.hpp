// What is needed to code a tile, from the parameters of a frame: in registers, or as tables for
// look-ups by quads.
#pragma once

#include <type_traits>

#include "lanes_gpu.hpp"
#include "tier.hpp"

namespace uzip::gpu {

// Widths of a menu's levels, 4 bits each, 0 after the last.
constexpr uint32_t pack_widths(int menu) {
  uint32_t packed = 0;
  for (int level = 0; level < kMaxLevels; ++level) {
    packed |= uint32_t{kMenuWidths[menu][level]} << 4 * level;
  }
  return packed;
}

// The digits of a value as one byte: for each level a field of two bits at most, its digit or the
// low bits of that, and another for the high bits of wider digits. Fields of two bits come first,
// so that each is one of the four pairs of a byte.
constexpr int low_width(int width) { return width < 2 ? width : 2; }
// Where these fields are, 4 bits for each level.
constexpr uint32_t pack_places(int menu, bool high) {
  uint32_t packed = 0;
  int place = 0;
  for (int width = 2; width >= 1; --width) {
    for (int level = 0; level < kMaxLevels; ++level) {
      const int low = low_width(kMenuWidths[menu][level]);
      for (const bool is_high : {false, true}) {
        if ((is_high ? kMenuWidths[menu][level] - low : low) != width) continue;
        if (is_high == high) packed |= static_cast<uint32_t>(place) << 4 * level;
        place += width;
      }
    }
  }
  return packed;
}
constexpr int menu_bits(int menu) {
  int bits = 0;
  for (int level = 0; level < kMaxLevels; ++level) bits += kMenuWidths[menu][level];
  return bits;
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
constexpr uint32_t kLowPlaces = pack_places(kMenu, false);
template <int kMenu>
constexpr uint32_t kHighPlaces = pack_places(kMenu, true);
template <int kMenu>
constexpr int kDigitBits = menu_bits(kMenu);
template <int kMenu>
constexpr int kLevels = menu_levels(kMenu);
constexpr uint32_t kFirstWidths = pack_first_widths();

// A menu in a form that registers hold.
struct Menu {
  uint32_t widths;
  uint32_t low_places;
  uint32_t high_places;
  int levels;
  int digit_bits;

  UZIP_DEVICE int width(int level) const { return static_cast<int>(widths >> 4 * level & 15); }
  // Of the fields of a level in a value's digits.
  UZIP_DEVICE int low_place(int level) const {
    return static_cast<int>(low_places >> 4 * level & 15);
  }
  UZIP_DEVICE int high_place(int level) const {
    return static_cast<int>(high_places >> 4 * level & 15);
  }

  template <int kMenu>
  UZIP_DEVICE static Menu make() {
    return {kWidths<kMenu>, kLowPlaces<kMenu>, kHighPlaces<kMenu>, kLevels<kMenu>,
            kDigitBits<kMenu>};
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

// The digits of the symbols of the window, in the order of the symbols' low four bits. Where a level
// is not reached they are 0, so that all ones mean: no rank.
struct DigitTable {
  Table low;   // without bit 7
  Table high;  // bit 7
};

// Where the symbol at an offset of the window is in these tables.
template <DType kDType>
UZIP_DEVICE int table_place(uint32_t base, int offset) {
  // Symbols of two bytes are looked up by their offsets.
  if constexpr (float_format(kDType).symbol_bytes() == 2) return offset;
  return static_cast<int>(base + static_cast<uint32_t>(offset)) % kWindow;
}

// The digits of a rank.
UZIP_DEVICE uint32_t digits_of_rank(const Menu& menu, int rank) {
  uint32_t digits = 0;
#pragma unroll
  for (int level = 0; level < kMaxLevels; ++level) {
    const int escape = (1 << menu.width(level)) - 1;
    const int digit = rank < escape ? rank : escape;
    digits |= static_cast<uint32_t>(digit & 3) << menu.low_place(level);
    digits |= static_cast<uint32_t>(digit >> 2) << menu.high_place(level);
    rank = digit == escape ? rank - escape : 0;
  }
  // A rank that the menu lacks has used up no digit but escapes.
  return digits;
}

// Fills the entry of the symbol of a rank.
UZIP_DEVICE void set_digits(const Menu& menu, int place, int rank, DigitTable* table) {
  const uint32_t digits = digits_of_rank(menu, rank);
  reinterpret_cast<uint8_t*>(table->low.words)[place] = static_cast<uint8_t>(digits & 0x7F);
  reinterpret_cast<uint8_t*>(table->high.words)[place] = static_cast<uint8_t>(digits >> 7);
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

// One half of a mask, bit 2i for value i, as the masks of its quads, one a byte: below 16. Values 1
// and 2 have changed places in them.
constexpr int kQuadKinds = 16;
UZIP_DEVICE uint32_t quad_kinds(uint32_t mask) { return (mask | mask >> 3) & 0x0F0F0F0Fu; }
// The values of a quad that its kind means: bit i is set for value i.
UZIP_DEVICE uint32_t values_of_kind(uint32_t kind) {
  return (kind & 9) | (kind & 2) << 1 | (kind & 4) >> 1;
}

// Bits 0, 2, 4, .. to bits 0..15.
UZIP_DEVICE uint32_t gather_half(uint32_t mask) {
  uint32_t bits = mask & kHalfMask;
  bits = (bits | bits >> 1) & 0x33333333u;
  bits = (bits | bits >> 2) & 0x0F0F0F0Fu;
  bits = (bits | bits >> 4) & 0x00FF00FFu;
  return (bits | bits >> 8) & 0xFFFF;
}

// The low eight pairs of bits as nibbles.
UZIP_DEVICE uint32_t spread_pairs(uint32_t pairs) {
  pairs = ((pairs & 0xFFFF) | pairs << 8) & 0x00FF00FFu;
  pairs = (pairs | pairs << 4) & 0x0F0F0F0Fu;
  return (pairs | pairs << 2) & 0x33333333u;
}

// Of some values of a quad, by its kind, what belongs to these brought together; in shared memory.
struct EncodeTables {
  uint8_t pairs[kQuadKinds << 8];        // of four pairs of bits
  uint32_t byte_selectors[kQuadKinds];  // for permute(), which makes the rest 0

  // By some threads of a block, thread 0 to `threads` - 1.
  UZIP_DEVICE void fill(int thread, int threads) {
#pragma unroll 1
    for (int i = thread; i < kQuadKinds << 6; i += threads) {
      reinterpret_cast<uint32_t*>(pairs)[i] = make_pairs(static_cast<uint32_t>(i));
    }
    if (thread < kQuadKinds) {
      byte_selectors[thread] = make_byte_selector(values_of_kind(static_cast<uint32_t>(thread)));
    }
  }

  // The pairs of bits of the values in a mask of a half, brought together.
  UZIP_DEVICE uint32_t compress(uint32_t half, uint32_t mask) const {
    const uint32_t kinds = quad_kinds(mask);
    const uint32_t twos = mask + (mask >> 2);  // of two neighbours each, in every other pair
    const uint32_t counts = (twos & 0x03030303u) + (twos >> 4 & 0x03030303u);
    const uint32_t ends = counts * (2 * kOnes);  // of the quads, in bits
    uint32_t packed = pairs[permute(half, kinds, 0xCC40)];
    packed |= funnel_left(0, pairs[permute(half, kinds, 0xCC51)], static_cast<int>(ends));
    packed |= funnel_left(0, pairs[permute(half, kinds, 0xCC62)], static_cast<int>(ends >> 8));
    packed |= funnel_left(0, pairs[permute(half, kinds, 0xCC73)], static_cast<int>(ends >> 16));
    return packed;
  }

 private:
  // Four entries of a kind: the first values' pairs are 0, 1, 2 and 3, of the others all the same.
  UZIP_DEVICE static uint32_t make_pairs(uint32_t index) {
    const uint32_t values = values_of_kind(index >> 6);
    uint32_t packed = (values & 1) != 0 ? 0x03020100u : 0;
    int place = 2 * static_cast<int>(values & 1);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      if ((values >> i & 1) == 0) continue;
      packed |= (index >> 2 * (i - 1) & 3) * kOnes << place;
      place += 2;
    }
    return packed;
  }
  UZIP_DEVICE static uint32_t make_byte_selector(uint32_t values) {
    uint32_t selector = 0x4444;
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      if ((values >> i & 1) != 0) selector = selector << 4 | static_cast<uint32_t>(i);
    }
    return selector & 0xFFFF;
  }
};

// The values of a lane that reached a level, and where their fields are in the planes of that
// level.
struct Places {
  int first[2];  // index of the lane's first field in each half of the tile
  int n;         // fields of all lanes

  UZIP_DEVICE static Places of(Mask mask, int lane) {
    return of(mask & kHalfMask, mask & ~kHalfMask, lane);
  }
  // Of the values in two masks, one for each half.
  UZIP_DEVICE static Places of(uint32_t first_half, uint32_t second_half, int lane) {
    const uint32_t counts = static_cast<uint32_t>(popcount(first_half)) |
                            static_cast<uint32_t>(popcount(second_half)) << 16;
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

// Most bytes of a tail: 7 bits of digits, and the symbol, of each value.
template <DType kDType>
constexpr int kTailBytes = kTileValues * 7 / 8 + kTileValues * float_format(kDType).symbol_bytes();
// Words of a room for a tail: up to two behind it are cleared and ORed to.
template <DType kDType>
constexpr int kTailWords = kTailBytes<kDType> / 4 + 2;

// What a warp needs in shared memory to make a tail: the symbols without a rank, in order of
// position, if they are so few.
constexpr int kFewRaw = 2 * kLanes;
template <DType kDType>
struct alignas(16) RawRoom {
  using Symbol = typename Item<float_format(kDType).symbol_bytes()>::Word;
  Symbol symbols[kFewRaw];
};

// The same, with the tail.
template <DType kDType>
struct alignas(16) WarpRoom {
  RawRoom<kDType> raw;
  uint32_t tail[kTailWords<kDType>];
};

}  // namespace uzip::gpu
