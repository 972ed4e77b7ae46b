// The header reader on any bytes: it rejects, or what it returns adds up.
#include "codec.hpp"
#include "guarded.hpp"

using namespace uzip;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n) {
  static fuzz::Guarded memory(1 << 16);
  if (n > 1 << 16) return 0;
  Header header;
  try {
    header = read_header(memory.copy(bytes, n), n);
  } catch (const FormatError&) {
    return 0;
  }
  const auto dtype = static_cast<DType>(header.dtype);
  fuzz::check(n >= kHeaderBytes, "no header in less than 64 bytes");
  fuzz::check(header.dtype < kDTypes && header.codec <= static_cast<uint8_t>(Codec::kAns),
              "a dtype and a codec that exist");
  fuzz::check(header.count <= static_cast<uint64_t>(INT64_MAX) / float_format(dtype).itemsize,
              "a count whose bytes can be counted");
  fuzz::check(header.frame_bytes >= kHeaderBytes && header.body_bytes < header.frame_bytes,
              "sizes that add up");
  fuzz::check(header.codec != static_cast<uint8_t>(Codec::kRaw) ||
                  header.frame_bytes == bound(header.count, dtype),
              "a raw frame of the size of its values");
  return 0;
}
