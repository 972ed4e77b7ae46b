// Tensors from frames. Nothing that a frame says is believed before it is compared with what is
// there.
#include "ans_frame.hpp"
#include "checksum.hpp"
#include "frame.hpp"
#include "parallel.hpp"
#include "prefetch.hpp"

namespace uzip {
namespace {

constexpr uint64_t kMinGroupsPerThread = 16;

bool all_zero(const uint8_t* bytes, size_t n) {
  return std::all_of(bytes, bytes + n, [](uint8_t byte) { return byte == 0; });
}

void unpack_order(const Header& header, uint8_t order[kWindow]) {
  for (int rank = 0; rank < kWindow; ++rank) {
    order[rank] = header.order[rank / 2] >> rank % 2 * 4 & 15;
  }
}

void check_order(const Header& header) {
  uint8_t order[kWindow];
  unpack_order(header, order);
  unsigned seen = 0;
  for (const uint8_t offset : order) seen |= 1u << offset;
  require(seen == 0xFFFF, "an order that is a permutation of 0..15");
}

void check_parameters(const Header& header, const FloatFormat& format, Codec codec) {
  if (codec == Codec::kRaw) {
    require(header.menu == 0 && header.zero_planes == 0 && header.base == 0 &&
                header.body_bytes == 0 && all_zero(header.order, sizeof header.order),
            "no parameters in a raw frame");
    return;
  }
  require(format.exponent_bits != 0, "codec raw for bytes", static_cast<int>(codec));
  require(header.base < format.symbols(), "a base below the number of symbols", header.base);
  require(header.zero_planes >> format.byte_planes == 0, "zero planes that the dtype has",
          header.zero_planes);
  if (codec == Codec::kTier) {
    require(header.menu < kMenus, "a menu below 8", header.menu);
    check_order(header);
  } else {
    require(header.menu >= 2 && header.menu <= 5, "blocks of 4, 8, 16 or 32 tiles", header.menu);
    require(format.itemsize > 1 || header.base == 0, "no window in byte mode", header.base);
    require(all_zero(header.order, sizeof header.order), "no order in an ans frame");
  }
}

TierCode tier_code(const Header& header) {
  uint8_t order[kWindow];
  unpack_order(header, order);
  return make_tier_code(static_cast<DType>(header.dtype), header.menu, header.base, order,
                        header.zero_planes);
}

// Decodes the tiles of a range of groups.
class TierDecoder {
 public:
  TierDecoder(const Header& header, const uint8_t* frame, uint8_t* values)
      : code_(tier_code(header)),
        coder_(tier_coder(code_.dtype)),
        packed_((header.flags & kFlagPacked) != 0),
        sections_(TierSections::of(header.count, code_, packed_)),
        frame_(frame),
        body_bytes_(header.body_bytes),
        values_(values) {}

  const TierSections& sections() const { return sections_; }

  void decode_groups(uint64_t first, uint64_t last) const {
    for (uint64_t group = first; group < last; ++group) {
      uint64_t place = uint64_t{load<uint32_t>(frame_ + sections_.group_entry(group))} * kAlignment;
      const uint64_t stop = std::min(sections_.tiles, (group + 1) * kGroupTiles);
      for (uint64_t tile = group * kGroupTiles; tile < stop; ++tile) {
        const auto entry = TileEntry::of(load<uint16_t>(frame_ + sections_.tile_entry(tile)));
        require(place <= body_bytes_ && static_cast<uint64_t>(entry.size) <= body_bytes_ - place,
                "tiles inside of the tail section", tile);
        decode_tile(tile, entry, place);
        place += static_cast<uint64_t>(entry.size);
      }
    }
  }

  void copy_remainder() const {
    if (sections_.remainder_bytes == 0) return;
    std::memcpy(values_ + sections_.tiles * float_format(code_.dtype).tile_bytes(),
                frame_ + sections_.remainder, sections_.remainder_bytes);
  }

 private:
  void decode_tile(uint64_t tile, TileEntry entry, uint64_t place) const {
    const uint8_t* tail = frame_ + sections_.tails + place;
    uint8_t scratch[kMaxTileSize + kTailSlack];
    if (body_bytes_ - place - static_cast<uint64_t>(entry.size) < kTailSlack) {
      // A coder may read some bytes behind a tail, and here the frame may end before.
      std::memcpy(scratch, tail, static_cast<size_t>(entry.size));
      std::memset(scratch + entry.size, 0, kTailSlack);
      tail = scratch;
    }
    const auto tile_bytes = static_cast<uint64_t>(float_format(code_.dtype).tile_bytes());
    uint8_t* values = values_ + tile * tile_bytes;
    const uint8_t* head = frame_ + sections_.heads() + tile * sections_.stride;
    if (tile + 1 < sections_.tiles) {
      prefetch_to_write(values + tile_bytes, tile_bytes);
      prefetch_to_read(head + sections_.stride, sections_.stride);
    }
    if (packed_) {
      decode_packed_tile(code_, coder_, entry, tail, values);
    } else {
      decode_dense_tile(code_, coder_, entry, head, tail, values);
    }
  }

