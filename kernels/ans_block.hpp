// One block of an ans frame: up to 32 tiles that share 32 states and a stream of words.
#pragma once

#include "ans_frame.hpp"

namespace uzip {

enum class BlockKind : uint16_t { kCoded = 0, kRaw = 1 };

struct BlockHeader {
  uint32_t n_words;
  uint16_t n_raw;  // raw symbols
  uint16_t kind;
};
static_assert(sizeof(BlockHeader) == 8, "FORMAT.md: a block header is 8 bytes");

constexpr size_t kMaxBlockTiles = 32;
constexpr size_t kStateBytes = 4 * ans::kLanes;

// Encodes blocks with one frame's parameters. About 170 KiB, for the stack: no codec call
// allocates.
class BlockEncoder {
 public:
  BlockEncoder(const AnsCode& code, const ans::EncodeTable& table);

  // Writes the heads of the tiles at `heads` and the block, padded, at `out`. Returns the end of
  // the block, or nullptr if that passes `stop`; then nothing has been written at `out`.
  uint8_t* encode(const uint8_t* values, size_t n_tiles, uint8_t* heads, uint8_t* out,
                  uint8_t* stop);

 private:
  bool split_tiles(const uint8_t* values, size_t n_tiles, uint8_t* heads);

  const AnsCode& code_;
  const ans::EncodeTable& table_;
  TierCoder tier_;
  ans::Coder coder_;
  uint8_t* raw_end_;  // of the raw symbols so far
  alignas(64) uint8_t codes_[kMaxBlockTiles * kTileValues];
  alignas(64) uint8_t words_[ans::kSlack + 2 * kMaxBlockTiles * kTileValues];
  alignas(64) uint8_t raw_[2 * kMaxBlockTiles * kTileValues + kMaxTailBytes + kTailSlack];
  alignas(64) uint8_t head_[kMaxHeadBytes];
};

// Decodes blocks with one frame's parameters.
class BlockDecoder {
 public:
  BlockDecoder(const AnsCode& code, const ans::DecodeTable& table);

  // `block` may be read up to `stop`. Throws FormatError.
  void decode(const uint8_t* heads, const uint8_t* block, const uint8_t* stop, size_t n_tiles,
              uint8_t* values);

 private:
  void decode_raw(const uint8_t* heads, BlockHeader header, const uint8_t* body,
                  const uint8_t* stop, size_t n_tiles, uint8_t* values);
  void decode_coded(const uint8_t* heads, BlockHeader header, const uint8_t* body,
                    const uint8_t* stop, size_t n_tiles, uint8_t* values);
  size_t join_tile(const uint8_t* head, const uint8_t* raw, size_t raw_bytes, uint8_t* values);

  const AnsCode& code_;
  const ans::DecodeTable& table_;
  TierCoder tier_;
  ans::Coder coder_;
  alignas(64)
      uint8_t head_[kMaxHeadBytes];  // in pair mode with the codes behind; in byte mode the codes
  alignas(64) uint8_t tail_[2 * kTileValues + kTailSlack];
};

}  // namespace uzip
