// What the drivers of damaged frames share: memory without room behind, values, frames, damage.
#pragma once

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "codec.hpp"

namespace uzip::hostile {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

// Aligned to 16 bytes, as all that malloc() returns, and exactly as large as asked for, so that the
// sanitizer sees the first byte beyond.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(static_cast<uint8_t*>(std::malloc(bytes)), std::free) {}
  explicit Memory(const Bytes& bytes) : Memory(bytes.size()) {
    if (!bytes.empty()) std::memcpy(get(), bytes.data(), bytes.size());
  }
  uint8_t* get() const { return bytes_.get(); }

 private:
  std::unique_ptr<uint8_t, void (*)(void*)> bytes_;
};

inline void check(const char* failure) {
  if (failure != nullptr) throw std::runtime_error(failure);
}

// Values whose tiles are of every kind: few symbols, random bits, outliers; with `zeros` also
// zeros, constants and mixtures.
inline Bytes make_values(DType dtype, uint64_t count, bool zeros, Random& random) {
  const auto itemsize = static_cast<size_t>(float_format(dtype).itemsize);
  Bytes values(count * itemsize);
  for (uint64_t v = 0; v < count; ++v) {
    uint8_t* value = values.data() + v * itemsize;
    for (size_t i = 0; i < itemsize; ++i) value[i] = static_cast<uint8_t>(random());
    const uint64_t kind = v / 1024 * 2654435761u % 7;
    if (kind == 0) continue;
    value[itemsize - 1] = static_cast<uint8_t>(0x38 + (random() & random() & 7));
    if (kind == 1 && random() % 200 == 0) value[itemsize - 1] = static_cast<uint8_t>(random());
    if (!zeros) continue;
    if (kind == 2 && random() % 10 != 0) std::memset(value, 0, itemsize);
    if (kind == 3) std::memset(value, v / 1024 % 2 == 0 ? 0 : 7, itemsize);
    if (kind == 4 && random() % 3 == 0) std::memset(value, 0, itemsize);
  }
  return values;
}

inline Bytes cpu_frame(const Bytes& values, uint64_t count, DType dtype, Codec codec) {
  Bytes frame(bound(count, dtype));
  EncodeOptions options;
  options.codec = codec;
  frame.resize(encode(values.data(), count, dtype, frame.data(), options));
  return frame;
}

// Of a frame that a GPU wrote to memory.
inline Bytes frame_at(const uint8_t* memory) {
  uint64_t bytes;
  std::memcpy(&bytes, memory + offsetof(Header, frame_bytes), sizeof bytes);
  return Bytes(memory, memory + bytes);
}

// Whether the CPU takes a frame; if so, its values.
inline bool decodes(const Bytes& frame, uint64_t count, DType dtype, Bytes* values) {
  try {
    decode(frame.data(), frame.size(), dtype, count, values->data(), DecodeOptions{});
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Changes bytes of header, directory, tails or anything of a sound frame; at times cuts it.
inline void damage(Bytes* frame, Random& random) {
  uint64_t body_bytes;
  std::memcpy(&body_bytes, frame->data() + offsetof(Header, body_bytes), sizeof body_bytes);
  const size_t tails = frame->size() - static_cast<size_t>(body_bytes);
  const size_t ranges[4][2] = {{0, 64},
                               {tails > 600 ? tails - 600 : 64, tails},
                               {tails, frame->size()},
                               {64, frame->size()}};
  for (auto flips = 1 + random() % 3; flips > 0; --flips) {
    const auto& range = ranges[random() % 4];
    if (range[0] >= range[1]) continue;
    uint8_t& byte = (*frame)[range[0] + random() % (range[1] - range[0])];
    byte = random() % 2 == 0 ? static_cast<uint8_t>(byte ^ 1u << random() % 8)
                             : static_cast<uint8_t>(random());
  }
  if (random() % 20 == 0) frame->resize(64 + random() % (frame->size() - 63));
}

}  // namespace uzip::hostile
