// What a kernel asks of a frame that it decodes: whether its header holds, and a tile's values.
//
// Nothing that a frame says is believed before it is compared with what is there. What is wrong is
// reported in the status word.
#pragma once

#include "frame_gpu.hpp"
#include "packed_decode_gpu.hpp"
#include "tier_decode_gpu.hpp"

namespace uzip::gpu {

struct Frame {
  const uint8_t* bytes;
  uint64_t size;
};

UZIP_DEVICE void report(uint32_t* status, FrameStatus found) {
  atomic_max(status, static_cast<uint32_t>(found));
}

UZIP_DEVICE TierParameters parameters_of(const Header& header) {
  TierParameters parameters{header.menu, header.base, header.zero_planes, {0, 0}};
  for (int i = 0; i < 8; ++i) {
    parameters.order[i / 4] |= static_cast<uint32_t>(header.order[i]) << 8 * (i % 4);
  }
  return parameters;
}

UZIP_DEVICE bool has_valid_parameters(const Header& header, FloatFormat format) {
  const TierParameters parameters = parameters_of(header);
  if (static_cast<Codec>(header.codec) == Codec::kRaw) {
    return header.menu == 0 && header.zero_planes == 0 && header.base == 0 &&
           header.body_bytes == 0 && (parameters.order[0] | parameters.order[1]) == 0;
  }
  if (format.exponent_bits == 0 || header.base >= format.symbols() ||
      header.zero_planes >> format.byte_planes != 0) {
    return false;
  }
  if (static_cast<Codec>(header.codec) == Codec::kAns) {
    return header.menu >= kMinBlockLog2 && header.menu <= kMaxBlockLog2 &&
           (format.itemsize > 1 || header.base == 0) &&
           (parameters.order[0] | parameters.order[1]) == 0;
  }
  uint32_t seen = 0;
  for (int rank = 0; rank < kWindow; ++rank) seen |= 1u << nibble(parameters.order, rank);
  return header.menu < kMenus && seen == 0xFFFF;
}

UZIP_DEVICE FrameStatus check_header(const Header& header, uint64_t size, DType dtype,
                                     uint64_t count) {
  uint32_t reserved = 0;
  for (const uint8_t byte : header.reserved0) reserved |= byte;
  for (const uint8_t byte : header.reserved1) reserved |= byte;
  const bool checksum = (header.flags & kFlagChecksum) != 0;
  const bool tier = header.codec == static_cast<uint8_t>(Codec::kTier);
  const uint32_t flags = kFlagChecksum | (tier ? kFlagPacked : 0);
  if (header.magic[0] != 'U' || header.magic[1] != 'Z' || header.magic[2] != 'I' ||
      header.magic[3] != 'P' || header.version != kVersion || reserved != 0 ||
      (header.flags & ~flags) != 0 || (!checksum && header.checksum != 0) ||
      header.codec > static_cast<uint8_t>(Codec::kAns)) {
    return FrameStatus::kHeader;
  }
  if (header.dtype != static_cast<uint8_t>(dtype) || header.count != count ||
      header.frame_bytes != size) {
    return FrameStatus::kMismatch;
  }
  return has_valid_parameters(header, float_format(dtype)) ? FrameStatus::kOk
                                                           : FrameStatus::kHeader;
}

// Where the values of a tile go: to memory.
template <DType kDType>
struct MemorySink {
  static constexpr FloatFormat kFormat = float_format(kDType);
  uint8_t* values;  // of the tile
  bool aligned;
  int lane;

  // A row of the lane's 8 values.
  UZIP_DEVICE void put(int row, const Run<kDType>& run) {
    run.store(values + static_cast<uint32_t>(lane * 8 * kFormat.itemsize) +
                  row * kRowValues * kFormat.itemsize,
              aligned);
  }

