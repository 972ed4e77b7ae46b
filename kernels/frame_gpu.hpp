// What surrounds the tiles of a frame, for kernels: sections, copies, and the shape of a grid.
#pragma once

#include "lanes_gpu.hpp"
#include "launch_gpu.hpp"

namespace uzip::gpu {

// A block has a warp for each tile of a group.
constexpr int kWarps = kGroupTiles;
constexpr int kThreads = kWarps * kLanes;

// Where the sections of a tier frame begin, in bytes from the start of the frame.
struct Sections {
  uint64_t tiles;
  uint64_t groups;
  uint64_t remainder;
  uint64_t remainder_bytes;
  uint64_t directory;
  uint64_t tails;

  UZIP_HD static Sections of(uint64_t count, int itemsize, int stride) {
    Sections s;
    s.tiles = count / kTileValues;
    s.groups = (s.tiles + kGroupTiles - 1) / kGroupTiles;
    s.remainder = kHeaderBytes + s.tiles * static_cast<uint64_t>(stride);
    s.remainder_bytes = count % kTileValues * static_cast<uint64_t>(itemsize);
    s.directory = s.remainder + align_up(s.remainder_bytes);
    s.tails = s.directory + align_up(4 * s.groups + 2 * s.tiles);
    return s;
  }
  UZIP_HD uint64_t group_entry(uint64_t group) const { return directory + 4 * group; }
  UZIP_HD uint64_t tile_entry(uint64_t tile) const { return directory + 4 * groups + 2 * tile; }
};

UZIP_HD bool is_aligned(const void* pointer, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Copies with all threads of a group of them; `index` is the thread's place in it.
UZIP_DEVICE void copy_bytes(uint8_t* to, const uint8_t* from, uint64_t bytes, uint64_t index,
                            uint64_t threads) {
  uint64_t copied = 0;
  if (is_aligned(to, 16) && is_aligned(from, 16)) {
    const uint64_t chunks = bytes / 16;
#pragma unroll 4
    for (uint64_t i = index; i < chunks; i += threads) {
      reinterpret_cast<Chunk*>(to)[i] = reinterpret_cast<const Chunk*>(from)[i];
    }
    copied = chunks * 16;
  } else if (is_aligned(to, 2) && is_aligned(from, 2)) {
    const uint64_t words = bytes / 2;
#pragma unroll 4
    for (uint64_t i = index; i < words; i += threads) {
      reinterpret_cast<uint16_t*>(to)[i] = reinterpret_cast<const uint16_t*>(from)[i];
    }
    copied = words * 2;
  }
  for (uint64_t i = copied + index; i < bytes; i += threads) to[i] = from[i];
}

UZIP_DEVICE void zero_bytes(uint8_t* begin, const uint8_t* end, uint64_t index, uint64_t threads) {
  for (uint64_t i = index; begin + i < end; i += threads) begin[i] = 0;
}

// Copies a warp's bytes from shared memory, where they begin a word, to any place of which only
// they may change.
UZIP_DEVICE void store_tail(uint8_t* to, const uint32_t* from, int bytes, int lane) {
  const int before = static_cast<int>(-reinterpret_cast<uintptr_t>(to) & 3);
  const int lead = before < bytes ? before : bytes;
  const int words = static_cast<int>(static_cast<uint32_t>(bytes - lead) / 4);
  auto* aligned = reinterpret_cast<uint32_t*>(to + lead);
#pragma unroll 1  // mostly one round
  for (int i = lane; i < words; i += kLanes) {
    aligned[static_cast<uint32_t>(i)] = funnel_right(from[i], from[i + 1], 8 * lead);
  }
  // At most 3 bytes on each side: the lead for lanes 0..3, the end for lanes 4..7.
  if (lane >= 8) return;
  const int byte = lane < 4 ? lane : lead + 4 * words + lane - 4;
  if (byte < (lane < 4 ? lead : bytes)) {
    to[static_cast<uint32_t>(byte)] = reinterpret_cast<const uint8_t*>(from)[byte];
  }
}

// The number of blocks for a grid that takes turns on `groups` groups.
template <typename Kernel>
int grid_blocks(Kernel kernel, size_t shared_bytes, uint64_t groups, int max_blocks) {
  uint64_t blocks = static_cast<uint64_t>(resident_blocks(kernel, kThreads, shared_bytes));
  if (max_blocks > 0 && blocks > static_cast<uint64_t>(max_blocks)) {
    blocks = static_cast<uint64_t>(max_blocks);
  }
  if (blocks > groups) blocks = groups;
  return blocks > 0 ? static_cast<int>(blocks) : 1;
}

}  // namespace uzip::gpu
