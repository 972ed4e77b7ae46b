// One warp codes one tile of the packed layout (FORMAT.md, tile kinds).
//
// A tile's head and tail are made in shared memory as for the dense layout. Of a masked tile the
// zeros count as coded in no level; then its planes are made dense in place, one after the other,
// as a scan over the mask tells where each lane's fields go.
#pragma once

#include "tier_encode_gpu.hpp"

namespace uzip::gpu {

template <DType kDType>
constexpr int max_stride() {
  constexpr FloatFormat kFormat = float_format(kDType);
  return kFormat.byte_planes * kTileValues + plane_bytes(kFormat.sub_bits[0], kTileValues) +
         plane_bytes(kFormat.sub_bits[1], kTileValues) + plane_bytes(4, kTileValues);
}

// What a warp needs in shared memory.
template <DType kDType>
struct alignas(16) PackedRoom {
  WarpRoom<kDType> coder;
  alignas(16) uint8_t planes[max_stride<kDType>() + 16];  // somewhat more is ORed to
};

// A tile whose bytes are in the room, or, if raw or constant, in the tensor.
struct PackedTile {
  TileKind kind;
  int size;  // padded
  int body_bytes;
  int tail_bytes;
  Mask present;  // of the lane's values
};

// The values of a lane that are not zero bits; whether all values of the tile equal its first.
template <DType kDType>
UZIP_DEVICE Mask find_values(const uint8_t* values, bool aligned, int lane, bool* constant) {
  constexpr FloatFormat kFormat = float_format(kDType);
  using Word = typename Value<kDType>::Word;
  const Word first = *reinterpret_cast<const Word*>(values);
  Mask mask = 0;
  bool differs = false;
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    Run<kDType> run;
    load_rows<kDType, 1>(values, row, aligned, lane, &run);
    Mask here = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      Word value;
      if constexpr (kFormat.itemsize == 8) {
        value = uint64_t{run.words[2 * i + 1]} << 32 | run.words[2 * i];
      } else {
        value = static_cast<Word>(run.words[i * kFormat.itemsize / 4] >>
                                  8 * (i * kFormat.itemsize % 4));
      }
      differs = differs || value != first;
      here |= value != 0 ? 1u << 2 * i : 0;
    }
    mask |= here << (16 * (row % 2) + row / 2);
  }
  *constant = !any32(differs);
  return mask;
}

// Bits 0, 2, 4, .. to bits 0..15.
UZIP_DEVICE uint32_t gather_half(Mask mask) {
  uint32_t bits = mask & kHalfMask;
  bits = (bits | bits >> 1) & 0x33333333u;
  bits = (bits | bits >> 2) & 0x0F0F0F0Fu;
  bits = (bits | bits >> 4) & 0x00FF00FFu;
  return (bits | bits >> 8) & 0xFFFF;
}

// Keeps the bytes of the values in the mask.
UZIP_DEVICE void keep_values(Mask mask, uint32_t quads[kQuads]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      const uint32_t bits = gather_half(quad_mask(mask, half, q));
      quads[kHalfQuads * half + q] &= unpack<1>(bits) * 0xFF;
    }
  }
}

// Moves the fields of the values in the mask from a plane of a whole tile to one of n values, which
// ends no later. By a warp.
UZIP_DEVICE void pack_bytes(uint8_t* body, int from, int to, Mask mask, const Places& places,
                            int lane) {
  const auto* plane = reinterpret_cast<const Chunk*>(body + from);
  const Chunk chunks[2] = {plane[lane], plane[kLanes + lane]};
  sync_lanes();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint8_t* place = body + to + places.first[half];
#pragma unroll
    for (int i = 0; i < 4 * kHalfQuads; ++i) {
      if ((mask >> (2 * i + half) & 1) == 0) continue;
      *place++ = static_cast<uint8_t>(chunks[half].words[i / 4] >> 8 * (i % 4));
    }
  }
  sync_lanes();
}

