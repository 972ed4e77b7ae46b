// The face of the codec: plain pointers and sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "errors.hpp"
#include "format.hpp"

namespace uzip {

struct EncodeOptions {
  std::optional<Codec> codec;  // empty: the best for the data type and a sample of the values
  bool checksum = false;
  int threads = 1;
};

struct DecodeOptions {
  bool verify = false;  // require a checksum, and that it is right
  int threads = 1;
};

// Writes a frame of `count` values to `out`, of which bound(count, dtype) bytes must be writable
// and not overlap the values. Returns its size. The bytes do not depend on the threads.
size_t encode(const uint8_t* values, uint64_t count, DType dtype, uint8_t* out,
              const EncodeOptions& options);

// Writes the values of a frame that must have this dtype and count. Throws FormatError; then what
// is in `values` is unspecified.
void decode(const uint8_t* frame, size_t frame_bytes, DType dtype, uint64_t count, uint8_t* values,
            const DecodeOptions& options);

// Codes a tensor in steps, so that the frame's fixed part can be sent while the rest is being
// coded. One thread.
class Encoder {
 public:
  // As encode(); `values` and `out` must outlive the encoder.
  Encoder(const uint8_t* values, uint64_t count, DType dtype, uint8_t* out,
          const EncodeOptions& options);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Bytes of the frame before its directory: header, heads, remainder.
  uint64_t fixed_stop() const { return fixed_stop_; }

  // Codes up to n more groups (8192 values each). Returns the end of the part of the frame which is
  // final; it begins behind the header.
  uint64_t advance(uint64_t n_groups);

  // Codes the remaining groups and writes the header. Returns the bytes of the frame; all are
  // final.
  size_t finish();

  // Whether the frame became a raw one on the way, as it would not have been smaller. What
  // advance() called final is void then.
  bool fell_back() const { return fell_back_; }

 private:
  uint64_t advance_raw(uint64_t n_groups);

  const uint8_t* values_;
  uint64_t count_;
  DType dtype_;
  uint8_t* out_;
  EncodeOptions options_;
  std::unique_ptr<class FrameEncoder> coded_;  // none: a raw frame
  uint64_t fixed_stop_;
  uint64_t values_done_ = 0;  // raw only
  bool fell_back_ = false;
};

// The header of a frame of which at least 64 bytes are given. Throws FormatError for what the
// header alone shows.
Header read_header(const uint8_t* frame, size_t bytes);

// Ratio expected from a sample of the values.
double predict(const uint8_t* values, uint64_t count, DType dtype);

}  // namespace uzip
