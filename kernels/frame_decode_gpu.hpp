// What a kernel asks of a frame that it decodes: whether its header holds, and a tile's values.
//
// Nothing that a frame says is believed before it is compared with what is there. What is wrong is
// reported in the status word.
#pragma once

#include "frame_gpu.hpp"
#include "packed_decode_gpu.hpp"
#include "tier_decode_gpu.hpp"

namespace uzip::gpu {

// The word may be in memory of the host, where not every GPU has atomic operations. Of several
// reasons found at a time any will do.
UZIP_DEVICE void report(uint32_t* status, FrameStatus found) {
  const auto reason = static_cast<uint32_t>(found);
  if (load_relaxed_system(status) < reason) store_relaxed_system(status, reason);
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

// The size of a frame: as it was given, or, where that is the room for it, as its header says. A
// frame that is larger than its room does not have the size of its header then.
UZIP_DEVICE uint64_t told_size(uint64_t given, const Header& header) {
  if ((given & kAtMost) == 0) return given;
  const uint64_t room = given & ~kAtMost;
  return header.frame_bytes < room ? header.frame_bytes : room;
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

// Shared memory for a tile while it is fetched and decoded: all coded ones but some that are larger
// than their values.
template <DType kDType>
struct alignas(16) Stage {
  static constexpr int kChunks = float_format(kDType).tile_bytes() / kAlignment + 1;
  Chunk chunks[kChunks + kTailSlack / kAlignment];
};

// Asks for chunks of global memory, by a warp.
UZIP_DEVICE void copy_chunks_later(Chunk* to, const uint8_t* from, int n, int lane) {
  const auto* chunks = reinterpret_cast<const Chunk*>(from);
#pragma unroll 1
  for (int i = lane; i < n; i += kLanes) copy_later(to + i, chunks + i);
}

// What the directory says of the tiles of a group.
struct alignas(16) DirectoryRoom {
  uint16_t entries[kGroupTiles];
  uint32_t group;
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
        symbols_(RankSymbols<kDType>::of(parameters_of(header))),
        packed_((header.flags & kFlagPacked) != 0),
        sections_(Sections::of(header.count, kFormat.itemsize, packed_ ? 0 : code_.stride)),
        head_chunks_(code_.stride / kAlignment),
        body_chunks_(body_bytes_ / kAlignment < ~0u
                         ? static_cast<uint32_t>(body_bytes_ / kAlignment)
                         : ~0u) {}

  UZIP_DEVICE const Sections& sections() const { return sections_; }
  UZIP_DEVICE const uint8_t* remainder() const { return frame_.bytes + sections_.remainder; }

  UZIP_DEVICE bool sizes_add_up() const {
    return frame_.size - kHeaderBytes >= body_bytes_ &&
           frame_.size - body_bytes_ == sections_.tails;
  }

  // For CompiledMenus::choose(): only code for any menu knows the packed layout.
  UZIP_DEVICE int menu_of(const Header& header) const { return packed_ ? kAnyMenu : header.menu; }

  // A tile, by a warp with room for its tail. False: malformed, and nothing went to the sink.
  template <int kMenu, typename Sink>
  UZIP_DEVICE bool decode(uint32_t tile, const DecodeTables& tables, TailRoom<kDType>& tail_room,
                          LevelRoom<kDType>& room, int lane, Sink& sink) const {
    TileEntry entry = find(read_directory(tile, lane), tile, lane);
    if (!is_inside(entry)) return false;
    const uint8_t* head = head_of(tile);
    int padding = 0;
    if constexpr (kMenu == kAnyMenu) {
      if (packed_) {
        if (entry.before % kAlignment != 0 || entry.size % kAlignment != 0) return false;
        head = frame_.bytes + sections_.tails + entry.place();
        if (entry.kind == TileKind::kConstant || entry.kind == TileKind::kMasked) {
          return decode_packed(entry, head, tables, tail_room, room, lane, sink);
        }
        if (entry.size < code_.stride) return false;
        entry = entry.after(code_.stride);
        if (entry.kind == TileKind::kCoded) padding = kAlignment - 1;
      }
    }
    switch (entry.kind) {
      case TileKind::kCoded: {
        if (entry.size > kTailBytes<kDType> + padding) return false;
        const Tail tail = load_tail(entry, padding, tail_room, lane);
        return decode_dense_tile<kDType, kMenu>(code_, tables, symbols_, head, tail, room, sink,
                                                lane);
      }
      case TileKind::kRaw:
        if (entry.size != kFormat.tile_bytes() - code_.stride) return false;
        sink.put_raw(head, code_.stride, frame_.bytes + sections_.tails + entry.place());
        return true;
      default:
        return false;
    }
  }

  // What the directory says of the tiles of a group: of one each in lanes 0..7.
  struct Directory {
    uint32_t entry;
    uint32_t group;
  };
  UZIP_DEVICE Directory read_directory(uint32_t tile, int lane) const {
    const auto* groups = reinterpret_cast<const uint32_t*>(frame_.bytes + sections_.group_entry(0));
    const auto* entries = reinterpret_cast<const uint16_t*>(frame_.bytes + sections_.tile_entry(0));
    const auto index = static_cast<int>(tile % kGroupTiles);
    uint32_t entry = 0;
    if (lane <= index) entry = entries[tile - static_cast<uint32_t>(index - lane)];
    return {entry, groups[tile / kGroupTiles]};
  }

  // The same on its way to shared memory, for those that have no registers for it.
  UZIP_DEVICE void fetch_directory(uint32_t tile, DirectoryRoom& room, int lane) const {
    const uint32_t group = tile / kGroupTiles;
    const uint32_t two = group * kGroupTiles + 2 * static_cast<uint32_t>(lane);
    if (lane < kGroupTiles / 2 && two < sections_.tiles) {
      copy_word_later(room.entries + 2 * lane, frame_.bytes + sections_.tile_entry(two));
    }
    if (lane == kGroupTiles / 2) {
      copy_word_later(&room.group, frame_.bytes + sections_.group_entry(group));
    }
  }
  UZIP_DEVICE static Directory directory_in(const DirectoryRoom& room, uint32_t tile, int lane) {
    const auto index = static_cast<int>(tile % kGroupTiles);
    return {lane <= index ? room.entries[lane] : 0u, room.group};
  }

  // A tile on its way to a stage: where the tail is, behind the head; of the packed layout, its
  // kind. Nothing is if `size` < 0.
  struct Fetched {
    int begin;
    int size;
  };
  // Asks for a coded tile of the dense layout, if it can be fetched.
  UZIP_DEVICE Fetched fetch(const Directory& directory, uint32_t tile, Stage<kDType>& stage,
                            int lane) const {
    const TileEntry entry = find(directory, tile, lane);
    const int begin = entry.before % kAlignment;
    const int chunks = (begin + entry.size + kAlignment - 1) / kAlignment;
    if (!can_fetch(entry, chunks)) return {begin, -1};
    copy_chunks_later(stage.chunks, head_of(tile), head_chunks_, lane);
    copy_chunks_later(stage.chunks + head_chunks_, chunk_of(entry), chunks, lane);
    return {begin, entry.size};
  }
  UZIP_DEVICE bool can_fetch(const Directory& directory, uint32_t tile, int lane) const {
    const TileEntry entry = find(directory, tile, lane);
    const int begin = entry.before % kAlignment;
    return can_fetch(entry, (begin + entry.size + kAlignment - 1) / kAlignment);
  }

  // A tile that was fetched whole, and is there. False: malformed, and nothing went to the sink.
  template <int kMenu, typename Sink>
  UZIP_DEVICE bool decode_fetched(const Fetched& fetched, const Stage<kDType>& stage,
                                  const DecodeTables& tables, LevelRoom<kDType>& room, int lane,
                                  Sink& sink) const {
    const auto* head = reinterpret_cast<const uint8_t*>(stage.chunks);
    const auto* words = reinterpret_cast<const uint32_t*>(head + code_.stride);
    const Tail tail{words, fetched.begin, fetched.begin + fetched.size, 0};
    return decode_dense_tile<kDType, kMenu, HeadPlace::kShared>(code_, tables, symbols_, head, tail,
                                                                room, sink, lane);
  }

  // The same of the packed layout.
  UZIP_DEVICE Fetched fetch_packed(const Directory& directory, uint32_t tile, Stage<kDType>& stage,
                                   int lane) const {
    const TileEntry entry = find(directory, tile, lane);
    if (!can_fetch_packed(entry)) return {0, -1};
    copy_chunks_later(stage.chunks, chunk_of(entry), entry.size / kAlignment, lane);
    return {static_cast<int>(entry.kind), entry.size};
  }
  UZIP_DEVICE bool can_fetch_packed(const Directory& directory, uint32_t tile, int lane) const {
    return can_fetch_packed(find(directory, tile, lane));
  }
  template <int kMenu, typename Sink>
  UZIP_DEVICE bool decode_fetched_packed(const Fetched& fetched, const Stage<kDType>& stage,
                                         const DecodeTables& tables, LevelRoom<kDType>& room,
                                         int lane, Sink& sink) const {
    const auto* tile = reinterpret_cast<const uint8_t*>(stage.chunks);
    const auto kind = static_cast<TileKind>(fetched.begin);
    if (kind == TileKind::kConstant) {
      if (fetched.size > kAlignment) return false;
      put_constant<kDType>(fetched.size == 0 ? nullptr : tile, sink);
      return true;
    }
    int mask_bytes = 0;
    Mask mask = ~Mask{0};
    if (kind == TileKind::kMasked) {
      mask_bytes = kMaskBytes;
      mask = read_mask(tile, lane);
    }
    const auto planes = BodyPlanes<kDType>::of(code_, values_of_mask(mask));
    const int begin = mask_bytes + planes.digits;
    if (begin > fetched.size) return false;
    const Tail tail{stage.chunks->words, begin, fetched.size, kAlignment - 1};
    const SharedBody body{shared_place(tile + mask_bytes)};
    return decode_masked_of<kDType, kMenu>(code_, tables, symbols_, planes, body, mask, tail, room,
                                           sink, lane);
  }

  UZIP_DEVICE bool packed() const { return packed_; }

 private:
  struct TileEntry {
    TileKind kind;
    int size;        // bytes of the tail; packed: of the tile
    uint32_t group;  // place of the group, from the start of the tail section, in chunks
    int before;      // bytes before it in the group

    UZIP_DEVICE uint64_t place() const {
      return uint64_t{group} * kAlignment + static_cast<uint32_t>(before);
    }
    UZIP_DEVICE TileEntry after(int bytes) const {
      return {kind, size - bytes, group, before + bytes};
    }
  };

  // Whether a tile has room in a stage, and none of its tail's chunks ends behind the frame.
  UZIP_DEVICE bool can_fetch(const TileEntry& entry, int chunks) const {
    return entry.kind == TileKind::kCoded && head_chunks_ + chunks <= Stage<kDType>::kChunks &&
           has_chunks(entry, chunks);
  }
  UZIP_DEVICE bool can_fetch_packed(const TileEntry& entry) const {
    const int chunks = entry.size / kAlignment;
    return entry.kind != TileKind::kRaw && (entry.size | entry.before) % kAlignment == 0 &&
           chunks <= Stage<kDType>::kChunks && has_chunks(entry, chunks);
  }
  UZIP_DEVICE bool has_chunks(const TileEntry& entry, int chunks) const {
    const auto stop = static_cast<uint32_t>(entry.before / kAlignment + chunks);
    return stop <= body_chunks_ && entry.group <= body_chunks_ - stop;
  }
  UZIP_DEVICE const uint8_t* chunk_of(const TileEntry& entry) const {
    const uint32_t chunk = entry.group + static_cast<uint32_t>(entry.before / kAlignment);
    return frame_.bytes + sections_.tails + uint64_t{chunk} * kAlignment;
  }

  UZIP_DEVICE const uint8_t* head_of(uint32_t tile) const {
    return frame_.bytes + kHeaderBytes + uint64_t{tile} * static_cast<uint32_t>(code_.stride);
  }

  UZIP_DEVICE TileEntry find(const Directory& directory, uint32_t tile, int lane) const {
    constexpr uint32_t kSizeMask = (1u << kTileSizeBits) - 1;
    const auto index = static_cast<int>(tile % kGroupTiles);
    const uint32_t before = sum32(lane < index ? directory.entry & kSizeMask : 0);
    const uint32_t entry = shuffle32(directory.entry, index);
    return {static_cast<TileKind>(entry >> kTileSizeBits), static_cast<int>(entry & kSizeMask),
            directory.group, static_cast<int>(before)};
  }
  UZIP_DEVICE bool is_inside(const TileEntry& entry) const {
    return entry.place() <= body_bytes_ &&
           static_cast<uint64_t>(entry.size) <= body_bytes_ - entry.place();
  }

  UZIP_DEVICE Tail load_tail(const TileEntry& tail, int padding, TailRoom<kDType>& room,
                             int lane) const {
    // Chunks of 16 bytes as far as the frame goes, which need not be a whole number of them.
    const auto begin = static_cast<int>(tail.before % kAlignment);
    const uint64_t chunk = sections_.tails + tail.place() - static_cast<uint64_t>(begin);
    const int chunks = (begin + tail.size + kAlignment - 1) / kAlignment;
    sync_lanes();  // the room may still be in use for the tile before
#pragma unroll 1   // mostly one round
    for (int i = lane; i < chunks; i += kLanes) {
      const uint64_t at = chunk + static_cast<uint64_t>(i) * kAlignment;
      auto* to = reinterpret_cast<Chunk*>(room.words) + i;
      if (at + kAlignment <= frame_.size) {
        *to = *reinterpret_cast<const Chunk*>(frame_.bytes + at);
      } else {
        for (uint64_t k = 0; at + k < frame_.size; ++k) {
          reinterpret_cast<uint8_t*>(to)[k] = frame_.bytes[at + k];
        }
      }
    }
    sync_lanes();
    return {room.words, begin, begin + tail.size, padding};
  }

  // A tile of a kind that only the packed layout has. Others may follow at any place.
  template <typename Sink>
  UZIP_DEVICE bool decode_packed(const TileEntry& entry, const uint8_t* tile,
                                 const DecodeTables& tables, TailRoom<kDType>& tail_room,
                                 LevelRoom<kDType>& room, int lane, Sink& sink) const {
    if (entry.kind == TileKind::kConstant) {
      if (entry.size > kAlignment) return false;
      put_constant<kDType>(entry.size == 0 ? nullptr : tile, sink);
      return true;
    }
    if (entry.size < kMaskBytes) return false;
    const Mask mask = read_mask(tile, lane);
    const auto planes = BodyPlanes<kDType>::of(code_, values_of_mask(mask));
    const TileEntry rest = entry.after(kMaskBytes + planes.digits);
    if (rest.size < 0 || rest.size >= TailRoom<kDType>::kBytes + kAlignment) return false;
    const Tail tail = load_tail(rest, kAlignment - 1, tail_room, lane);
    const GlobalBody body{tile + kMaskBytes, entry.size - kMaskBytes};
    return decode_masked(code_, tables, symbols_, planes, body, mask, tail, room, sink, lane);
  }

  Frame frame_;
  uint64_t body_bytes_;
  TileCode code_;
  RankSymbols<kDType> symbols_;
  bool packed_;
  Sections sections_;
  int head_chunks_;
  uint32_t body_chunks_;  // whole ones of the tail section
};

}  // namespace uzip::gpu
