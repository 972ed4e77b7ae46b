#include "frame_fuzz.hpp"

#include <algorithm>
#include <cstring>

#include "ans_frame.hpp"
#include "checksum.hpp"
#include "frame.hpp"
#include "tile.hpp"

namespace uzip::fuzz {
namespace {

TierCode tier_code(const Header& header) {
  uint8_t order[kWindow];
  for (int rank = 0; rank < kWindow; ++rank)
    order[rank] = header.order[rank / 2] >> rank % 2 * 4 & 15;
  return make_tier_code(static_cast<DType>(header.dtype), header.menu, header.base, order,
                        header.zero_planes);
}

bool is_packed(const Header& header) { return (header.flags & kFlagPacked) != 0; }

bool is_permutation(const uint8_t order[8]) {
  unsigned seen = 0;
  for (int i = 0; i < 8; ++i) seen |= 1u << (order[i] & 15) | 1u << (order[i] >> 4);
  return seen == 0xFFFF;
}

// The bytes from `place` on, followed by zeros: as much as any tile has.
struct Window {
  uint8_t bytes[kMaxTileSize + kTileRoom] = {};

  Window(const uint8_t* begin, const uint8_t* end, uint64_t place) {
    const auto there = static_cast<uint64_t>(end - begin);
    if (place >= there) return;
    std::memcpy(bytes, begin + place, std::min<uint64_t>(there - place, kMaxTileSize));
  }
};

// The size that a masked tile's mask and digits ask for.
int masked_size(const TierCode& code, const TierCoder& coder, const uint8_t* tile) {
  int n = 0;
  for (int i = 0; i < kMaskBytes; i += 8) n += __builtin_popcountll(load<uint64_t>(tile + i));
  uint8_t head[kMaxHeadBytes] = {};
  uint8_t values[8 * kTileValues];
  const uint8_t* plane = tile + kMaskBytes;
  for_each_plane(code, [&](int offset, int width) {
    const int bytes = plane_bytes(width, n);
    std::memcpy(head + offset, plane, static_cast<size_t>(bytes));
    const int used = width * n % 8;
    if (used != 0) head[offset + bytes - 1] &= static_cast<uint8_t>((1 << used) - 1);
    plane += bytes;
  });
  const int tail_bytes = coder.decode(code, head, plane, kMaxTailBytes, values);
  return static_cast<int>(align_up(static_cast<uint64_t>(plane - tile + tail_bytes)));
}

// The size that a tile's content asks for, its kind made one that the layout has.
TileEntry mend_entry(const TierCode& code, bool packed, TileEntry entry, const uint8_t* head,
                     const uint8_t* tail) {
  const TierCoder coder = tier_coder_portable(code.dtype);
  const int tile_bytes = float_format(code.dtype).tile_bytes();
  uint8_t values[8 * kTileValues];
  if (!packed) {
    if (entry.kind == TileKind::kRaw) return {TileKind::kRaw, tile_bytes - code.stride};
    return {TileKind::kCoded, coder.decode(code, head, tail, kMaxTailBytes, values)};
  }
  if (entry.kind == TileKind::kRaw) return {TileKind::kRaw, tile_bytes};
  if (entry.kind == TileKind::kConstant) return {entry.kind, entry.size == 0 ? 0 : kAlignment};
  if (entry.kind == TileKind::kCoded) {
    const int tail_bytes = coder.decode(code, tail, tail + code.stride, kMaxTailBytes, values);
    return {entry.kind,
            static_cast<int>(align_up(static_cast<uint64_t>(code.stride + tail_bytes)))};
  }
  return {entry.kind, masked_size(code, coder, tail)};
}

}  // namespace

Sections Sections::of(const Header& header) {
  const auto dtype = static_cast<DType>(header.dtype);
  switch (static_cast<Codec>(header.codec)) {
    case Codec::kTier: {
      const auto s = TierSections::of(header.count, tier_code(header), is_packed(header));
      return {s.remainder, s.directory, s.directory, s.tails, s.groups, s.tiles, s.stride};
    }
    case Codec::kAns: {
      const AnsCode code = AnsCode::of(dtype, header.base, header.zero_planes);
      const auto s = AnsSections::of(header.count, code, header.menu);
      return {s.remainder, s.table, s.directory, s.tails, s.blocks, 0, code.stride};
    }
    default: {
      const uint64_t end = bound(header.count, dtype);
      return {kHeaderBytes, end, end, end, 0, 0, 0};
    }
  }
}

namespace {

Header mend_fields(const uint8_t* frame) {
  const auto found = load<Header>(frame);
  const auto dtype = static_cast<DType>(found.dtype % kDTypes);
  const FloatFormat format = float_format(dtype);
  const auto codec = dtype == DType::kBytes ? Codec::kRaw : static_cast<Codec>(found.codec % 3);
  const uint64_t limit = kMaxValueBytes / format.itemsize;
  Header header =
      make_header(found.count <= limit ? found.count : found.count % limit, dtype, codec);
  header.flags = found.flags & kFlagChecksum;
  if (codec == Codec::kRaw) return header;
  header.base = found.base % format.symbols();
  header.zero_planes = found.zero_planes & ((1 << format.byte_planes) - 1);
  if (codec == Codec::kAns) {
    header.menu = 2 + found.menu % 4;
    if (format.itemsize == 1) header.base = 0;
    return header;
  }
  constexpr uint8_t kInOrder[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE};
  header.flags |= found.flags & kFlagPacked;
  header.menu = found.menu % kMenus;
  std::memcpy(header.order, is_permutation(found.order) ? found.order : kInOrder, sizeof kInOrder);
  return header;
}

}  // namespace

Header mend_header(const uint8_t* frame) {
  Header header = mend_fields(frame);
  if (Sections::of(header).tails > kMaxFrameBytes) header.count %= kTileValues;
  return header;
}

void mend_sizes(const Header& header, Frame* frame) {
  Header mended = header;
  const uint64_t tails = Sections::of(header).tails;
  const bool exact = header.codec == static_cast<uint8_t>(Codec::kRaw);
  if (frame->size() < tails || exact) frame->resize(tails);
  mended.body_bytes = frame->size() - tails;
  finish_frame(mended, frame->size(), (mended.flags & kFlagChecksum) != 0, frame->data());
}

void mend_tiles(Frame* frame) {
  const Header header = mend_header(frame->data());
  if (header.codec != static_cast<uint8_t>(Codec::kTier)) return;
  const Sections sections = Sections::of(header);
  const TierCode code = tier_code(header);
  const uint8_t* end = frame->data() + frame->size();
  Frame mended(frame->begin(), frame->begin() + static_cast<ptrdiff_t>(sections.tails));
  for (uint64_t group = 0; group < sections.units; ++group) {
    uint8_t* group_entry = mended.data() + sections.directory + 4 * group;
    uint64_t place = sections.tails + uint64_t{load<uint32_t>(group_entry)} * kAlignment;
    store(group_entry, static_cast<uint32_t>((mended.size() - sections.tails) / kAlignment));
    const uint64_t last = std::min(sections.tiles, (group + 1) * kGroupTiles);
    for (uint64_t tile = group * kGroupTiles; tile < last; ++tile) {
      uint8_t* tile_entry = mended.data() + sections.directory + 4 * sections.units + 2 * tile;
      const TileEntry old = TileEntry::of(load<uint16_t>(tile_entry));
      const Window tail(frame->data(), end, place);
      const TileEntry entry =
          mend_entry(code, is_packed(header), old,
                     frame->data() + kHeaderBytes + tile * sections.stride, tail.bytes);
      store(tile_entry, entry.word());
      place += static_cast<uint64_t>(old.size);
      mended.insert(mended.end(), tail.bytes, tail.bytes + entry.size);
    }
    mended.resize(align_up(mended.size()));  // sections.tails is a multiple of 16
  }
  frame->swap(mended);
  mend_sizes(header, frame);
}

}  // namespace uzip::fuzz
