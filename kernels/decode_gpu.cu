// Tensors from frames, in one launch. Nothing that a frame says is believed before it is compared
// with what is there.
//
// A warp decodes a tile at a time and needs no other. What it finds wrong it reports in the status
// word.
#include "frame_gpu.hpp"
#include "tier_decode_gpu.hpp"

namespace uzip::gpu {
namespace {

struct Frame {
  const uint8_t* bytes;
  uint64_t size;
};

struct Destination {
  uint8_t* values;
  uint64_t count;
  bool aligned;
};

template <DType kDType>
struct DecodeRoom {
  WarpRoom<kDType> warps[kWarps];
  uint32_t spreads[16];
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
  uint32_t seen = 0;
  for (int rank = 0; rank < kWindow; ++rank) seen |= 1u << nibble(parameters.order, rank);
  return format.exponent_bits != 0 && header.menu < kMenus && header.base < format.symbols() &&
         header.zero_planes >> format.byte_planes == 0 && seen == 0xFFFF;
}

UZIP_DEVICE FrameStatus check_header(const Header& header, uint64_t size, DType dtype,
                                     uint64_t count) {
  uint32_t reserved = 0;
  for (const uint8_t byte : header.reserved0) reserved |= byte;
  for (const uint8_t byte : header.reserved1) reserved |= byte;
  const bool checksum = (header.flags & kFlagChecksum) != 0;
  if (header.magic[0] != 'U' || header.magic[1] != 'Z' || header.magic[2] != 'I' ||
      header.magic[3] != 'P' || header.version != kVersion || reserved != 0 ||
      (header.flags & ~kFlagChecksum) != 0 || (!checksum && header.checksum != 0) ||
      header.codec > static_cast<uint8_t>(Codec::kTier)) {
    return FrameStatus::kHeader;
  }
  if (header.dtype != static_cast<uint8_t>(dtype) || header.count != count ||
      header.frame_bytes != size) {
    return FrameStatus::kMismatch;
  }
  return has_valid_parameters(header, float_format(dtype)) ? FrameStatus::kOk
                                                           : FrameStatus::kHeader;
}

template <DType kDType>
class TileDecoder {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE TileDecoder(const Frame& frame, const Header& header, const Destination& destination,
                          DecodeRoom<kDType>& room)
      : frame_(frame),
        body_bytes_(header.body_bytes),
        destination_(destination),
        code_(TileCode::of<kDType>(parameters_of(header))),
        offset_of_rank_(offsets_of_ranks(parameters_of(header).order)),
        spreads_(room.spreads),
        room_(room.warps[thread_index() / kLanes]),
        sections_(Sections::of(destination.count, kFormat.itemsize, code_.stride)),
        groups_(reinterpret_cast<const uint32_t*>(frame.bytes + sections_.group_entry(0))),
        entries_(reinterpret_cast<const uint16_t*>(frame.bytes + sections_.tile_entry(0))),
        lane_(thread_index() % kLanes) {}

  UZIP_DEVICE const Sections& sections() const { return sections_; }

  UZIP_DEVICE bool sizes_add_up() const {
    return frame_.size - kHeaderBytes >= body_bytes_ &&
           frame_.size - body_bytes_ == sections_.tails;
  }

  // Decodes this warp's tiles.
  template <int kMenu>
  UZIP_DEVICE void run() {
    const auto tiles = static_cast<uint32_t>(sections_.tiles);
    const auto warp = static_cast<uint32_t>(thread_index() / kLanes);
    for (uint32_t tile = block_index() * kWarps + warp; tile < tiles;
         tile += block_count() * kWarps) {
      all_good_ = decode<kMenu>(tile) && all_good_;
    }
  }
  UZIP_DEVICE bool all_good() const { return all_good_; }

