// What a lane holds of a tile, and how its values become planes: 4 rows of 8 values, as 8 quads.
//
// Lane l owns values 8l .. 8l+7 of each of the 4 rows of 256, and thereby the positions 16l ..
// 16l+15 of each half of every plane (FORMAT.md, order of values). Value i of a lane, 0..31, is
// value i & 3 of quad i / 4; quads 0..3 are in half 0 of the planes. The work on a quad costs about
// as much as it would on one value.
#pragma once

#include "format.hpp"
#include "swar_gpu.hpp"

namespace uzip::gpu {

constexpr int kLanes = 32;
constexpr int kQuads = 8;
constexpr int kHalfQuads = 4;
constexpr uint32_t kSignBits = 0x80808080u;

constexpr int kRows = 4;
constexpr int kRowValues = kTileValues / kRows;

// Of value i of a lane in its tile.
UZIP_DEVICE int value_index(int lane, int i) { return (i >> 3) * kRowValues + lane * 8 + (i & 7); }

// Byte k of four words becomes byte 0..3 of planes[k].
UZIP_DEVICE void transpose(const uint32_t words[4], uint32_t planes[4]) {
  const uint32_t a = permute(words[0], words[1], 0x5140);
  const uint32_t b = permute(words[2], words[3], 0x5140);
  const uint32_t c = permute(words[0], words[1], 0x7362);
  const uint32_t d = permute(words[2], words[3], 0x7362);
  planes[0] = permute(a, b, 0x5410);
  planes[1] = permute(a, b, 0x7632);
  planes[2] = permute(c, d, 0x5410);
  planes[3] = permute(c, d, 0x7632);
}
// Its own inverse, as a transposition is.

// A quad's fields. Bytes of `offset` below 16 are offsets from the window's base.
template <DType kDType>
struct Quad {
  static constexpr FloatFormat kFormat = float_format(kDType);
  static constexpr int kWords = kFormat.itemsize;  // four values
  static constexpr int kBytePlanes = kFormat.byte_planes;

  uint32_t byte_plane[kBytePlanes > 0 ? kBytePlanes : 1];
  uint32_t sub_plane[kMaxSubPlanes];
  uint32_t offset;

  UZIP_DEVICE static Quad split(const uint32_t words[kWords], uint32_t base);
  // `symbol`: bytes; for 11-bit symbols offsets that are below 16.
  UZIP_DEVICE void join(uint32_t symbol, uint32_t base, uint32_t words[kWords]) const;
};

// Of the top two bytes of values with 8-bit exponents: symbols, and the byte of sign and upper
// mantissa.
UZIP_DEVICE uint32_t symbols8(uint32_t top, uint32_t second) {
  return blend(0xFEFEFEFEu, top << 1, second >> 7);
}

template <DType kDType>
UZIP_DEVICE Quad<kDType> Quad<kDType>::split(const uint32_t words[kWords], uint32_t base) {
  Quad quad;
  if constexpr (kDType == DType::kBFloat16) {
    const uint32_t top = permute(words[0], words[1], 0x7531);
    const uint32_t second = permute(words[0], words[1], 0x6420);
    quad.byte_plane[0] = blend(kSignBits, top, second);
    quad.offset = subtract_bytes(symbols8(top, second), repeat(static_cast<int>(base)));
  } else if constexpr (kDType == DType::kFloat16) {
    const uint32_t top = permute(words[0], words[1], 0x7531);
    quad.byte_plane[0] = permute(words[0], words[1], 0x6420);
    quad.sub_plane[0] = top & 0x03030303u;
    quad.sub_plane[1] = top >> 7 & kOnes;
    const uint32_t symbol = top >> 2 & 0x1F1F1F1Fu;
    quad.offset = (symbol + repeat(static_cast<int>(32 - base))) & 0x1F1F1F1Fu;
  } else if constexpr (kDType == DType::kFloat32) {
    uint32_t bytes[4];
    transpose(words, bytes);
    quad.byte_plane[0] = bytes[0];
    quad.byte_plane[1] = bytes[1];
    quad.byte_plane[2] = blend(kSignBits, bytes[3], bytes[2]);
    quad.offset = subtract_bytes(symbols8(bytes[3], bytes[2]), repeat(static_cast<int>(base)));
  } else if constexpr (kDType == DType::kFloat64) {
    const uint32_t low[4] = {words[0], words[2], words[4], words[6]};
    const uint32_t high[4] = {words[1], words[3], words[5], words[7]};
    transpose(low, quad.byte_plane);
    uint32_t bytes[4];
    transpose(high, bytes);
    quad.byte_plane[4] = bytes[0];
    quad.byte_plane[5] = bytes[1];
    quad.sub_plane[0] = bytes[2] & 0x0F0F0F0Fu;
    quad.sub_plane[1] = bytes[3] >> 7 & kOnes;
    uint32_t offset[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      offset[i] = ((high[i] >> 20) - base) & 0x7FF;
      offset[i] = offset[i] < kWindow ? offset[i] : kWindow;
    }
    quad.offset = offset[0] | offset[1] << 8 | offset[2] << 16 | offset[3] << 24;
  } else if constexpr (kDType == DType::kFloat8E4M3FN) {
    quad.sub_plane[0] = (words[0] & 0x07070707u) | (words[0] >> 4 & 0x08080808u);
    const uint32_t symbol = words[0] >> 3 & 0x0F0F0F0Fu;
    quad.offset = (symbol + repeat(static_cast<int>(16 - base))) & 0x0F0F0F0Fu;
  } else {
    static_assert(kDType == DType::kFloat8E5M2);
    quad.sub_plane[0] = words[0] & 0x03030303u;
    quad.sub_plane[1] = words[0] >> 7 & kOnes;
    const uint32_t symbol = words[0] >> 2 & 0x1F1F1F1Fu;
    quad.offset = (symbol + repeat(static_cast<int>(32 - base))) & 0x1F1F1F1Fu;
  }
  return quad;
}

template <DType kDType>
UZIP_DEVICE void Quad<kDType>::join(uint32_t symbol, uint32_t base, uint32_t words[kWords]) const {
  if constexpr (kDType == DType::kBFloat16) {
    const uint32_t top = blend(kSignBits, byte_plane[0], symbol >> 1);
    const uint32_t second = blend(kSignBits, symbol << 7, byte_plane[0]);
    words[0] = permute(second, top, 0x5140);
    words[1] = permute(second, top, 0x7362);
  } else if constexpr (kDType == DType::kFloat16) {
    const uint32_t top = sub_plane[1] << 7 | symbol << 2 | sub_plane[0];
    words[0] = permute(byte_plane[0], top, 0x5140);
    words[1] = permute(byte_plane[0], top, 0x7362);
  } else if constexpr (kDType == DType::kFloat32) {
    const uint32_t bytes[4] = {byte_plane[0], byte_plane[1],
                               blend(kSignBits, symbol << 7, byte_plane[2]),
                               blend(kSignBits, byte_plane[2], symbol >> 1)};
    transpose(bytes, words);
  } else if constexpr (kDType == DType::kFloat64) {
    uint32_t low[4];
    transpose(byte_plane, low);
    const uint32_t bytes[4] = {byte_plane[4], byte_plane[5], sub_plane[0], sub_plane[1] << 7};
    uint32_t high[4];
    transpose(bytes, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[2 * i] = low[i];
      words[2 * i + 1] = high[i] | (((symbol >> 8 * i & 0xFF) + base) & 0x7FF) << 20;
    }
  } else if constexpr (kDType == DType::kFloat8E4M3FN) {
    words[0] = (sub_plane[0] & 0x07070707u) | (sub_plane[0] << 4 & kSignBits) | symbol << 3;
  } else {
    static_assert(kDType == DType::kFloat8E5M2);
    words[0] = sub_plane[0] | sub_plane[1] << 7 | symbol << 2;
  }
}

// A run of 8 values: two quads.
template <DType kDType>
struct Run {
  static constexpr int kWords = 2 * Quad<kDType>::kWords;
  uint32_t words[kWords];

