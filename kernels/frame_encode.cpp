// Frames from tensors.
#include "checksum.hpp"
#include "frame.hpp"
#include "parallel.hpp"

namespace uzip {
namespace {

// Offsets of groups are 32 bits, in units of 16 bytes.
constexpr uint64_t kMaxBodyBytes = (uint64_t{1} << 32) * kAlignment;
constexpr uint64_t kMinGroupsPerThread = 16;  // 256 KiB of 2-byte values, against tens of microseconds to start

void zero_padding(uint8_t* out, uint64_t begin, uint64_t end) {
  std::memset(out + begin, 0, end - begin);
}

}  // namespace

TierSections TierSections::of(uint64_t count, const TierCode& code, bool packed) {
  TierSections s{};
  s.tiles = count / kTileValues;
  s.groups = (s.tiles + kGroupTiles - 1) / kGroupTiles;
  s.stride = packed ? 0 : code.stride;
  s.remainder_bytes = count % kTileValues * float_format(code.dtype).itemsize;
  s.remainder = kHeaderBytes + s.tiles * s.stride;
  s.directory = s.remainder + align_up(s.remainder_bytes);
  s.tails = s.directory + align_up(4 * s.groups + 2 * s.tiles);
  return s;
}

Header make_header(uint64_t count, DType dtype, Codec codec) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.dtype = static_cast<uint8_t>(dtype);
  header.codec = static_cast<uint8_t>(codec);
  header.count = count;
  return header;
}

void finish_frame(Header header, size_t frame_bytes, bool checksum, uint8_t* frame) {
  header.frame_bytes = frame_bytes;
  if (checksum) header.flags |= kFlagChecksum;
  std::memcpy(frame, &header, sizeof header);
  if (!checksum) return;
  header.checksum = frame_checksum(frame, frame_bytes);
  std::memcpy(frame, &header, sizeof header);
}

size_t encode_raw(const uint8_t* values, uint64_t count, DType dtype, bool checksum, uint8_t* out) {
  const size_t frame_bytes = bound(count, dtype);
  if (count != 0) std::memcpy(out + kHeaderBytes, values, frame_bytes - kHeaderBytes);
  finish_frame(make_header(count, dtype, Codec::kRaw), frame_bytes, checksum, out);
  return frame_bytes;
}

TierEncoder::TierEncoder(const uint8_t* values, uint64_t count, DType dtype,
                         const TierChoice& choice, uint8_t* out)
    : values_(values),
      count_(count),
      dtype_(dtype),
      packed_(choice.packed),
      code_(make_tier_code(dtype, choice.menu, choice.base, choice.order, choice.zero_planes)),
      coder_(tier_coder(dtype)),
      sections_(TierSections::of(count, code_, choice.packed)),
      out_(out),
      limit_(out + std::min(bound(count, dtype) - 1, sections_.tails + kMaxBodyBytes)),
      tail_(out + sections_.tails) {}

TileEntry TierEncoder::code_tile(uint64_t tile, uint8_t* tail, uint8_t* end) const {
  const uint8_t* values = values_ + tile * float_format(dtype_).tile_bytes();
  uint8_t* head = out_ + sections_.heads() + tile * sections_.stride;
  const auto code_to = [&](uint8_t* place) {
    return packed_ ? encode_packed_tile(code_, coder_, values, place)
                   : encode_dense_tile(code_, coder_, values, head, place);
  };
  if (end - tail >= kTileRoom) return code_to(tail);
  uint8_t scratch[kTileRoom];
  const TileEntry entry = code_to(scratch);
  if (entry.size <= end - tail) std::memcpy(tail, scratch, static_cast<size_t>(entry.size));
  return entry;
}

uint8_t* TierEncoder::code_groups(uint64_t first, uint64_t last, uint8_t* begin,
                                  uint8_t* end) const {
  uint8_t* tail = begin;
  const uint8_t* tails = out_ + sections_.tails;
  for (uint64_t group = first; group < last; ++group) {
    store(out_ + sections_.group_entry(group),
          static_cast<uint32_t>(static_cast<uint64_t>(tail - tails) / kAlignment));
    const uint64_t stop = std::min(sections_.tiles, (group + 1) * kGroupTiles);
    for (uint64_t tile = group * kGroupTiles; tile < stop; ++tile) {
      const TileEntry entry = code_tile(tile, tail, end);
      if (entry.size > end - tail) return nullptr;
      store(out_ + sections_.tile_entry(tile), entry.word());
      tail += entry.size;
    }
    const int64_t padding = static_cast<int64_t>(tails - tail) & (kAlignment - 1);
    if (padding > end - tail) return nullptr;
    std::memset(tail, 0, static_cast<size_t>(padding));
    tail += padding;
  }
  return tail;
}