  // False: malformed.
  template <int kMenu>
  UZIP_DEVICE bool decode(uint32_t tile) const {
    const auto index = static_cast<int>(tile % kGroupTiles);
    // Lanes 0..7 look up the tiles of the group.
    uint32_t entry = 0;
    if (lane_ <= index) entry = entries_[tile - static_cast<uint32_t>(index - lane_)];
    const uint64_t group_place = uint64_t{groups_[tile / kGroupTiles]} * kAlignment;
    uint32_t before = lane_ < index ? entry & kSizeMask : 0;
#pragma unroll
    for (int mask = 1; mask < kGroupTiles; mask *= 2) before += shuffle_xor32(before, mask);
    before = shuffle32(before, 0);
    entry = shuffle32(entry, index);
    const uint64_t place = group_place + before;
    const auto size = static_cast<int>(entry & kSizeMask);
    if (place > body_bytes_ || static_cast<uint64_t>(size) > body_bytes_ - place) return false;
    uint8_t* values = destination_.values + uint64_t{tile} * kFormat.tile_bytes();
    switch (static_cast<TileKind>(entry >> kTileSizeBits)) {
      case TileKind::kCoded:
        return decode_coded<kMenu>(head(tile), place, size, values);
      case TileKind::kRaw:
        return decode_raw(head(tile), place, size, values);
      default:
        return false;
    }
  }

  UZIP_DEVICE void copy_remainder() const {
    copy_bytes(destination_.values + sections_.tiles * kFormat.tile_bytes(),
               frame_.bytes + sections_.remainder, sections_.remainder_bytes,
               static_cast<uint64_t>(thread_index()), kThreads);
  }

 private:
  static constexpr uint32_t kSizeMask = (1u << kTileSizeBits) - 1;

  UZIP_DEVICE const uint8_t* head(uint32_t tile) const {
    return frame_.bytes + kHeaderBytes + uint64_t{tile} * static_cast<uint32_t>(code_.stride);
  }

  template <int kMenu>
  UZIP_DEVICE bool decode_coded(const uint8_t* head, uint64_t place, int size,
                                uint8_t* values) const {
    if (size > kTailBytes<kDType>) return false;
    // Chunks of 16 bytes as far as the frame goes, which need not be a whole number of them.
    const auto begin = static_cast<int>(place % kAlignment);
    const uint64_t chunk = sections_.tails + place - static_cast<uint64_t>(begin);
    const int chunks = (begin + size + kAlignment - 1) / kAlignment;
    sync_lanes();  // the room may still be in use for the tile before
    for (int i = lane_; i < chunks; i += kLanes) {
      const uint64_t at = chunk + static_cast<uint64_t>(i) * kAlignment;
      auto* to = reinterpret_cast<Chunk*>(room_.tail) + i;
      if (at + kAlignment <= frame_.size) {
        *to = *reinterpret_cast<const Chunk*>(frame_.bytes + at);
      } else {
        for (uint64_t k = 0; at + k < frame_.size; ++k) {
          reinterpret_cast<uint8_t*>(to)[k] = frame_.bytes[at + k];
        }
      }
    }
    sync_lanes();
    MemorySink<kDType> sink{values, destination_.aligned, lane_};
    return decode_dense_tile<kDType, kMenu>(code_, offset_of_rank_, spreads_, head, room_, begin,
                                            begin + size, sink, lane_);
  }

  UZIP_DEVICE bool decode_raw(const uint8_t* head, uint64_t place, int size,
                              uint8_t* values) const {
    if (size != kFormat.tile_bytes() - code_.stride) return false;
    const auto lane = static_cast<uint64_t>(lane_);
    copy_bytes(values, head, static_cast<uint64_t>(code_.stride), lane, kLanes);
    copy_bytes(values + code_.stride, frame_.bytes + sections_.tails + place,
               static_cast<uint64_t>(size), lane, kLanes);
    return true;
  }

