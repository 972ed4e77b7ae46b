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

// Bit 0 of the byte of each value of a quad that is not zero bits.
template <DType kDType>
UZIP_DEVICE uint32_t flag_values(const uint32_t words[Quad<kDType>::kWords]) {
  constexpr int kItemsize = float_format(kDType).itemsize;
  if constexpr (kItemsize <= 2) {
    uint32_t bytes = words[0];
    if constexpr (kItemsize == 2) {
      bytes = permute(words[0], words[1], 0x7531) | permute(words[0], words[1], 0x6420);
    }
    return (((bytes & ~kSignBits) + ~kSignBits) | bytes) >> 7 & kOnes;
  } else {
    uint32_t flags = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t value = words[i * kItemsize / 4];
      if constexpr (kItemsize == 8) value |= words[2 * i + 1];
      flags |= value != 0 ? 1u << 8 * i : 0;
    }
    return flags;
  }
}

// The values of a lane that are not zero bits; whether all values of the tile equal its first.
template <DType kDType, typename Rows>
UZIP_DEVICE Mask find_values(const Rows& source, int lane, bool* constant) {
  constexpr int kItemsize = float_format(kDType).itemsize;
  constexpr int kHalfRows = kRows / 2;
  // The first value, in as many words as repeat it.
  constexpr int kFirstWords = kItemsize == 8 ? 2 : 1;
  uint32_t first[kFirstWords];
  Mask mask = 0;
  uint32_t differences = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Run<kDType> rows[kHalfRows];
    source.template load<kHalfRows>(kHalfRows * half, lane, rows);
    if (half == 0) {
#pragma unroll
      for (int i = 0; i < kFirstWords; ++i) first[i] = shuffle32(rows[0].words[i], 0);
      if (kItemsize == 1) first[0] = repeat(static_cast<int>(first[0] & 0xFF));
      if (kItemsize == 2) first[0] = (first[0] & 0xFFFF) * 0x00010001u;
    }
    uint32_t flags[kHalfQuads];
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      const uint32_t* words = rows[q / 2].words + q % 2 * Quad<kDType>::kWords;
      flags[q] = flag_values<kDType>(words);
#pragma unroll
      for (int i = 0; i < Quad<kDType>::kWords; ++i) {
        differences |= words[i] ^ first[i % kFirstWords];
      }
    }
    mask |= pack_half<2>(flags) << half;
  }
  *constant = !any32(differences != 0);
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
      quads[kHalfQuads * half + q] &= quad_bytes(mask, half, q);
    }
  }
}

// Makes the words zero that a plane of so many bytes touches, or may be ORed to; those before it in
// the first word stay. By a warp, which has read what was there.
UZIP_DEVICE void clear_plane(uint8_t* body, int begin, int bytes, int lane) {
  sync_lanes();
  auto* words = reinterpret_cast<uint32_t*>(body);
  const int last = (begin + bytes) / 4 + 1;
#pragma unroll 1
  for (int word = begin / 4 + lane; word <= last; word += kLanes) {
    words[word] = 4 * word < begin ? words[word] & ((1u << begin % 4 * 8) - 1) : 0;
  }
  sync_lanes();
}