bool TierEncoder::advance(uint64_t n_groups) {
  const uint64_t last = std::min(sections_.groups, groups_done_ + n_groups);
  if (tail_ == nullptr || tail_ > limit_) return false;
  tail_ = code_groups(groups_done_, last, tail_, limit_);
  groups_done_ = last;
  if (tail_ == nullptr) return false;
  if (last == sections_.groups) copy_remainder();
  return true;
}

void TierEncoder::copy_remainder() const {
  if (sections_.remainder_bytes != 0) {
    const uint64_t tiles_bytes = sections_.tiles * float_format(dtype_).tile_bytes();
    std::memcpy(out_ + sections_.remainder, values_ + tiles_bytes, sections_.remainder_bytes);
  }
  zero_padding(out_, sections_.remainder + sections_.remainder_bytes, sections_.directory);
}

// Each thread has an equal share of the room for tails; where one does not suffice, one thread codes all, so that the
// frame does not depend on their number.
bool TierEncoder::code_all(int threads) {
  const int parts = parts_of(sections_.groups, threads, kMinGroupsPerThread);
  if (parts == 1 || tail_ > limit_) return advance(sections_.groups);
  const uint64_t room = static_cast<uint64_t>(limit_ - tail_) / static_cast<uint64_t>(parts) /
                        kAlignment * kAlignment;
  std::vector<uint8_t*> ends(static_cast<size_t>(parts));
  for_each_part(sections_.groups, parts, [&](int part, uint64_t first, uint64_t last) {
    uint8_t* begin = tail_ + static_cast<uint64_t>(part) * room;
    ends[static_cast<size_t>(part)] = code_groups(first, last, begin, begin + room);
  });
  for (const uint8_t* end : ends) {
    if (end == nullptr) return advance(sections_.groups);
  }
  uint8_t* joined = ends[0];
  for (int part = 1; part < parts; ++part) {
    uint8_t* begin = tail_ + static_cast<uint64_t>(part) * room;
    const auto moved = static_cast<uint32_t>((begin - joined) / kAlignment);
    const size_t bytes = static_cast<size_t>(ends[static_cast<size_t>(part)] - begin);
    std::memmove(joined, begin, bytes);
    joined += bytes;
    const uint64_t last = part_begin(sections_.groups, parts, part + 1);
    for (uint64_t group = part_begin(sections_.groups, parts, part); group < last; ++group) {
      uint8_t* entry = out_ + sections_.group_entry(group);
      store(entry, load<uint32_t>(entry) - moved);
    }
  }
  tail_ = joined;
  groups_done_ = sections_.groups;
  copy_remainder();
  return true;
}

size_t TierEncoder::finish(bool checksum) const {
  zero_padding(out_, sections_.tile_entry(sections_.tiles), sections_.tails);
  Header header = make_header(count_, dtype_, Codec::kTier);
  header.flags = packed_ ? kFlagPacked : 0;
  header.menu = code_.menu;
  header.zero_planes = code_.zero_planes;
  header.base = code_.base;
  for (int rank = 0; rank < kWindow; ++rank) {
    header.order[rank / 2] |= static_cast<uint8_t>(code_.order[rank] << rank % 2 * 4);
  }
  const auto frame_bytes = static_cast<size_t>(tail_ - out_);
  header.body_bytes = frame_bytes - sections_.tails;
  finish_frame(header, frame_bytes, checksum, out_);
  return frame_bytes;
}

double predict(const uint8_t* values, uint64_t count, DType dtype) {
  if (dtype == DType::kBytes || count < kTileValues) return 1;
  return std::min(1.0, choose_tier(values, count, dtype).ratio);
}

std::optional<TierChoice> plan_tier(const uint8_t* values, uint64_t count, DType dtype,
                                    const EncodeOptions& options) {
  if (dtype == DType::kBytes || count < kTileValues || options.codec == Codec::kRaw) return {};
  const TierChoice choice = choose_tier(values, count, dtype);
  if (!options.codec && choice.ratio > kWorthRatio) return {};
  return choice;
}

size_t encode(const uint8_t* values, uint64_t count, DType dtype, uint8_t* out,
              const EncodeOptions& options) {
  if (const auto choice = plan_tier(values, count, dtype, options)) {
    TierEncoder encoder(values, count, dtype, *choice, out);
    if (encoder.code_all(options.threads)) return encoder.finish(options.checksum);
  }
  return encode_raw(values, count, dtype, options.checksum, out);
}

}  // namespace uzip