template <int kWidth>
UZIP_DEVICE void pack_fields(uint8_t* body, int from, int to, Mask mask, const Places& places,
                             int lane) {
  uint64_t fields[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint8_t* plane = body + from;
    const int strip = 32 * half + lane;
    if constexpr (kWidth == 1) fields[half] = reinterpret_cast<const uint16_t*>(plane)[strip];
    if constexpr (kWidth == 2) fields[half] = reinterpret_cast<const uint32_t*>(plane)[strip];
    if constexpr (kWidth == 4) {
      const Pair pair = reinterpret_cast<const Pair*>(plane)[strip];
      fields[half] = uint64_t{pair.words[1]} << 32 | pair.words[0];
    }
  }
  sync_lanes();
  for (int i = lane; i < plane_bytes(kWidth, places.n); i += kLanes) body[to + i] = 0;
  sync_lanes();
  auto* words = reinterpret_cast<uint32_t*>(body);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint64_t packed = 0;
    int bits = 0;
#pragma unroll
    for (int i = 0; i < 4 * kHalfQuads; ++i) {
      if ((mask >> (2 * i + half) & 1) == 0) continue;
      packed |= (fields[half] >> kWidth * i & ((1u << kWidth) - 1)) << bits;
      bits += kWidth;
    }
    const int bit = 8 * to + kWidth * places.first[half];
    or_bits(words, bit, static_cast<uint32_t>(packed));
    if (kWidth == 4 && bits > 32) {
      or_bits(words, bit + 32, static_cast<uint32_t>(packed >> 32));
    }
  }
  sync_lanes();
}

UZIP_DEVICE void pack_fields(int width, uint8_t* body, int from, int to, Mask mask,
                             const Places& places, int lane) {
  switch (width) {
    case 1:
      return pack_fields<1>(body, from, to, mask, places, lane);
    case 2:
      return pack_fields<2>(body, from, to, mask, places, lane);
    default:
      return pack_fields<4>(body, from, to, mask, places, lane);
  }
}

// Makes the planes of a whole tile those of the values in the mask; returns their bytes.
template <DType kDType>
UZIP_DEVICE int pack_planes(const TileCode& code, Mask mask, const Places& places, uint8_t* body,
                            int lane) {
  constexpr FloatFormat kFormat = float_format(kDType);
  int from = 0;
  int to = 0;
#pragma unroll 1
  for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
    if (!code.stores(plane)) continue;
    pack_bytes(body, from, to, mask, places, lane);
    from += kTileValues;
    to += places.n;
  }
  const auto pack = [&](int width) {
    if (width == 0) return;
    pack_fields(width, body, from, to, mask, places, lane);
    from += plane_bytes(width, kTileValues);
    to += plane_bytes(width, places.n);
  };
  pack(kFormat.sub_bits[0]);
  pack(kFormat.sub_bits[1]);
  const int width = code.menu.width(0);
  pack(width == 3 ? 2 : width);
  pack(width == 3 ? 1 : 0);
  return to;
}

// Codes a tile of the packed layout to the warp's room. The kinds are chosen as FORMAT.md says.
template <DType kDType>
UZIP_DEVICE PackedTile encode_packed_tile(const TileCode& code, const DigitTable& digit_table,
                                          const EncodeTables& tables, const uint8_t* values,
                                          bool aligned, PackedRoom<kDType>& room, int lane) {
  constexpr int kTileBytes = float_format(kDType).tile_bytes();
  constexpr PackedTile kRaw{TileKind::kRaw, kTileBytes, 0, 0, 0};
  bool constant;
  const Mask present = find_values<kDType>(values, aligned, lane, &constant);
  if (constant) {
    return {TileKind::kConstant, any32(present != 0) ? kAlignment : 0, 0, 0, 0};
  }
  const Places places = Places::of(present, lane);
  const bool masked = (kTileValues - places.n) * code.stride > kMaskBytes * kTileValues;
  uint32_t digits[kQuads];
  sync_lanes();  // the room may still be in use for the tile before
  if (!split_rows<kDType, kAnyMenu>(code, digit_table, MemoryRows<kDType>{values, aligned},
                                    room.planes, room.coder.offsets, lane, digits)) {
    return kRaw;
  }
  if (masked) keep_values(present, digits);
  const Mask mask = store_first_level(code.menu.width(0), digits, room.planes + code.digits, lane);
  int body_bytes = code.stride;
  sync_lanes();
  if (masked) body_bytes = pack_planes<kDType>(code, present, places, room.planes, lane);
  const int head_bytes = body_bytes + (masked ? kMaskBytes : 0);
  // Padded, it must be smaller than a raw tile.
  const int limit = kTileBytes - kAlignment + 1 - head_bytes;
  if (limit <= 0) return kRaw;
  const int tail_bytes = encode_tail<kDType, kAnyMenu>(code, tables, values, digits, mask, limit,
                                                       room.coder.offsets, room.coder.tail, lane);
  sync_lanes();
  if (tail_bytes == kNotCodable) return kRaw;
  const int size = (head_bytes + tail_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const TileKind kind = masked ? TileKind::kMasked : TileKind::kCoded;
  return {kind, size, body_bytes, tail_bytes, present};
}

}  // namespace uzip::gpu
