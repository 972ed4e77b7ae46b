// Values to frames and back: every SIMD path, any number of threads and the encoder in steps write
// the same frame, no byte outside of it, and it decodes to the values. The input is a recipe for
// the values, so that few bytes make many tiles.
#include <vector>

#include "codec.hpp"
#include "guarded.hpp"
#include "simd.hpp"
#include "tier.hpp"

namespace uzip::fuzz {
namespace {

constexpr int kTiles[] = {0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 16, 20};
constexpr int kMaxTiles = 20;  // more than two groups, and than one block of 16
constexpr size_t kMaxValueBytes = 8 * kTileValues * (kMaxTiles + 1);

struct Recipe {
  uint8_t dtype;
  uint8_t codec;       // 3: auto
  uint8_t flags;       // bit 0: checksum
  uint8_t step;        // groups that the encoder in steps codes at a time
  uint8_t tiles;       // index in kTiles
  uint8_t zeros;       // of 256 values so many are zero bits
  uint16_t remainder;  // values behind the last whole tile
  uint8_t noise[8];    // the bits of each byte of a value that are random; the others repeat the
                       // bytes that follow
};

class Noise {
 public:
  uint8_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint8_t>(state_ >> 56);
  }

 private:
  uint64_t state_ = 1;
};

std::vector<uint8_t> make_values(const Recipe& recipe, size_t itemsize, uint64_t count,
                                 const uint8_t* pattern, size_t n_pattern) {
  std::vector<uint8_t> values(count * itemsize);
  Noise noise;
  size_t at = 0;
  for (uint64_t value = 0; value < count; ++value) {
    const bool zero = noise.next() < recipe.zeros;
    for (size_t i = 0; i < itemsize; ++i) {
      const uint8_t repeated = n_pattern == 0 ? 0 : pattern[at++ % n_pattern];
      const uint8_t random = noise.next() & recipe.noise[i];
      values[value * itemsize + i] = zero ? 0 : static_cast<uint8_t>(repeated ^ random);
    }
  }
  return values;
}

// Codes in steps; what is called final on the way must be what the frame has there in the end.
size_t encode_in_steps(const uint8_t* values, uint64_t count, DType dtype, uint8_t* out,
                       const EncodeOptions& options, uint64_t step) {
  Encoder encoder(values, count, dtype, out, options);
  std::vector<uint8_t> final_part;
  const uint64_t fixed_stop = encoder.fixed_stop();
  for (uint64_t groups = 0; groups <= kMaxTiles / kGroupTiles; groups += step) {
    const uint64_t stop = encoder.advance(step);
    check(kHeaderBytes <= stop && stop <= fixed_stop, "what is final to end in the fixed part");
    check(encoder.fell_back() || stop >= kHeaderBytes + final_part.size(), "what is final to grow");
    final_part.assign(out + kHeaderBytes, out + stop);
  }
  const size_t frame_bytes = encoder.finish();
  check(encoder.fell_back() || fixed_stop <= frame_bytes, "a fixed part inside of the frame");
  check(encoder.fell_back() || final_part.empty() ||
            std::memcmp(final_part.data(), out + kHeaderBytes, final_part.size()) == 0,
        "what was final to stay");
  return frame_bytes;
}

void expect_damage_found(std::vector<uint8_t> frame, const Header& header, size_t bit) {
  frame[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  std::vector<uint8_t> values(bound(header.count, static_cast<DType>(header.dtype)));
  try {
    decode(frame.data(), frame.size(), static_cast<DType>(header.dtype), header.count,
           values.data(), {true, 1});
  } catch (const FormatError&) {
    return;
  }
  check(false, "a flipped bit to be found");
}

void expect_frame(const std::vector<uint8_t>& expected, const uint8_t* frame, size_t frame_bytes) {
  check(frame_bytes == expected.size() && std::memcmp(frame, expected.data(), frame_bytes) == 0,
        "the same frame however it is made");
}

void expect_values(const std::vector<uint8_t>& frame, DType dtype, uint64_t count,
                   const std::vector<uint8_t>& values, bool verify) {
  static Guarded input(kHeaderBytes + kMaxValueBytes);
  static Guarded output(kMaxValueBytes);
  uint8_t* decoded = output.take(values.size(), 0xA5);
  decode(input.copy(frame.data(), frame.size()), frame.size(), dtype, count, decoded, {verify, 1});
  check(values.empty() || std::memcmp(decoded, values.data(), values.size()) == 0,
        "the values back");
}

void round_trip(const Recipe& recipe, const uint8_t* pattern, size_t n_pattern) {
  static Guarded source(kMaxValueBytes);
  static Guarded destination(kHeaderBytes + kMaxValueBytes);
  const auto dtype = static_cast<DType>(recipe.dtype % kDTypes);
  const uint64_t count = static_cast<uint64_t>(kTiles[recipe.tiles % 16] * kTileValues) +
                         recipe.remainder % kTileValues;
  const size_t itemsize = float_format(dtype).itemsize;
  const std::vector<uint8_t> values = make_values(recipe, itemsize, count, pattern, n_pattern);
  const uint8_t* from = source.copy(values.data(), values.size());
  const size_t room = bound(count, dtype);
  EncodeOptions options;
  if (recipe.codec % 4 != 3) options.codec = static_cast<Codec>(recipe.codec % 4);
  options.checksum = (recipe.flags & 1) != 0;

  std::vector<uint8_t> frame;
  for (const std::string& path : simd_paths()) {
    force_simd(path);
    uint8_t* out = destination.take(room, 0x5A);
    const size_t frame_bytes = encode(from, count, dtype, out, options);
    check(frame_bytes <= room, "a frame within its bound");
    if (frame.empty()) frame.assign(out, out + frame_bytes);
    expect_frame(frame, out, frame_bytes);
    out = destination.take(room, 0xA5);
    expect_frame(frame, out,
                 encode_in_steps(from, count, dtype, out, options, 1 + recipe.step % 4));
    expect_values(frame, dtype, count, values, options.checksum);
  }
  const double ratio = predict(from, count, dtype);
  check(0 <= ratio && ratio <= 1, "a predicted ratio of 0 to 1");
  if (options.checksum) {
    const size_t bit = (size_t{recipe.remainder} * 7919 + recipe.step) % (8 * frame.size());
    expect_damage_found(frame, read_header(frame.data(), frame.size()), bit);
  }
}

}  // namespace
}  // namespace uzip::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t n) {
  using namespace uzip::fuzz;
  if (n < sizeof(Recipe)) return 0;
  round_trip(uzip::load<Recipe>(bytes), bytes + sizeof(Recipe), n - sizeof(Recipe));
  return 0;
}
