// The decoders on any bytes: all SIMD paths reject a frame, or all decode it to the same values,
// and touch nothing else. The input is the frame; mutate_frame.cpp makes new ones from old.
#include <optional>
#include <vector>

#include "checksum.hpp"
#include "codec.hpp"
#include "frame_fuzz.hpp"
#include "guarded.hpp"
#include "simd.hpp"

namespace uzip::fuzz {
namespace {

// Decodes into memory that was filled with `byte`. Null: rejected.
const uint8_t* decode_over(int byte, const uint8_t* frame, size_t n, const Header& header) {
  static Guarded output(kMaxValueBytes);
  const auto dtype = static_cast<DType>(header.dtype);
  uint8_t* values = output.take(header.count * float_format(dtype).itemsize, byte);
  try {
    decode(frame, n, dtype, header.count, values, {(header.flags & kFlagChecksum) != 0, 1});
  } catch (const FormatError&) {
    return nullptr;
  }
  return values;
}

void expect_rejected(const uint8_t* frame, size_t n, DType dtype, uint64_t count) {
  try {
    decode(frame, n, dtype, count, nullptr, {});
  } catch (const FormatError&) {
    return;
  }
  check(false, "a frame of other values to be rejected");
}

void decode_by_all_paths(const uint8_t* bytes, size_t n, const Header& header) {
  static Guarded input(kMaxFrameBytes);
  static const std::vector<std::string> paths = simd_paths();
  const uint8_t* frame = input.copy(bytes, n);
  const size_t value_bytes = header.count * float_format(static_cast<DType>(header.dtype)).itemsize;
  std::optional<std::vector<uint8_t>> expected;
  int fill = 0x5A;
  for (const std::string& path : paths) {
    force_simd(path);
    const uint8_t* values = decode_over(fill, frame, n, header);
    if (path == paths.front()) {
      if (values != nullptr) expected.emplace(values, values + value_bytes);
    } else {
      check((values != nullptr) == expected.has_value(), "SIMD paths to accept the same frames");
      check(
          !expected || value_bytes == 0 || std::memcmp(values, expected->data(), value_bytes) == 0,
          "SIMD paths to decode the same values");
    }
    fill ^= 0xFF;  // so that values which a decoder does not write differ
  }
}

}  // namespace
}  // namespace uzip::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n) {
  using namespace uzip;
  Header header;
  try {
    header = read_header(bytes, n);
  } catch (const FormatError&) {
    return 0;
  }
  const auto dtype = static_cast<DType>(header.dtype);
  fuzz::expect_rejected(bytes, n, dtype, header.count + 1);
  if (n > fuzz::kMaxFrameBytes ||
      header.count > fuzz::kMaxValueBytes / float_format(dtype).itemsize) {
    return 0;
  }
  fuzz::decode_by_all_paths(bytes, n, header);
  return 0;
}
