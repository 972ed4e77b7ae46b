// Frames of codec `ans`: choice of window and table, blocks, and what surrounds them.
#pragma once

#include "ans.hpp"
#include "frame.hpp"

namespace uzip {

struct AnsChoice {
  uint8_t menu;  // log2 of the tiles in a block
  uint8_t zero_planes;
  uint16_t base;
  uint16_t frequencies[ans::kCodes];
  double ratio;  // expected bytes of the frame / bytes of the tensor
};

// Refines a tier choice by a sample of codes. Deterministic, as choose_tier is.
AnsChoice choose_ans(const uint8_t* values, uint64_t count, DType dtype, const TierChoice& tier);

// How the values of a tile become a head, codes and raw symbols. In pair mode that is the coding of
// tier's menu 0, whose digit plane is the codes.
struct AnsCode {
  TierCode tier;
  size_t tile_bytes;      // of the values
  size_t stride;          // bytes of a head, which ends where tier has its digits
  size_t codes_per_tile;  // 512 in pair mode, 1024 in byte mode
  size_t strip;           // codes of a lane in half a tile
  bool byte_mode;

  static AnsCode of(DType dtype, int base, int zero_planes);
};

// Where the sections of an ans frame begin, in bytes from the start of the frame.
struct AnsSections {
  uint64_t tiles;
  uint64_t block_tiles;
  uint64_t blocks;
  uint64_t remainder_bytes;  // of the values behind the last whole tile
  uint64_t remainder;
  uint64_t table;
  uint64_t directory;
  uint64_t tails;

  static AnsSections of(uint64_t count, const AnsCode& code, int menu);
  uint64_t tiles_in(uint64_t block) const;
  uint64_t entry(uint64_t block) const { return directory + 4 * block; }
};

class AnsEncoder : public FrameEncoder {
 public:
  // `out` has bound(count, dtype) bytes. Nothing is written yet.
  AnsEncoder(const uint8_t* values, uint64_t count, DType dtype, const AnsChoice& choice,
             uint8_t* out);

  uint64_t fixed_stop() const override { return sections_.directory; }
  uint64_t final_stop() const override;
  bool advance(uint64_t n_groups) override;
  bool code_all(int threads) override;
  size_t finish(bool checksum) const override;

 private:
  // Codes blocks first .. last - 1 to `begin` and on. Returns their end, or nullptr if that passes
  // `end`.
  uint8_t* code_blocks(uint64_t first, uint64_t last, uint8_t* begin, uint8_t* end) const;
  void write_remainder_and_table() const;

  const uint8_t* values_;
  uint64_t count_;
  DType dtype_;
  AnsChoice choice_;
  AnsCode code_;
  AnsSections sections_;
  ans::EncodeTable table_;
  uint8_t* out_;
  uint8_t* limit_;  // end of the largest frame that is worth it
  uint8_t* tail_;   // end of the blocks so far
  uint64_t blocks_done_ = 0;
};

void decode_ans(const Header& header, const uint8_t* frame, uint8_t* values, int threads);

}  // namespace uzip
