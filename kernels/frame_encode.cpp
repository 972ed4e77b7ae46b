// Frames from tensors.
#include "ans_frame.hpp"
#include "checksum.hpp"
#include "frame.hpp"
#include "parallel.hpp"
#include "prefetch.hpp"
#include "tails.hpp"

namespace uzip {
namespace {

constexpr uint64_t kMinGroupsPerThread =
    16;  // 256 KiB of 2-byte values, against tens of microseconds to start

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
  const auto tile_bytes = static_cast<uint64_t>(float_format(dtype_).tile_bytes());
  const uint8_t* values = values_ + tile * tile_bytes;
  uint8_t* head = out_ + sections_.heads() + tile * sections_.stride;
  if (tile + 1 < sections_.tiles) prefetch_to_read(values + tile_bytes, tile_bytes);
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
  const uint64_t last = groups_done_ + std::min(n_groups, sections_.groups - groups_done_);
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

bool TierEncoder::code_all(int threads) {
  if (tail_ > limit_) return false;
  const int parts = parts_of(sections_.groups, threads, kMinGroupsPerThread);
  tail_ = code_tails(
      sections_.groups, parts, tail_, limit_,
      [&](uint64_t first, uint64_t last, uint8_t* begin, uint8_t* end) {
        return code_groups(first, last, begin, end);
      },
      [&](uint64_t group) { return out_ + sections_.group_entry(group); });
  groups_done_ = sections_.groups;
  copy_remainder();
  return tail_ != nullptr;
}

uint64_t TierEncoder::final_stop() const {
  if (groups_done_ == sections_.groups) return sections_.directory;
  return sections_.heads() + groups_done_ * kGroupTiles * sections_.stride;
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

namespace {

bool is_codable(uint64_t count, DType dtype) {
  return dtype != DType::kBytes && count >= kTileValues;
}

// An 8-bit value's exponent and rest depend on each other: coded whole it is 1 to 3% smaller than
// with tier.
bool wants_ans(DType dtype, const EncodeOptions& options) {
  if (options.codec) return options.codec == Codec::kAns;
  return float_format(dtype).itemsize == 1;
}

}  // namespace

double predict(const uint8_t* values, uint64_t count, DType dtype) {
  if (!is_codable(count, dtype)) return 1;
  const TierChoice tier = choose_tier(values, count, dtype);
  const double ratio = std::min(1.0, tier.ratio);
  if (!wants_ans(dtype, EncodeOptions{})) return ratio;
  return std::min(ratio, choose_ans(values, count, dtype, tier).ratio);
}

std::unique_ptr<FrameEncoder> plan_frame(const uint8_t* values, uint64_t count, DType dtype,
                                         const EncodeOptions& options, uint8_t* out) {
  if (!is_codable(count, dtype) || options.codec == Codec::kRaw) return nullptr;
  const TierChoice tier = choose_tier(values, count, dtype);
  const auto worth = [&](double ratio) { return options.codec || ratio <= kWorthRatio; };
  if (wants_ans(dtype, options)) {
    const AnsChoice ans = choose_ans(values, count, dtype, tier);
    // Zeros and constants are cheaper in tier's packed layout, whichever codec was asked for.
    if (ans.ratio < tier.ratio && worth(ans.ratio)) {
      return std::make_unique<AnsEncoder>(values, count, dtype, ans, out);
    }
  }
  if (!worth(tier.ratio)) return nullptr;
  return std::make_unique<TierEncoder>(values, count, dtype, tier, out);
}

size_t encode(const uint8_t* values, uint64_t count, DType dtype, uint8_t* out,
              const EncodeOptions& options) {
  const auto encoder = plan_frame(values, count, dtype, options, out);
  if (encoder != nullptr && encoder->code_all(options.threads)) {
    return encoder->finish(options.checksum);
  }
  return encode_raw(values, count, dtype, options.checksum, out);
}

}  // namespace uzip