  // A raw tile, whose first bytes are at `head`, the others at `tail`.
  UZIP_DEVICE void put_raw(const uint8_t* head, int stride, const uint8_t* tail) {
    const auto index = static_cast<uint64_t>(lane);
    copy_bytes(values, head, static_cast<uint64_t>(stride), index, kLanes);
    copy_bytes(values + stride, tail, static_cast<uint64_t>(kFormat.tile_bytes() - stride), index,
               kLanes);
  }
};

// A frame of codec tier as what decodes its tiles sees it.
template <DType kDType>
class TierFrame {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE TierFrame(const Frame& frame, const Header& header)
      : frame_(frame),
        body_bytes_(header.body_bytes),
        code_(TileCode::of<kDType>(parameters_of(header))),
        symbols_{offsets_of_ranks(parameters_of(header).order), code_.base},
        packed_((header.flags & kFlagPacked) != 0),
        sections_(Sections::of(header.count, kFormat.itemsize, packed_ ? 0 : code_.stride)) {}

  UZIP_DEVICE const Sections& sections() const { return sections_; }
  UZIP_DEVICE const uint8_t* remainder() const { return frame_.bytes + sections_.remainder; }

  UZIP_DEVICE bool sizes_add_up() const {
    return frame_.size - kHeaderBytes >= body_bytes_ &&
           frame_.size - body_bytes_ == sections_.tails;
  }

  // For with_menu(): only code for any menu knows the packed layout.
  UZIP_DEVICE int menu_of(const Header& header) const { return packed_ ? kAnyMenu : header.menu; }

  // A tile, by a warp with `room` for its tail. False: malformed, and nothing went to the sink.
  template <int kMenu, typename Sink>
  UZIP_DEVICE bool decode(uint32_t tile, const DecodeTables& tables, TailRoom<kDType>& room,
                          int lane, Sink& sink) const {
    TileEntry entry = look_up(tile, lane);
    if (entry.place > body_bytes_ || static_cast<uint64_t>(entry.size) > body_bytes_ - entry.place)
      return false;
    const uint8_t* head = frame_.bytes + kHeaderBytes + uint64_t{tile} * stride();
    int padding = 0;
    if constexpr (kMenu == kAnyMenu) {
      if (packed_) {
        if (entry.place % kAlignment != 0 || entry.size % kAlignment != 0) return false;
        head = frame_.bytes + sections_.tails + entry.place;
        if (entry.kind == TileKind::kConstant || entry.kind == TileKind::kMasked) {
          return decode_packed(entry, head, tables, room, lane, sink);
        }
        if (entry.size < code_.stride) return false;
        entry = entry.after(code_.stride);
        if (entry.kind == TileKind::kCoded) padding = kAlignment - 1;
      }
    }
    switch (entry.kind) {
      case TileKind::kCoded:
        return decode_coded<kMenu>(head, entry, padding, tables, room, lane, sink);
      case TileKind::kRaw:
        if (entry.size != kFormat.tile_bytes() - code_.stride) return false;
        sink.put_raw(head, code_.stride, frame_.bytes + sections_.tails + entry.place);
        return true;
      default:
        return false;
    }
  }

 private:
  struct TileEntry {
    TileKind kind;
    int size;        // bytes of the tail; packed: of the tile
    uint64_t place;  // from the start of the tail section

    UZIP_DEVICE TileEntry after(int bytes) const {
      return {kind, size - bytes, place + static_cast<uint32_t>(bytes)};
    }
  };

  UZIP_DEVICE uint32_t stride() const { return static_cast<uint32_t>(code_.stride); }

