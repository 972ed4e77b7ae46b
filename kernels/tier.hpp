// The tier codec: what a coder of whole tiles computes, and the arithmetic that all of them share.
//
// A value is split into its symbol (exponent) and its rest (sign, mantissa). The rest goes to
// planes of a tile's head; the symbol becomes a rank, the rank becomes digits, of which the first
// level is in the head and the others, which few values have, make the tail. The rank of a value is
// the sum of its digits, and a value whose digits are all escapes has the sum n_ranks: "no rank",
// its symbol is written raw.
#pragma once

#include <cstring>
#include <type_traits>

#include "format.hpp"

namespace uzip {

constexpr uint16_t kAbsent = 0xFFFF;  // place of a plane that is not stored

// A menu, a window and the places in a head: all that a tile's coding depends on.
struct TierCode {
  DType dtype;
  uint8_t menu;
  uint8_t levels;
  uint8_t widths[kMaxLevels];
  uint8_t n_ranks;
  uint8_t zero_planes;
  uint16_t base;
  uint8_t order[kWindow];               // offset of the symbol of each rank
  uint8_t rank_of_offset[kWindow];      // n_ranks for symbols without a rank
  uint8_t ranks_below[kWindow];         // n_ranks - rank_of_offset
  uint16_t symbol_of_rank[kWindow];     // 0 for ranks the menu does not have
  uint8_t exponent_bytes[2][kWindow];   // a rank's symbol in place: in the value's highest byte, in
                                        // the one below
  uint16_t byte_plane[kMaxBytePlanes];  // offsets in a head, or kAbsent
  uint16_t sub_plane[kMaxSubPlanes];
  uint16_t digits;  // offset of the digit plane of level 1
  uint16_t stride;  // bytes of a head
};

TierCode make_tier_code(DType dtype, int menu, int base, const uint8_t order[kWindow],
                        int zero_planes);

// Ranks that a menu codes.
constexpr int menu_ranks(int menu) {
  int ranks = 0;
  for (int level = 0; level < kMaxLevels; ++level) ranks += (1 << kMenuWidths[menu][level]) - 1;
  return ranks;
}

constexpr int kNotCodable = -1;  // a plane of zero_planes is not zero in the tile
constexpr int kMalformed = -1;   // the digits ask for more bytes than there are
constexpr int kTailSlack = 64;   // bytes that a coder may touch after the end of a tail
constexpr int kMaxHeadBytes = 8192;
constexpr int kMaxTailBytes =
    4096;  // 7 bits of digits and 2 bytes of symbol for each value, rounded up

// One way to code the whole tiles of a data type. All ways produce the same bytes.
struct TierCoder {
  // Writes head (stride bytes) and tail, at most kMaxTailBytes and kTailSlack more. Returns the
  // bytes of the tail, or kNotCodable.
  int (*encode)(const TierCode& code, const uint8_t* values, uint8_t* head, uint8_t* tail);
  // Writes 1024 values; may read kTailSlack bytes after the tail. Returns the bytes of the tail
  // that the digits ask for, or kMalformed where these are more than tail_bytes.
  int (*decode)(const TierCode& code, const uint8_t* head, const uint8_t* tail, int tail_bytes,
                uint8_t* values);
  // Writes the mask (kMaskBytes) of the values that are not zero bits, and these in order of
  // position, and may touch kTailSlack bytes behind them. Returns how many they are.
  int (*compact)(const uint8_t* values, uint8_t* mask, uint8_t* nonzeros);
  // The inverse; may read kTailSlack bytes behind the values.
  void (*expand)(const uint8_t* nonzeros, const uint8_t* mask, uint8_t* values);
};

TierCoder tier_coder_portable(DType dtype);
TierCoder tier_coder_avx2(DType dtype);
TierCoder tier_coder_avx512(DType dtype);
TierCoder tier_coder(DType dtype);  // of the path that simd.hpp has chosen

template <typename T>
inline T load(const void* from) {
  T word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

template <typename T>
inline void store(void* to, T word) {
  std::memcpy(to, &word, sizeof word);
}

// A value's bits, and their two parts.
template <DType kDType>
struct Value {
  static constexpr FloatFormat kFormat = float_format(kDType);
  using Word = std::conditional_t<
      kFormat.itemsize == 1, uint8_t,
      std::conditional_t<kFormat.itemsize == 2, uint16_t,
                         std::conditional_t<kFormat.itemsize == 4, uint32_t, uint64_t>>>;

  static constexpr UZIP_HD int symbol(Word value) {
    return static_cast<int>(value >> kFormat.mantissa_bits) & (kFormat.symbols() - 1);
  }
  static constexpr UZIP_HD Word rest(Word value) {
    const Word mantissa = value & ((Word{1} << kFormat.mantissa_bits) - 1);
    const Word sign = value >> (8 * sizeof(Word) - 1);
    return static_cast<Word>(sign << kFormat.mantissa_bits | mantissa);
  }
  static constexpr UZIP_HD Word join(int symbol, Word rest) {
    const Word mantissa = rest & ((Word{1} << kFormat.mantissa_bits) - 1);
    const Word sign = rest >> kFormat.mantissa_bits;
    return static_cast<Word>(sign << (8 * sizeof(Word) - 1) |
                             static_cast<Word>(symbol) << kFormat.mantissa_bits | mantissa);
  }
};

// Writes the symbol of the value at a position of the tile to the raw symbols; returns the end.
template <DType kDType>
inline uint8_t* put_raw_symbol(const uint8_t* values, int position, uint8_t* raw) {
  using V = Value<kDType>;
  const int symbol =
      V::symbol(load<typename V::Word>(values + value_of_position(position) * V::kFormat.itemsize));
  for (int i = 0; i < V::kFormat.symbol_bytes(); ++i)
    raw[i] = static_cast<uint8_t>(symbol >> 8 * i);
  return raw + V::kFormat.symbol_bytes();
}

// Replaces the symbol of the value at a position by the next raw one; returns the end.
template <DType kDType>
inline const uint8_t* take_raw_symbol(const uint8_t* raw, int position, uint8_t* values) {
  using V = Value<kDType>;
  using Word = typename V::Word;
  int symbol = raw[0];
  if (V::kFormat.symbol_bytes() == 2) symbol |= raw[1] << 8;
  uint8_t* place = values + value_of_position(position) * V::kFormat.itemsize;
  store<Word>(place, V::join(symbol & (V::kFormat.symbols() - 1), V::rest(load<Word>(place))));
  return raw + V::kFormat.symbol_bytes();
}

}  // namespace uzip
