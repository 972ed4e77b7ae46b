// What surrounds the tiles: sections and headers, and the two codecs whose frames are assembled here.
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

Header make_header(uint64_t count, DType dtype, Codec codec);

// Sets frame_bytes and the checksum, and stores the header. Everything else must have been written.
void finish_frame(Header header, size_t frame_bytes, bool checksum, uint8_t* frame);

size_t encode_raw(const uint8_t* values, uint64_t count, DType dtype, bool checksum, uint8_t* out);

// Codes a tensor as a tier frame, group after group: the frame can be sent in parts while it grows.
class TierEncoder {
 public:
  // `out` has bound(count, dtype) bytes. Nothing is written yet.
  TierEncoder(const uint8_t* values, uint64_t count, DType dtype, const TierChoice& choice,
              uint8_t* out);

  const TierSections& sections() const { return sections_; }
  uint64_t groups_done() const { return groups_done_; }

  // Codes up to n more groups. False: the frame would not be smaller than a raw one.
  bool advance(uint64_t n_groups);

  // Codes all groups with several threads; the bytes are those of advance(). False as there.
  bool code_all(int threads);

  // Writes directory's end and header, once all groups are coded. Returns the bytes of the frame.
  size_t finish(bool checksum) const;

 private:
  // Codes groups first .. last - 1 with tails from `begin` on. Returns their end, or nullptr if that passes `end`.
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

// Parameters of a tier frame; empty where a raw frame is asked for or expected to be as good.
std::optional<TierChoice> plan_tier(const uint8_t* values, uint64_t count, DType dtype,
                                    const EncodeOptions& options);

void decode_tier(const Header& header, const uint8_t* frame, uint8_t* values, int threads);

}  // namespace uzip
