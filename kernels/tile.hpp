// Tiles of a tier frame: which kind a tile becomes, and what surrounds its planes.
#pragma once

#include "tier.hpp"

namespace uzip {

// Bytes that encoding a tile may touch behind the place where it begins to write.
constexpr int kTileRoom = kMaskBytes + kMaxHeadBytes + kMaxTailBytes + kTailSlack;
constexpr int kMaxTileSize = (1 << kTileSizeBits) - 1;

struct TileEntry {
  TileKind kind;
  int size;  // bytes: of the tail (dense), of the whole padded tile (packed)

  uint16_t word() const {
    return static_cast<uint16_t>(static_cast<int>(kind) << kTileSizeBits | size);
  }
  static TileEntry of(uint16_t word) {
    return {static_cast<TileKind>(word >> kTileSizeBits), word & kMaxTileSize};
  }
};

// Calls visit(offset in a head, field width) for every plane of a head, in order.
template <typename Visit>
void for_each_plane(const TierCode& code, Visit visit) {
  const FloatFormat format = float_format(code.dtype);
  for (int i = 0; i < format.byte_planes; ++i) {
    if (code.byte_plane[i] != kAbsent) visit(code.byte_plane[i], 8);
  }
  for (int i = 0; i < kMaxSubPlanes && format.sub_bits[i] != 0; ++i) {
    visit(code.sub_plane[i], format.sub_bits[i]);
  }
  const int width = code.widths[0];
  visit(code.digits, width == 3 ? 2 : width);
  if (width == 3) visit(code.digits + plane_bytes(2, kTileValues), 1);
}

// Dense: the head goes to `head`, the tail to `tail` (kTileRoom bytes).
TileEntry encode_dense_tile(const TierCode& code, const TierCoder& coder, const uint8_t* values,
                            uint8_t* head, uint8_t* tail);

// Packed: the whole tile, padded, goes to `out` (kTileRoom bytes).
TileEntry encode_packed_tile(const TierCode& code, const TierCoder& coder, const uint8_t* values,
                             uint8_t* out);

// `tail` holds entry.size bytes and kTailSlack more that may be read. Throws FormatError.
void decode_dense_tile(const TierCode& code, const TierCoder& coder, TileEntry entry,
                       const uint8_t* head, const uint8_t* tail, uint8_t* values);

// `tile` holds entry.size bytes and kTailSlack more that may be read. Throws FormatError.
void decode_packed_tile(const TierCode& code, const TierCoder& coder, TileEntry entry,
                        const uint8_t* tile, uint8_t* values);

}  // namespace uzip