// Moves the bytes of the values in the mask from a plane of a whole tile to one of n values, which
// ends no later. By a warp.
UZIP_DEVICE void pack_bytes(const uint32_t selectors[kGathers], uint8_t* body, int from, int to,
                            Mask mask, const Places& places, int lane) {
  const auto* plane = reinterpret_cast<const Chunk*>(body + from);
  const Chunk chunks[2] = {plane[lane], plane[kLanes + lane]};
  clear_plane(body, to, places.n, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int place = to + places.first[half];
    const uint32_t indices = gather_indices(mask, half);
#pragma unroll
    for (int q = 0; q < kHalfQuads; ++q) {
      const uint32_t index = gather_index(indices, q);
      const uint32_t bytes = permute(chunks[half].words[q], 0, selectors[index]);
      or_bits(reinterpret_cast<uint32_t*>(body), 8 * place, bytes);
      place += popcount(index);
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
  clear_plane(body, to, plane_bytes(kWidth, places.n), lane);
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

// Makes the planes of a whole tile those of the values in the mask, which `digits` have, the others
// being 0; returns their bytes. `escaped`: the values beyond level 1.
template <DType kDType, int kMenu>
UZIP_DEVICE int pack_planes(const TileCode& code, const GatherTables& gathers,
                            const uint32_t digits[kQuads], Mask mask, const Places& places,
                            uint8_t* body, int lane, Mask* escaped) {
  constexpr FloatFormat kFormat = float_format(kDType);
  int from = 0;
  int to = 0;
#pragma unroll 1
  for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
    if (!code.stores(plane)) continue;
    pack_bytes(gathers.byte_selectors, body, from, to, mask, places, lane);
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
  if constexpr (kMenu == kAnyMenu) {
    const int width = code.menu.width(0);
    *escaped = store_first_level(width, digits, body + from, lane);
    sync_lanes();
    pack(width == 3 ? 2 : width);
    pack(width == 3 ? 1 : 0);
    return to;
  } else {
    constexpr int kWidth = kWidths<kMenu> & 15;
    static_assert(kWidth <= 2, "the tables of the first level have no more");
    const int bytes = plane_bytes(kWidth, places.n);
    clear_plane(body, to, bytes, lane);
    *escaped = put_dense_level<kWidth>(gathers.first_level(), nullptr, 0, digits, mask, places,
                                       reinterpret_cast<uint32_t*>(body), 8 * to);
    sync_lanes();
    return to + bytes;
  }
}

// Codes a tile of the packed layout to the warp's room. The kinds are chosen as FORMAT.md says.
template <DType kDType, int kMenu, typename Rows>
UZIP_DEVICE PackedTile encode_packed_tile(const TileCode& code, const DigitTable& digit_table,
                                          const EncodeTables& tables, const uint8_t* values,
                                          const Rows& rows, PackedRoom<kDType>& room, int lane) {
  constexpr int kTileBytes = float_format(kDType).tile_bytes();
  constexpr PackedTile kRaw{TileKind::kRaw, kTileBytes, 0, 0, 0};
  bool constant;
  const Mask present = find_values<kDType>(rows, lane, &constant);
  if (constant) {
    return {TileKind::kConstant, any32(present != 0) ? kAlignment : 0, 0, 0, 0};
  }
  const Places places = Places::of(present, lane);
  const bool masked = (kTileValues - places.n) * code.stride > kMaskBytes * kTileValues;
  uint32_t digits[kQuads];
  sync_lanes();  // the room may still be in use for the tile before
  if (!split_rows<kDType, kMenu>(code, digit_table, rows, room.planes, room.coder.offsets, lane,
                                 digits)) {
    return kRaw;
  }
  int body_bytes = code.stride;
  Mask mask;
  if (masked) {
    sync_lanes();
    keep_values(present, digits);
    body_bytes = pack_planes<kDType, kMenu>(code, tables.gathers, digits, present, places,
                                            room.planes, lane, &mask);
  } else {
    const int width = fixed_menu<kMenu>(code.menu).width(0);
    mask = store_first_level(width, digits, room.planes + code.digits, lane);
  }
  const int head_bytes = body_bytes + (masked ? kMaskBytes : 0);
  // Padded, it must be smaller than a raw tile.
  const int limit = kTileBytes - kAlignment + 1 - head_bytes;
  if (limit <= 0) return kRaw;
  const int tail_bytes = encode_tail<kDType, kMenu>(code, tables, values, digits, mask, 0, limit,
                                                    room.coder.offsets, room.coder.tail, lane);
  sync_lanes();
  if (tail_bytes == kNotCodable) return kRaw;
  const int size = (head_bytes + tail_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const TileKind kind = masked ? TileKind::kMasked : TileKind::kCoded;
  return {kind, size, body_bytes, tail_bytes, present};
}

}  // namespace uzip::gpu