  UZIP_DEVICE TileEntry look_up(uint32_t tile, int lane) const {
    constexpr uint32_t kSizeMask = (1u << kTileSizeBits) - 1;
    const auto* groups = reinterpret_cast<const uint32_t*>(frame_.bytes + sections_.group_entry(0));
    const auto* entries = reinterpret_cast<const uint16_t*>(frame_.bytes + sections_.tile_entry(0));
    const auto index = static_cast<int>(tile % kGroupTiles);
    // Lanes 0..7 look up the tiles of the group.
    uint32_t entry = 0;
    if (lane <= index) entry = entries[tile - static_cast<uint32_t>(index - lane)];
    const uint64_t group_place = uint64_t{groups[tile / kGroupTiles]} * kAlignment;
    const uint32_t before = sum32(lane < index ? entry & kSizeMask : 0);
    entry = shuffle32(entry, index);
    return {static_cast<TileKind>(entry >> kTileSizeBits), static_cast<int>(entry & kSizeMask),
            group_place + before};
  }

  // `padding`: bytes of the tail that may be unused.
  template <int kMenu, typename Sink>
  UZIP_DEVICE bool decode_coded(const uint8_t* head, const TileEntry& tail, int padding,
                                const DecodeTables& tables, TailRoom<kDType>& room, int lane,
                                Sink& sink) const {
    if (tail.size > kTailBytes<kDType> + padding) return false;
    const int begin = load_tail(tail, room, lane);
    return decode_dense_tile<kDType, kMenu>(code_, tables, symbols_, head, room, begin,
                                            begin + tail.size, padding, sink, lane);
  }

  // Returns where in the room the tail begins.
  UZIP_DEVICE int load_tail(const TileEntry& tail, TailRoom<kDType>& room, int lane) const {
    // Chunks of 16 bytes as far as the frame goes, which need not be a whole number of them.
    const auto begin = static_cast<int>(tail.place % kAlignment);
    const uint64_t chunk = sections_.tails + tail.place - static_cast<uint64_t>(begin);
    const int chunks = (begin + tail.size + kAlignment - 1) / kAlignment;
    sync_lanes();  // the room may still be in use for the tile before
#pragma unroll 1   // mostly one round
    for (int i = lane; i < chunks; i += kLanes) {
      const uint64_t at = chunk + static_cast<uint64_t>(i) * kAlignment;
      auto* to = reinterpret_cast<Chunk*>(room.tail) + i;
      if (at + kAlignment <= frame_.size) {
        *to = *reinterpret_cast<const Chunk*>(frame_.bytes + at);
      } else {
        for (uint64_t k = 0; at + k < frame_.size; ++k) {
          reinterpret_cast<uint8_t*>(to)[k] = frame_.bytes[at + k];
        }
      }
    }
    sync_lanes();
    return begin;
  }

  // A tile of a kind that only the packed layout has. Others may follow at any place.
  template <typename Sink>
  UZIP_DEVICE bool decode_packed(const TileEntry& entry, const uint8_t* tile,
                                 const DecodeTables& tables, TailRoom<kDType>& room, int lane,
                                 Sink& sink) const {
    if (entry.kind == TileKind::kConstant) {
      if (entry.size > kAlignment) return false;
      put_constant<kDType>(entry.size == 0 ? nullptr : tile, sink);
      return true;
    }
    if (entry.size < kMaskBytes) return false;
    const auto* halves = reinterpret_cast<const uint16_t*>(tile);
    const Mask mask = spread_half(halves[lane]) | spread_half(halves[kLanes + lane]) << 1;
    const int n = static_cast<int>(sum32(static_cast<uint32_t>(popcount(mask))));
    const auto planes = BodyPlanes<kDType>::of(code_, n);
    const TileEntry tail = entry.after(kMaskBytes + planes.end);
    if (tail.size < 0 || tail.size >= kTailBytes<kDType> + kAlignment) return false;
    const int begin = load_tail(tail, room, lane);
    return decode_masked(code_, tables, symbols_, planes, tile + kMaskBytes, mask, room, begin,
                         begin + tail.size, sink, lane);
  }

  Frame frame_;
  uint64_t body_bytes_;
  TileCode code_;
  RankSymbols<kDType> symbols_;
  bool packed_;
  Sections sections_;
};

}  // namespace uzip::gpu
