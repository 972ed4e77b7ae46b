// What the GPU half of codec ans shares: sections, and how a dtype's values become codes.
//
// In pair mode a tile is that of tier's menu 0 with the order 0, 1, .., 15, so heads are those of
// TileCode without the digits; in byte mode there are none.
#pragma once

#include "ans.hpp"
#include "frame_gpu.hpp"
#include "tile_code_gpu.hpp"

namespace uzip::gpu {

constexpr int kTableBytes = 2 * ans::kCodes;
constexpr int kStateBytes = 4 * kLanes;
static_assert(ans::kLanes == kLanes, "a lane of the format is a lane of a warp");
static_assert(ans::kCodes == kThreads, "a thread of a block serves a code of the table");

// The header of a block.
struct alignas(8) BlockHeader {
  uint32_t n_words;
  uint16_t n_raw;  // raw symbols
  uint16_t kind;
};
constexpr uint16_t kCodedBlock = 0;
constexpr uint16_t kRawBlock = 1;

template <DType kDType>
struct AnsFormat {
  static constexpr FloatFormat kFormat = float_format(kDType);
  static constexpr bool kPairs = kFormat.itemsize > 1;
  static constexpr int kQuadCodes = kPairs ? 2 : 4;
  static constexpr int kHalfCodes = kHalfQuads * kQuadCodes;  // of a lane
  // The coder moves on by so many codes of a lane at a time.
  static constexpr int kStretch = 8;
  static constexpr int kStretchQuads = kStretch / kQuadCodes;

  UZIP_DEVICE static TileCode code(uint32_t base, uint32_t zero_planes) {
    TileCode code =
        TileCode::of<kDType>(TierParameters{0, base, zero_planes, {0x76543210u, 0xFEDCBA98u}});
    code.stride = kPairs ? code.digits : 0;
    return code;
  }
};

// Where the sections of an ans frame begin, in bytes from the start of the frame.
struct AnsSections {
  uint64_t tiles;
  uint64_t blocks;
  uint64_t remainder;
  uint64_t remainder_bytes;
  uint64_t table;
  uint64_t directory;
  uint64_t tails;
  int block_log2;  // of its tiles

  UZIP_HD static AnsSections of(uint64_t count, int itemsize, int stride, int block_log2) {
    AnsSections s;
    s.block_log2 = block_log2;
    s.tiles = count / kTileValues;
    s.blocks = (s.tiles + (uint64_t{1} << block_log2) - 1) >> block_log2;
    s.remainder = kHeaderBytes + s.tiles * static_cast<uint64_t>(stride);
    s.remainder_bytes = count % kTileValues * static_cast<uint64_t>(itemsize);
    s.table = s.remainder + align_up(s.remainder_bytes);
    s.directory = s.table + kTableBytes;
    s.tails = s.directory + align_up(4 * s.blocks);
    return s;
  }
  UZIP_HD uint64_t entry(uint64_t block) const { return directory + 4 * block; }
  UZIP_HD uint32_t first_tile(uint32_t block) const { return block << block_log2; }
  UZIP_HD int tiles_in(uint32_t block) const {
    const uint64_t left = tiles - first_tile(block);
    const uint64_t most = uint64_t{1} << block_log2;
    return static_cast<int>(left < most ? left : most);
  }
};

// Sum over the codes below this thread's, by a whole block; `total` of all. `sums`: a word for each
// warp, in shared memory, which the block must not be using.
UZIP_DEVICE uint32_t sum_below(uint32_t mine, uint32_t sums[kWarps], uint32_t* total) {
  const int lane = thread_index() % kLanes;
  const int warp = thread_index() / kLanes;
  uint32_t sum = mine;
#pragma unroll
  for (int by = 1; by < kLanes; by *= 2) sum = add_from_below(sum, by, lane);
  if (lane == kLanes - 1) sums[warp] = sum;
  sync_block();
  uint32_t before = 0;
  *total = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    if (other < warp) before += sums[other];
    *total += sums[other];
  }
  sync_block();
  return before + sum - mine;
}

}  // namespace uzip::gpu
