// What surrounds the tiles: sections and headers, and the two codecs whose frames are assembled
// here.
#pragma once

#include "codec.hpp"
#include "select.hpp"
#include "tile.hpp"

namespace uzip {

// Where the sections of a tier frame begin, in bytes from the start of the frame.
struct TierSections {
  uint64_t tiles;
  uint64_t groups;
  uint64_t stride;           // bytes of a head; 0 in the packed layout
  uint64_t remainder_bytes;  // of the values behind the last whole tile
  uint64_t remainder;
  uint64_t directory;
  uint64_t tails;

  static TierSections of(uint64_t count, const TierCode& code, bool packed);
  uint64_t heads() const { return kHeaderBytes; }
  uint64_t group_entry(uint64_t group) const { return directory + 4 * group; }
  uint64_t tile_entry(uint64_t tile) const { return directory + 4 * groups + 2 * tile; }
};

// Offsets of groups are 32 bits, in units of 16 bytes.
constexpr uint64_t kMaxBodyBytes = (uint64_t{1} << 32) * kAlignment;

Header make_header(uint64_t count, DType dtype, Codec codec);

// Sets frame_bytes and the checksum, and stores the header. Everything else must have been written.
void finish_frame(Header header, size_t frame_bytes, bool checksum, uint8_t* frame);

size_t encode_raw(const uint8_t* values, uint64_t count, DType dtype, bool checksum, uint8_t* out);

// Codes a tensor as a frame, group after group: the frame can be sent in parts while it grows.
class FrameEncoder {
 public:
  virtual ~FrameEncoder() = default;

  // Bytes of the frame before its directory.
  virtual uint64_t fixed_stop() const = 0;

  // Up to which byte, from the end of the header on, the fixed part is final.
  virtual uint64_t final_stop() const = 0;

  // Codes up to n more groups of kGroupTiles tiles, and as many more as share a block with them.
  // False: the frame would not be smaller than a raw one.
  virtual bool advance(uint64_t n_groups) = 0;

  // Codes all groups with several threads; the bytes are those of advance(). False as there.
  virtual bool code_all(int threads) = 0;

  // Writes the directory's end and the header, once all groups are coded. Returns the bytes of the
  // frame.
  virtual size_t finish(bool checksum) const = 0;
};

class TierEncoder : public FrameEncoder {
 public:
  // `out` has bound(count, dtype) bytes. Nothing is written yet.
  TierEncoder(const uint8_t* values, uint64_t count, DType dtype, const TierChoice& choice,
              uint8_t* out);

  uint64_t fixed_stop() const override { return sections_.directory; }
  uint64_t final_stop() const override;
  bool advance(uint64_t n_groups) override;
  bool code_all(int threads) override;
  size_t finish(bool checksum) const override;

 private:
  // Codes groups first .. last - 1 with tails from `begin` on. Returns their end, or nullptr if
  // that passes `end`.
  uint8_t* code_groups(uint64_t first, uint64_t last, uint8_t* begin, uint8_t* end) const;
  TileEntry code_tile(uint64_t tile, uint8_t* tail, uint8_t* end) const;
  void copy_remainder() const;

  const uint8_t* values_;
  uint64_t count_;
  DType dtype_;
  bool packed_;
  TierCode code_;
  TierCoder coder_;
  TierSections sections_;
  uint8_t* out_;
  uint8_t* limit_;  // end of the largest frame that is worth it
  uint8_t* tail_;   // end of the tails so far
  uint64_t groups_done_ = 0;
};

// Chooses codec and parameters; null where a raw frame is asked for or expected to be as good.
std::unique_ptr<FrameEncoder> plan_frame(const uint8_t* values, uint64_t count, DType dtype,
                                         const EncodeOptions& options, uint8_t* out);

void decode_tier(const Header& header, const uint8_t* frame, uint8_t* values, int threads);

}  // namespace uzip
