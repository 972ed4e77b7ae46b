#include "ans_block.hpp"

#include <algorithm>

namespace uzip {
namespace {

// Byte mode: the values of a tile in order of position, 8 at a time.
void to_positions(const uint8_t* values, uint8_t* codes) {
  for (int p = 0; p < kTileValues; p += 8) std::memcpy(codes + p, values + value_of_position(p), 8);
}

void from_positions(const uint8_t* codes, uint8_t* values) {
  for (int p = 0; p < kTileValues; p += 8) std::memcpy(values + value_of_position(p), codes + p, 8);
}

}  // namespace

BlockEncoder::BlockEncoder(const AnsCode& code, const ans::EncodeTable& table)
    : code_(code),
      table_(table),
      tier_(tier_coder(code.tier.dtype)),
      coder_(ans::coder()),
      raw_end_(raw_) {}

// Heads to their place, codes and raw symbols to scratch. False: a tile is not codable.
bool BlockEncoder::split_tiles(const uint8_t* values, size_t n_tiles, uint8_t* heads) {
  raw_end_ = raw_;
  for (size_t tile = 0; tile < n_tiles; ++tile) {
    const uint8_t* from = values + tile * code_.tile_bytes;
    uint8_t* codes = codes_ + tile * code_.codes_per_tile;
    if (code_.byte_mode) {
      to_positions(from, codes);
      continue;
    }
    const int raw_bytes = tier_.encode(code_.tier, from, head_, raw_end_);
    if (raw_bytes == kNotCodable) return false;
    raw_end_ += raw_bytes;
    std::memcpy(heads + tile * code_.stride, head_, code_.stride);
    std::memcpy(codes, head_ + code_.stride, code_.codes_per_tile);
  }
  return true;
}

uint8_t* BlockEncoder::encode(const uint8_t* values, size_t n_tiles, uint8_t* heads, uint8_t* out,
                              uint8_t* stop) {
  const size_t room = static_cast<size_t>(stop - out);
  const size_t tail_bytes = code_.tile_bytes - code_.stride;
  const size_t verbatim_bytes = align_up(sizeof(BlockHeader) + n_tiles * tail_bytes);
  if (split_tiles(values, n_tiles, heads)) {
    uint32_t states[ans::kLanes];
    uint8_t* words_stop = words_ + sizeof words_;
    const uint8_t* words =
        coder_.encode(table_, codes_, 2 * n_tiles, code_.strip, states, words_stop);
    const size_t word_bytes = static_cast<size_t>(words_stop - words);
    const size_t raw_bytes = static_cast<size_t>(raw_end_ - raw_);
    const size_t used = sizeof(BlockHeader) + kStateBytes + word_bytes + raw_bytes;
    if (align_up(used) < verbatim_bytes) {
      if (align_up(used) > room) return nullptr;
      const auto n_raw =
          raw_bytes / static_cast<size_t>(float_format(code_.tier.dtype).symbol_bytes());
      store(out, BlockHeader{static_cast<uint32_t>(word_bytes / 2), static_cast<uint16_t>(n_raw),
                             static_cast<uint16_t>(BlockKind::kCoded)});
      uint8_t* to = out + sizeof(BlockHeader);
      std::memcpy(to, states, kStateBytes);
      std::memcpy(to + kStateBytes, words, word_bytes);
      std::memcpy(to + kStateBytes + word_bytes, raw_, raw_bytes);
      std::memset(out + used, 0, align_up(used) - used);
      return out + align_up(used);
    }
  }
  if (verbatim_bytes > room) return nullptr;
  store(out, BlockHeader{0, 0, static_cast<uint16_t>(BlockKind::kRaw)});
  uint8_t* to = out + sizeof(BlockHeader);
  for (size_t tile = 0; tile < n_tiles; ++tile, to += tail_bytes) {
    const uint8_t* from = values + tile * code_.tile_bytes;
    std::memcpy(heads + tile * code_.stride, from, code_.stride);
    std::memcpy(to, from + code_.stride, tail_bytes);
  }
  std::memset(to, 0, static_cast<size_t>(out + verbatim_bytes - to));
  return out + verbatim_bytes;
}

BlockDecoder::BlockDecoder(const AnsCode& code, const ans::DecodeTable& table)
    : code_(code), table_(table), tier_(tier_coder(code.tier.dtype)), coder_(ans::coder()) {}

void BlockDecoder::decode(const uint8_t* heads, const uint8_t* block, const uint8_t* stop,
                          size_t n_tiles, uint8_t* values) {
  require(static_cast<size_t>(stop - block) >= sizeof(BlockHeader),
          "a block inside of the tail section");
  const auto header = load<BlockHeader>(block);
  const uint8_t* body = block + sizeof(BlockHeader);
  if (header.kind == static_cast<uint16_t>(BlockKind::kRaw))
    return decode_raw(heads, header, body, stop, n_tiles, values);
  require(header.kind == static_cast<uint16_t>(BlockKind::kCoded), "a block of kind 0 or 1",
          header.kind);
  decode_coded(heads, header, body, stop, n_tiles, values);
}

void BlockDecoder::decode_raw(const uint8_t* heads, BlockHeader header, const uint8_t* body,
                              const uint8_t* stop, size_t n_tiles, uint8_t* values) {
  require(header.n_words == 0 && header.n_raw == 0, "no words and no raw symbols in a raw block");
  const size_t tail_bytes = code_.tile_bytes - code_.stride;
  require(static_cast<size_t>(stop - body) >= n_tiles * tail_bytes,
          "a raw block inside of the tail section");
  for (size_t tile = 0; tile < n_tiles; ++tile) {
    uint8_t* to = values + tile * code_.tile_bytes;
    std::memcpy(to, heads + tile * code_.stride, code_.stride);
    std::memcpy(to + code_.stride, body + tile * tail_bytes, tail_bytes);
  }
}

void BlockDecoder::decode_coded(const uint8_t* heads, BlockHeader header, const uint8_t* body,
                                const uint8_t* stop, size_t n_tiles, uint8_t* values) {
  require(!code_.byte_mode || header.n_raw == 0, "no raw symbols in byte mode", header.n_raw);
  const size_t word_bytes = 2 * size_t{header.n_words};
  size_t raw_bytes =
      size_t{header.n_raw} * static_cast<size_t>(float_format(code_.tier.dtype).symbol_bytes());
  require(static_cast<size_t>(stop - body) >= kStateBytes + word_bytes + raw_bytes,
          "a block inside of the tail section");
  uint32_t states[ans::kLanes];
  std::memcpy(states, body, kStateBytes);
  const uint8_t* words = body + kStateBytes;
  const uint8_t* words_stop = words + word_bytes;
  const uint8_t* raw = words_stop;
  uint8_t* codes = head_ + code_.stride;
  for (size_t tile = 0; tile < n_tiles; ++tile) {
    words = coder_.decode(table_, words, words_stop, stop, states, codes, 2, code_.strip);
    require(words != nullptr, "no more words than a block has", header.n_words);
    uint8_t* to = values + tile * code_.tile_bytes;
    if (code_.byte_mode) {
      from_positions(codes, to);
      continue;
    }
    const size_t used = join_tile(heads + tile * code_.stride, raw, raw_bytes, to);
    raw += used;
    raw_bytes -= used;
  }
  require(words == words_stop, "a block that uses all its words", header.n_words);
  require(raw_bytes == 0, "as many raw symbols as there are escapes", header.n_raw);
  require(std::all_of(states, states + ans::kLanes,
                      [](uint32_t state) { return state == ans::kStateMin; }),
          "lanes that end in the state 2^16");
}

// Puts a tile together whose codes lie behind the place for its head. Returns how many bytes of raw
// symbols it took.
size_t BlockDecoder::join_tile(const uint8_t* head, const uint8_t* raw, size_t raw_bytes,
                               uint8_t* values) {
  std::memcpy(head_, head, code_.stride);
  // The coder may read somewhat more than there is.
  const size_t at_most = std::min<size_t>(raw_bytes, 2 * kTileValues);
  std::memcpy(tail_, raw, at_most);
  const int used = tier_.decode(code_.tier, head_, tail_, static_cast<int>(at_most), values);
  require(used != kMalformed, "as many raw symbols as there are escapes");
  return static_cast<size_t>(used);
}

}  // namespace uzip