  const Frame& frame_;
  uint64_t body_bytes_;
  const Destination& destination_;
  TileCode code_;
  Table offset_of_rank_;
  const uint32_t* spreads_;
  WarpRoom<kDType>& room_;
  Sections sections_;
  const uint32_t* groups_;
  const uint16_t* entries_;
  int lane_;
  bool all_good_ = true;
};

UZIP_DEVICE void copy_raw(const Frame& frame, DType dtype, const Destination& destination,
                          uint32_t* status) {
  const auto index = uint64_t{block_index()} * kThreads + static_cast<uint64_t>(thread_index());
  if (frame.size != bound(destination.count, dtype)) {
    if (index == 0) report(status, FrameStatus::kSections);
    return;
  }
  copy_bytes(destination.values, frame.bytes + kHeaderBytes, frame.size - kHeaderBytes, index,
             uint64_t{block_count()} * kThreads);
}

template <DType kDType>
UZIP_DEVICE void decode_tier(const Header& header, const Frame& frame,
                             const Destination& destination, uint32_t* status) {
  auto& room = *reinterpret_cast<DecodeRoom<kDType>*>(shared_memory());
  const bool first = block_index() == 0 && thread_index() == 0;
  if (thread_index() < 16) room.spreads[thread_index()] = make_spread(thread_index());
  sync_block();
  TileDecoder<kDType> decoder(frame, header, destination, room);
  if (!decoder.sizes_add_up()) {
    if (first) report(status, FrameStatus::kSections);
    return;
  }
  with_menu<2>(header.menu, decoder);
  if (!decoder.all_good() && thread_index() % kLanes == 0) report(status, FrameStatus::kTile);
  if (block_index() == block_count() - 1) decoder.copy_remainder();
}

template <DType kDType>
UZIP_KERNEL(kThreads, 4)
decode_kernel(Frame frame, Destination destination, uint32_t* status) {
  const Header header = *reinterpret_cast<const Header*>(frame.bytes);
  const FrameStatus found = check_header(header, frame.size, kDType, destination.count);
  if (found != FrameStatus::kOk) {
    if (block_index() == 0 && thread_index() == 0) report(status, found);
    return;
  }
  if (static_cast<Codec>(header.codec) == Codec::kRaw) {
    copy_raw(frame, kDType, destination, status);
    return;
  }
  if constexpr (kDType != DType::kBytes) decode_tier<kDType>(header, frame, destination, status);
}

template <DType kDType>
constexpr size_t decode_shared() {
  if constexpr (kDType == DType::kBytes)
    return 0;
  else
    return sizeof(DecodeRoom<kDType>);
}

template <DType kDType>
const char* decode_as(const Frame& frame, const Destination& destination, uint32_t* status,
                      const DecodeOptions& options, Stream stream) {
  const auto kernel = decode_kernel<kDType>;
  const uint64_t groups = destination.count / (kTileValues * kGroupTiles) + 1;
  const int blocks = grid_blocks(kernel, decode_shared<kDType>(), groups, options.max_blocks);
  return launch(kernel, blocks, kThreads, decode_shared<kDType>(), stream, frame, destination,
                status);
}

}  // namespace

const char* decode(const void* frame, uint64_t frame_bytes, DType dtype, uint64_t count,
                   void* values, uint32_t* status, const DecodeOptions& options, void* stream) {
  const auto queue = static_cast<Stream>(stream);
  if (frame_bytes < kHeaderBytes) return "expected at least the 64 bytes of a header";
  if (!is_aligned(frame, kAlignment)) return "expected a frame aligned to 16 bytes";
  if (!is_aligned(values, float_format(dtype).itemsize)) {
    return "expected room for values aligned to their own size";
  }
  if (count >= uint64_t{1} << 41)
    return "expected less than 2^41 values";  // tiles have 32-bit numbers
  const Frame source{static_cast<const uint8_t*>(frame), frame_bytes};
  const Destination destination{static_cast<uint8_t*>(values), count,
                                is_aligned(values, kAlignment)};
  switch (dtype) {
    case DType::kBFloat16:
      return decode_as<DType::kBFloat16>(source, destination, status, options, queue);
    case DType::kFloat16:
      return decode_as<DType::kFloat16>(source, destination, status, options, queue);
    case DType::kFloat32:
      return decode_as<DType::kFloat32>(source, destination, status, options, queue);
    case DType::kFloat64:
      return decode_as<DType::kFloat64>(source, destination, status, options, queue);
    case DType::kFloat8E4M3FN:
      return decode_as<DType::kFloat8E4M3FN>(source, destination, status, options, queue);
    case DType::kFloat8E5M2:
      return decode_as<DType::kFloat8E5M2>(source, destination, status, options, queue);
    default:
      return decode_as<DType::kBytes>(source, destination, status, options, queue);
  }
}

}  // namespace uzip::gpu
