#include "ans_frame.hpp"

#include "ans_block.hpp"
#include "tails.hpp"

namespace uzip {
namespace {

constexpr size_t kTableBytes = 2 * ans::kCodes;
constexpr uint64_t kMinTilesPerThread = 128;

uint64_t min_blocks_per_thread(const AnsSections& sections) {
  return std::max<uint64_t>(kMinTilesPerThread / sections.block_tiles, 1);
}

}  // namespace

AnsCode AnsCode::of(DType dtype, int base, int zero_planes) {
  constexpr uint8_t kInOrder[kWindow] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const FloatFormat format = float_format(dtype);
  AnsCode code{};
  code.tier = make_tier_code(dtype, 0, base, kInOrder, zero_planes);
  code.byte_mode = format.itemsize == 1;
  code.tile_bytes = static_cast<size_t>(format.tile_bytes());
  code.stride = code.byte_mode ? 0 : code.tier.digits;
  code.codes_per_tile = code.byte_mode ? kTileValues : kTileValues / 2;
  code.strip = code.codes_per_tile / (2 * ans::kLanes);
  return code;
}

AnsSections AnsSections::of(uint64_t count, const AnsCode& code, int menu) {
  AnsSections s{};
  s.tiles = count / kTileValues;
  s.block_tiles = uint64_t{1} << menu;
  s.blocks = (s.tiles + s.block_tiles - 1) / s.block_tiles;
  s.remainder_bytes = count % kTileValues * (code.tile_bytes / kTileValues);
  s.remainder = kHeaderBytes + s.tiles * code.stride;
  s.table = s.remainder + align_up(s.remainder_bytes);
  s.directory = s.table + kTableBytes;
  s.tails = s.directory + align_up(4 * s.blocks);
  return s;
}

uint64_t AnsSections::tiles_in(uint64_t block) const {
  return std::min(block_tiles, tiles - block * block_tiles);
}

AnsEncoder::AnsEncoder(const uint8_t* values, uint64_t count, DType dtype, const AnsChoice& choice,
                       uint8_t* out)
    : values_(values),
      count_(count),
      dtype_(dtype),
      choice_(choice),
      code_(AnsCode::of(dtype, choice.base, choice.zero_planes)),
      sections_(AnsSections::of(count, code_, choice.menu)),
      out_(out),
      limit_(out + std::min(bound(count, dtype) - 1, sections_.tails + kMaxBodyBytes)),
      tail_(out + sections_.tails) {
  ans::fill_encode_table(choice.frequencies, &table_);
}

uint8_t* AnsEncoder::code_blocks(uint64_t first, uint64_t last, uint8_t* begin,
                                 uint8_t* end) const {
  BlockEncoder encoder(code_, table_);
  const uint8_t* tails = out_ + sections_.tails;
  for (uint64_t block = first; block < last && begin != nullptr; ++block) {
    store(out_ + sections_.entry(block),
          static_cast<uint32_t>(static_cast<uint64_t>(begin - tails) / kAlignment));
    const uint64_t tile = block * sections_.block_tiles;
    begin = encoder.encode(values_ + tile * code_.tile_bytes, sections_.tiles_in(block),
                           out_ + kHeaderBytes + tile * code_.stride, begin, end);
  }
  return begin;
}

bool AnsEncoder::advance(uint64_t n_groups) {
  if (tail_ == nullptr || tail_ > limit_) return false;
  const uint64_t groups =
      std::min(n_groups, sections_.tiles);  // so that the product below is small
  const uint64_t n_blocks =
      (groups * kGroupTiles + sections_.block_tiles - 1) / sections_.block_tiles;
  const uint64_t last = std::min(sections_.blocks, blocks_done_ + n_blocks);
  tail_ = code_blocks(blocks_done_, last, tail_, limit_);
  blocks_done_ = last;
  if (last == sections_.blocks) write_remainder_and_table();
  return tail_ != nullptr;
}

bool AnsEncoder::code_all(int threads) {
  if (tail_ > limit_) return false;
  const int parts = parts_of(sections_.blocks, threads, min_blocks_per_thread(sections_));
  tail_ = code_tails(
      sections_.blocks, parts, tail_, limit_,
      [&](uint64_t first, uint64_t last, uint8_t* begin, uint8_t* end) {
        return code_blocks(first, last, begin, end);
      },
      [&](uint64_t block) { return out_ + sections_.entry(block); });
  blocks_done_ = sections_.blocks;
  write_remainder_and_table();
  return tail_ != nullptr;
}

uint64_t AnsEncoder::final_stop() const {
  if (blocks_done_ == sections_.blocks) return sections_.directory;
  return kHeaderBytes + blocks_done_ * sections_.block_tiles * code_.stride;
}

void AnsEncoder::write_remainder_and_table() const {
  uint8_t* to = out_ + sections_.remainder;
  if (sections_.remainder_bytes != 0) {
    std::memcpy(to, values_ + sections_.tiles * code_.tile_bytes, sections_.remainder_bytes);
  }
  std::memset(to + sections_.remainder_bytes, 0,
              align_up(sections_.remainder_bytes) - sections_.remainder_bytes);
  std::memcpy(out_ + sections_.table, choice_.frequencies, kTableBytes);
}

size_t AnsEncoder::finish(bool checksum) const {
  const uint64_t directory_end = sections_.entry(sections_.blocks);
  std::memset(out_ + directory_end, 0, sections_.tails - directory_end);
  Header header = make_header(count_, dtype_, Codec::kAns);
  header.menu = choice_.menu;
  header.zero_planes = choice_.zero_planes;
  header.base = choice_.base;
  const auto frame_bytes = static_cast<size_t>(tail_ - out_);
  header.body_bytes = frame_bytes - sections_.tails;
  finish_frame(header, frame_bytes, checksum, out_);
  return frame_bytes;
}

namespace {

ans::DecodeTable load_table(const uint8_t* from) {
  uint16_t frequencies[ans::kCodes];
  std::memcpy(frequencies, from, kTableBytes);
  uint32_t sum = 0;
  uint32_t largest = 0;
  for (const uint16_t frequency : frequencies) {
    sum += frequency;
    largest = std::max<uint32_t>(largest, frequency);
  }
  require(sum == ans::kTableSum, "frequencies that sum to 4096", sum);
  require(largest <= ans::kMaxFrequency, "frequencies of at most 4095", largest);
  ans::DecodeTable table;
  ans::fill_decode_table(frequencies, &table);
  return table;
}

}  // namespace

void decode_ans(const Header& header, const uint8_t* frame, uint8_t* values, int threads) {
  const AnsCode code =
      AnsCode::of(static_cast<DType>(header.dtype), header.base, header.zero_planes);
  const AnsSections sections = AnsSections::of(header.count, code, header.menu);
  const ans::DecodeTable table = load_table(frame + sections.table);
  const uint8_t* tails = frame + sections.tails;
  const auto decode_blocks = [&](int, uint64_t first, uint64_t last) {
    BlockDecoder decoder(code, table);
    for (uint64_t block = first; block < last; ++block) {
      const uint64_t place = uint64_t{load<uint32_t>(frame + sections.entry(block))} * kAlignment;
      require(place <= header.body_bytes, "blocks inside of the tail section", place);
      const uint64_t tile = block * sections.block_tiles;
      decoder.decode(frame + kHeaderBytes + tile * code.stride, tails + place,
                     tails + header.body_bytes, sections.tiles_in(block),
                     values + tile * code.tile_bytes);
    }
  };
  for_each_part(sections.blocks,
                parts_of(sections.blocks, threads, min_blocks_per_thread(sections)), decode_blocks);
  if (sections.remainder_bytes == 0) return;
  std::memcpy(values + sections.tiles * code.tile_bytes, frame + sections.remainder,
              sections.remainder_bytes);
}

}  // namespace uzip
