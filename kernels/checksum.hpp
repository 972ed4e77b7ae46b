// The checksum of a frame (FORMAT.md): a sum of words, each times an odd factor of its place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uzip {

// The checksum of a whole frame, whatever its checksum field holds.
uint64_t frame_checksum(const uint8_t* frame, size_t frame_bytes);

}  // namespace uzip
