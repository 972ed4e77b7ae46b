// The face of the GPU codec: device pointers, sizes and a stream. Nothing here allocates or waits
// for the device. A stream is the vendor's handle as a plain pointer, so that whoever calls this
// needs none of the vendor's headers.
#pragma once

#include "format.hpp"

namespace uzip::gpu {

// Log2 of the tiles in a block of codec ans.
constexpr int kMinBlockLog2 = 2;
constexpr int kMaxBlockLog2 = 5;

// What a decoder found. The word is the largest that any tile found; the caller zeroes it before.
enum class FrameStatus : uint32_t {
  kOk = 0,
  kTile = 1,      // the size, kind or place of a tile or block is wrong
  kSections = 2,  // sizes that do not add up
  kMismatch = 3,  // a frame of another data type, count or size than expected
  kHeader = 4,    // not a header of version 1
  kTable = 5,     // frequencies that are none
  kCodec = 6,     // a codec or layout that the kernel does not take
};

// Scratch of an encoder. All zero before its first use; every call leaves it so. One call at a time
// may use it.
struct EncodeScratch {
  uint64_t claims;    // groups << 32, and the units of 16 bytes that they have asked for
  uint32_t arrivals;  // blocks that are done; with the last, 0 again
  uint32_t helpers;   // blocks that write the frame again
  uint32_t pieces;    // of it, handed out so far
  uint32_t reserved[3];
};

struct EncodeOptions {
  int menu = -1;        // as in a header; -1: the best for a sample of the values
  bool raw = false;     // a raw frame whatever the values
  bool ans = false;     // codec ans instead of tier
  bool always = false;  // a coded frame also where little, but something, is expected from it
  int max_blocks = 0;   // of the grid; 0: as many as the device holds
};

struct DecodeOptions {
  int max_blocks = 0;
};

// Writes a frame of `count` values to `frame`: bound(count, dtype) bytes, aligned to 16 as scratch
// is. Values are aligned to their own size at least. The header, which says the size, may be
// there before the rest. Returns nullptr, or why nothing was launched.
const char* encode(const void* values, uint64_t count, DType dtype, void* frame,
                   EncodeScratch* scratch, const EncodeOptions& options, void* stream);

// With the room that a frame has: in place of its size, which only the device knows.
constexpr uint64_t kAtMost = uint64_t{1} << 63;

// Writes the values of the frame of `frame_bytes` bytes, or kAtMost, aligned to 16, and the status.
// The values are unspecified where it is not kOk.
const char* decode(const void* frame, uint64_t frame_bytes, DType dtype, uint64_t count,
                   void* values, uint32_t* status, const DecodeOptions& options, void* stream);

}  // namespace uzip::gpu