  TierCode code_;
  TierCoder coder_;
  bool packed_;
  TierSections sections_;
  const uint8_t* frame_;
  uint64_t body_bytes_;
  uint8_t* values_;
};

void decode_raw(const Header& header, const uint8_t* frame, uint8_t* values) {
  const size_t frame_bytes = header.frame_bytes;
  if (header.count != 0) std::memcpy(values, frame + kHeaderBytes, frame_bytes - kHeaderBytes);
}

// Where the tail section starts: the sum of the sections before it.
uint64_t tails_of(const Header& header, DType dtype, Codec codec) {
  if (codec == Codec::kRaw) return bound(header.count, dtype);
  if (codec == Codec::kTier) {
    const bool packed = (header.flags & kFlagPacked) != 0;
    return TierSections::of(header.count, tier_code(header), packed).tails;
  }
  const AnsCode code = AnsCode::of(dtype, header.base, header.zero_planes);
  return AnsSections::of(header.count, code, header.menu).tails;
}

}  // namespace

Header read_header(const uint8_t* frame, size_t bytes) {
  require(bytes >= kHeaderBytes, "at least the 64 bytes of a header", bytes);
  const auto header = load<Header>(frame);
  require(std::memcmp(header.magic, kMagic, sizeof kMagic) == 0, "the magic UZIP");
  require(header.version == kVersion, "version 1", header.version);
  require(header.dtype < kDTypes, "a dtype code of 0..6", header.dtype);
  require(header.codec <= static_cast<uint8_t>(Codec::kAns), "codec raw, tier or ans",
          header.codec);
  const auto codec = static_cast<Codec>(header.codec);
  const uint8_t flags = kFlagChecksum | (codec == Codec::kTier ? kFlagPacked : 0);
  require((header.flags & ~flags) == 0, "no unknown flags", header.flags);
  require((header.flags & kFlagChecksum) != 0 || header.checksum == 0,
          "no checksum without its flag");
  require(all_zero(header.reserved0, sizeof header.reserved0) &&
              all_zero(header.reserved1, sizeof header.reserved1),
          "reserved fields of 0");
  const FloatFormat format = float_format(static_cast<DType>(header.dtype));
  require(header.count <= static_cast<uint64_t>(INT64_MAX) / format.itemsize,
          "values of less than 2^63 bytes", header.count);
  check_parameters(header, format, codec);
  const uint64_t tails = tails_of(header, static_cast<DType>(header.dtype), codec);
  require(
      header.frame_bytes >= header.body_bytes && header.frame_bytes - header.body_bytes == tails,
      "frame_bytes equal to the sum of the sections", header.frame_bytes);
  return header;
}

void decode_tier(const Header& header, const uint8_t* frame, uint8_t* values, int threads) {
  const TierDecoder decoder(header, frame, values);
  const uint64_t groups = decoder.sections().groups;
  for_each_part(groups, parts_of(groups, threads, kMinGroupsPerThread),
                [&](int, uint64_t first, uint64_t last) { decoder.decode_groups(first, last); });
  decoder.copy_remainder();
}

void decode(const uint8_t* frame, size_t frame_bytes, DType dtype, uint64_t count, uint8_t* values,
            const DecodeOptions& options) {
  const Header header = read_header(frame, frame_bytes);
  require(header.frame_bytes == frame_bytes, "frame_bytes equal to the size of the frame",
          header.frame_bytes);
  if (header.dtype != static_cast<uint8_t>(dtype) || header.count != count) {
    throw FormatError("expected a frame of " + std::to_string(count) + " values of dtype code " +
                      std::to_string(static_cast<int>(dtype)) + ", found " +
                      std::to_string(header.count) + " of dtype code " +
                      std::to_string(header.dtype));
  }
  if (options.verify) {
    require((header.flags & kFlagChecksum) != 0, "a checksum to verify");
    require(frame_checksum(frame, frame_bytes) == header.checksum, "the checksum of the frame");
  }
  switch (static_cast<Codec>(header.codec)) {
    case Codec::kRaw:
      return decode_raw(header, frame, values);
    case Codec::kTier:
      return decode_tier(header, frame, values, options.threads);
    case Codec::kAns:
      return decode_ans(header, frame, values, options.threads);
  }
}

}  // namespace uzip
