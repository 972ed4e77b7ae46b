// FORMAT.md in C++: constants, the header, and the arithmetic of places. FORMAT.md is normative.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform.hpp"

namespace uzip {

constexpr int kTileValues = 1024;
constexpr int kGroupTiles = 8;
constexpr int kAlignment = 16;  // bytes; the unit of offsets in a directory
constexpr int kWindow = 16;     // symbols
constexpr int kMaxBytePlanes = 6;
constexpr int kMaxSubPlanes = 2;

constexpr UZIP_HD uint64_t align_up(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

enum class DType : uint8_t {
  kBytes = 0,
  kBFloat16 = 1,
  kFloat16 = 2,
  kFloat32 = 3,
  kFloat64 = 4,
  kFloat8E4M3FN = 5,
  kFloat8E5M2 = 6,
};
constexpr int kDTypes = 7;

enum class Codec : uint8_t { kRaw = 0, kTier = 1, kAns = 2 };

// The fields of a value and the planes of its rest (sign and mantissa).
struct FloatFormat {
  uint8_t itemsize;       // bytes
  uint8_t exponent_bits;  // width of a symbol; 0 for kBytes
  uint8_t mantissa_bits;
  uint8_t byte_planes;  // rest bits 0 .. 8 * byte_planes - 1
  uint8_t
      sub_bits[kMaxSubPlanes];  // widths of the planes of the bits above, lowest first; 0: absent

  constexpr UZIP_HD int rest_bits() const { return mantissa_bits + 1; }
  constexpr UZIP_HD int symbols() const { return 1 << exponent_bits; }
  constexpr UZIP_HD int symbol_bytes() const { return exponent_bits > 8 ? 2 : 1; }
  constexpr UZIP_HD int tile_bytes() const { return kTileValues * itemsize; }
};

constexpr UZIP_HD FloatFormat float_format(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return {2, 8, 7, 1, {0, 0}};
    case DType::kFloat16:
      return {2, 5, 10, 1, {2, 1}};
    case DType::kFloat32:
      return {4, 8, 23, 3, {0, 0}};
    case DType::kFloat64:
      return {8, 11, 52, 6, {4, 1}};
    case DType::kFloat8E4M3FN:
      return {1, 4, 3, 0, {4, 0}};
    case DType::kFloat8E5M2:
      return {1, 5, 2, 0, {2, 1}};
    default:
      return {1, 0, 0, 0, {0, 0}};
  }
}

constexpr char kMagic[4] = {'U', 'Z', 'I', 'P'};
constexpr uint8_t kVersion = 1;
constexpr uint8_t kFlagChecksum = 1;
constexpr uint8_t kFlagPacked = 2;

struct Header {
  char magic[4];
  uint8_t version;
  uint8_t dtype;
  uint8_t codec;
  uint8_t flags;
  uint64_t count;        // values
  uint64_t frame_bytes;  // header included
  uint64_t checksum;     // 0 when absent
  uint8_t menu;
  uint8_t zero_planes;  // bit i: byte plane i is not stored
  uint16_t base;        // first symbol of the window
  uint8_t order[8];     // 16 nibbles, low first: offset from base of the symbol of each rank
  uint8_t reserved0[4];
  uint64_t body_bytes;  // size of the tail section
  uint8_t reserved1[8];
};
static_assert(sizeof(Header) == 64, "FORMAT.md: a header is 64 bytes");
static_assert(offsetof(Header, order) == 36 && offsetof(Header, body_bytes) == 48,
              "FORMAT.md: offsets of the header's fields");
constexpr size_t kHeaderBytes = sizeof(Header);

// A frame is never larger than this.
constexpr UZIP_HD uint64_t bound(uint64_t count, DType dtype) {
  return kHeaderBytes + count * float_format(dtype).itemsize;
}

// Digit widths of the tier codec, 0 after the last level.
constexpr int kMenus = 8;
constexpr int kMaxLevels = 5;
constexpr uint8_t kMenuWidths[kMenus][kMaxLevels] = {
    {4, 0, 0, 0, 0}, {3, 0, 0, 0, 0}, {2, 2, 2, 0, 0}, {2, 2, 3, 0, 0},
    {2, 1, 2, 2, 0}, {1, 2, 3, 0, 0}, {1, 1, 1, 2, 3}, {3, 2, 2, 0, 0},
};

enum class TileKind : uint8_t { kCoded = 0, kRaw = 1, kConstant = 2, kMasked = 3 };
constexpr int kTileSizeBits = 14;
constexpr int kMaskBytes = kTileValues / 8;

// The value at a position of a plane: runs of 8 values of two rows alternate (FORMAT.md, order of
// values).
constexpr UZIP_HD int value_of_position(int p) {
  const int row = (p >> 9) * 2 + ((p >> 3) & 1);
  const int lane = (p >> 4) & 31;
  return row * 256 + lane * 8 + (p & 7);
}

// Bytes of a plane of `width`-bit fields of n values.
constexpr UZIP_HD int plane_bytes(int width, int n) { return (width * n + 7) / 8; }

}  // namespace uzip
