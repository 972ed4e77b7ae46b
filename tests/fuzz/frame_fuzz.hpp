// Frames as a fuzzer handles them: taken apart, changed, and made consistent again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "format.hpp"

namespace uzip::fuzz {

constexpr size_t kMaxFrameBytes = 1 << 16;
constexpr size_t kMaxValueBytes = 1 << 18;

using Frame = std::vector<uint8_t>;
using Random = std::minstd_rand;

inline size_t below(Random& random, size_t n) { return random() % n; }

// Where the sections of a frame begin; a section that the frame does not have is empty.
struct Sections {
  uint64_t remainder, table, directory, tails;
  uint64_t units;  // entries of 4 bytes in the directory
  uint64_t tiles;  // entries of 2 bytes behind them; 0 but for tier
  uint64_t stride;

  static Sections of(const Header& header);
};

// The header of a frame with every field moved into its range, and a count that neither the values
// nor the sections before the tails are too large for. What depends on the size of the frame is
// left for mend_sizes().
Header mend_header(const uint8_t* frame);

// Makes a frame as large as its header wants it, and its sizes and checksum true.
void mend_sizes(const Header& header, Frame* frame);

// Gives each tile of a tier frame the size that its digits ask for, and moves the tails
// accordingly. Other frames stay as they are.
void mend_tiles(Frame* frame);

}  // namespace uzip::fuzz