  // Chunks of 16 bytes where both the address and the data type allow it, else single values.
  template <bool kAligned>
  UZIP_DEVICE static Run load(const uint8_t* from);
  UZIP_DEVICE static Run load(const uint8_t* from, bool aligned) {
    return aligned ? load<true>(from) : load<false>(from);
  }
  UZIP_DEVICE void store(uint8_t* to, bool aligned) const;
};

template <int kBytes>
struct Item;
template <>
struct Item<1> {
  using Word = uint8_t;
};
template <>
struct Item<2> {
  using Word = uint16_t;
};
template <>
struct Item<4> {
  using Word = uint32_t;
};
template <>
struct Item<8> {
  using Word = uint64_t;
};

struct alignas(8) Pair {
  uint32_t words[2];
};

template <DType kDType>
template <bool kAligned>
UZIP_DEVICE Run<kDType> Run<kDType>::load(const uint8_t* from) {
  Run run;
  constexpr int kItem = float_format(kDType).itemsize;
  if constexpr (kAligned) {
    if constexpr (kItem == 1) {
      const Pair pair = *reinterpret_cast<const Pair*>(from);
      run.words[0] = pair.words[0];
      run.words[1] = pair.words[1];
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const Chunk chunk = reinterpret_cast<const Chunk*>(from)[i];
#pragma unroll
        for (int k = 0; k < 4; ++k) run.words[4 * i + k] = chunk.words[k];
      }
    }
    return run;
  }
  using Word = typename Item<kItem>::Word;
  const Word* items = reinterpret_cast<const Word*>(from);
  if constexpr (kItem == 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      run.words[2 * i] = static_cast<uint32_t>(items[i]);
      run.words[2 * i + 1] = static_cast<uint32_t>(items[i] >> 32);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      run.words[i] = 0;
#pragma unroll
      for (int k = 0; k < 4 / kItem; ++k) {
        run.words[i] |= static_cast<uint32_t>(items[i * (4 / kItem) + k]) << 8 * kItem * k;
      }
    }
  }
  return run;
}

template <DType kDType>
UZIP_DEVICE void Run<kDType>::store(uint8_t* to, bool aligned) const {
  constexpr int kItem = float_format(kDType).itemsize;
  if (aligned) {
    if constexpr (kItem == 1) {
      *reinterpret_cast<Pair*>(to) = Pair{{words[0], words[1]}};
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        Chunk chunk;
#pragma unroll
        for (int k = 0; k < 4; ++k) chunk.words[k] = words[4 * i + k];
        reinterpret_cast<Chunk*>(to)[i] = chunk;
      }
    }
    return;
  }
  using Word = typename Item<kItem>::Word;
  Word* items = reinterpret_cast<Word*>(to);
  if constexpr (kItem == 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) items[i] = uint64_t{words[2 * i + 1]} << 32 | words[2 * i];
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
#pragma unroll
      for (int k = 0; k < 4 / kItem; ++k) {
        items[i * (4 / kItem) + k] = static_cast<Word>(words[i] >> 8 * kItem * k);
      }
    }
  }
}

}  // namespace uzip::gpu
