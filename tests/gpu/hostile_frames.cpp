// Damaged frames on the emulated GPU, to be compiled with sanitizers: no access out of bounds, no
// hang, and the same verdict as the CPU's decoder.
//
// Frames, values and status lie in memory of their own, exactly as large as they are, so that the
// sanitizer sees the first byte beyond. Usage: hostile_frames [rounds [seed]]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "codec.hpp"
#include "codec_gpu.hpp"

namespace {

using uzip::Codec;
using uzip::DType;
using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

// Aligned to 16 bytes, as all that malloc() returns, and without room behind.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(static_cast<uint8_t*>(std::malloc(bytes))) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(bytes_); }
  uint8_t* get() { return bytes_; }

 private:
  uint8_t* bytes_;
};

// Values whose tiles are of every kind: few symbols, zeros, constants, random bits, outliers.
Bytes make_values(DType dtype, uint64_t count, Random& random) {
  const int itemsize = uzip::float_format(dtype).itemsize;
  Bytes values(count * static_cast<uint64_t>(itemsize));
  for (uint64_t v = 0; v < count; ++v) {
    uint8_t* value = values.data() + v * static_cast<uint64_t>(itemsize);
    const uint64_t kind = v / 1024 * 2654435761u % 7;
    for (int i = 0; i < itemsize; ++i) value[i] = static_cast<uint8_t>(random());
    if (kind == 0) continue;
    value[itemsize - 1] = static_cast<uint8_t>(0x38 + (random() & random() & 7));
    if (kind == 1 && random() % 200 == 0) value[itemsize - 1] = static_cast<uint8_t>(random());
    if (kind == 2 && random() % 10 != 0) std::memset(value, 0, static_cast<size_t>(itemsize));
    if (kind == 3) std::memset(value, v / 1024 % 2 == 0 ? 0 : 7, static_cast<size_t>(itemsize));
    if (kind == 4 && random() % 3 == 0) std::memset(value, 0, static_cast<size_t>(itemsize));
  }
  return values;
}

Bytes cpu_frame(const Bytes& values, uint64_t count, DType dtype, Codec codec) {
  Bytes frame(uzip::bound(count, dtype));
  uzip::EncodeOptions options;
  options.codec = codec;
  frame.resize(uzip::encode(values.data(), count, dtype, frame.data(), options));
  return frame;
}

Bytes gpu_frame(const Bytes& values, uint64_t count, DType dtype, bool ans) {
  Memory source(values.size());
  std::memcpy(source.get(), values.data(), values.size());
  const size_t bound = uzip::bound(count, dtype);
  Memory frame((bound + 15) / 16 * 16);
  alignas(16) uzip::gpu::EncodeScratch scratch{};
  uzip::gpu::EncodeOptions options;
  options.ans = ans;
  options.always = true;
  const char* failure =
      uzip::gpu::encode(source.get(), count, dtype, frame.get(), &scratch, options, nullptr);
  if (failure != nullptr) throw std::runtime_error(failure);
  uint64_t bytes;
  std::memcpy(&bytes, frame.get() + 16, sizeof bytes);
  return Bytes(frame.get(), frame.get() + bytes);
}

void damage(Bytes* frame, uint64_t body_bytes, Random& random) {
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

// Whether both decoders think the same of a frame, and of its values.
bool agree(const Bytes& bytes, DType dtype, uint64_t count, uint64_t* reported) {
  const size_t size = count * uzip::float_format(dtype).itemsize;
  Bytes theirs(size);
  bool sound = true;
  try {
    uzip::decode(bytes.data(), bytes.size(), dtype, count, theirs.data(), uzip::DecodeOptions{});
  } catch (const std::exception&) {
    sound = false;
  }
  Memory frame(bytes.size());
  std::memcpy(frame.get(), bytes.data(), bytes.size());
  Memory values(size);
  std::vector<uint32_t> status(1);
  const char* failure = uzip::gpu::decode(frame.get(), bytes.size(), dtype, count, values.get(),
                                          status.data(), uzip::gpu::DecodeOptions{}, nullptr);
  if (failure != nullptr) throw std::runtime_error(failure);
  *reported += status[0] != 0 ? 1 : 0;
  if (sound != (status[0] == 0)) return false;
  return !sound || std::memcmp(values.get(), theirs.data(), size) == 0;
}

}  // namespace

int main(int n_arguments, char** arguments) {
  const int rounds = n_arguments > 1 ? std::atoi(arguments[1]) : 20;
  Random random(n_arguments > 2 ? static_cast<uint64_t>(std::atoll(arguments[2])) : 1);
  uint64_t frames = 0;
  uint64_t reported = 0;
  for (int code = 1; code < uzip::kDTypes; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (const uint64_t count : {uint64_t{9 * 1024 + 5}, uint64_t{40 * 1024}}) {
      const Bytes values = make_values(dtype, count, random);
      const Bytes sound[] = {cpu_frame(values, count, dtype, Codec::kTier),
                             cpu_frame(values, count, dtype, Codec::kAns),
                             gpu_frame(values, count, dtype, false),
                             gpu_frame(values, count, dtype, true)};
      for (const Bytes& frame : sound) {
        uint64_t body_bytes;
        std::memcpy(&body_bytes, frame.data() + 48, sizeof body_bytes);
        for (int round = 0; round <= rounds; ++round, ++frames) {
          Bytes bytes = frame;
          if (round > 0) damage(&bytes, body_bytes, random);
          if (agree(bytes, dtype, count, &reported)) continue;
          std::printf("dtype %d, %zu bytes, frame %llu: decoders disagree\n", code, bytes.size(),
                      static_cast<unsigned long long>(frames));
          return 1;
        }
      }
    }
  }
  std::printf("%llu frames, %llu reported\n", static_cast<unsigned long long>(frames),
              static_cast<unsigned long long>(reported));
  return reported > frames / 4 ? 0 : 1;
}
