// The codec and its threads, as several callers use it at once, for the thread sanitizer
// (make tsan). Any number of threads must make the same frames, whoever else is at work, and a
// frame that several threads reject must be rejected once.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "codec.hpp"
#include "reduce.hpp"
#include "simd.hpp"

namespace uzip {
namespace {

using Bytes = std::vector<uint8_t>;

// Codec threads have at least 16 groups of 8 tiles each: four of them are at work, the last on less
// than the others.
constexpr uint64_t kCount = 4 * 16 * kGroupTiles * kTileValues + 5000;
constexpr int kThreads[] = {2, 3, 4};
constexpr int kCallers = 4;

std::atomic<uint64_t> frames_made{0};

void check(bool holds, const char* expected) {
  if (holds) return;
  std::fprintf(stderr, "expected %s\n", expected);
  std::abort();
}

enum class Pattern { kNormal, kMostlyZero, kHalfRandom };

// Values whose highest byte varies little; for kHalfRandom only in the first half, so that the
// threads that code the second half do not get along with their share of the room.
Bytes make_values(DType dtype, Pattern pattern) {
  const size_t itemsize = float_format(dtype).itemsize;
  Bytes values(kCount * itemsize);
  std::minstd_rand random(7);
  for (uint64_t value = 0; value < kCount; ++value) {
    if (pattern == Pattern::kMostlyZero && random() % 16 != 0) continue;
    uint8_t* bytes = values.data() + value * itemsize;
    for (size_t i = 0; i < itemsize; ++i) bytes[i] = static_cast<uint8_t>(random() >> 8);
    if (pattern == Pattern::kHalfRandom && value > kCount / 2) continue;
    const auto few = static_cast<uint8_t>(random() % 8 & random() % 8);
    bytes[itemsize - 1] = static_cast<uint8_t>(0x38 + few);
  }
  return values;
}

Bytes encoded(const Bytes& values, DType dtype, Codec codec, int threads) {
  Bytes frame(bound(kCount, dtype));
  EncodeOptions options;
  options.codec = codec;
  options.checksum = true;
  options.threads = threads;
  frame.resize(encode(values.data(), kCount, dtype, frame.data(), options));
  ++frames_made;
  return frame;
}

Bytes encoded_in_steps(const Bytes& values, DType dtype, Codec codec) {
  Bytes frame(bound(kCount, dtype));
  EncodeOptions options;
  options.codec = codec;
  options.checksum = true;
  Encoder encoder(values.data(), kCount, dtype, frame.data(), options);
  for (int step = 0; step < 10; ++step) encoder.advance(8);
  frame.resize(encoder.finish());
  ++frames_made;
  return frame;
}

Bytes decoded(const Bytes& frame, DType dtype, int threads) {
  Bytes values(kCount * float_format(dtype).itemsize);
  decode(frame.data(), frame.size(), dtype, kCount, values.data(), {true, threads});
  return values;
}

// All parts of the frame are damaged, so every thread has something to throw.
void expect_rejected(Bytes frame, DType dtype, int threads) {
  const Header header = read_header(frame.data(), frame.size());
  if (header.codec == static_cast<uint8_t>(Codec::kRaw)) return;
  const size_t body = frame.size() - header.body_bytes;
  std::memset(frame.data() + body / 2, 0xFF, body / 2);
  Bytes values(kCount * float_format(dtype).itemsize);
  try {
    decode(frame.data(), frame.size(), dtype, kCount, values.data(), {false, threads});
  } catch (const FormatError&) {
    return;
  }
  check(false, "a damaged frame to be rejected");
}

void use(const Bytes& values, DType dtype, Codec codec, const Bytes& expected) {
  for (const int threads : kThreads) {
    check(encoded(values, dtype, codec, threads) == expected, "the same frame by more threads");
    check(decoded(expected, dtype, threads) == values, "the values back by more threads");
    expect_rejected(expected, dtype, threads);
  }
  check(encoded_in_steps(values, dtype, codec) == expected, "the same frame in steps");
  predict(values.data(), kCount, dtype);
  if (dtype == DType::kBytes) return;
  const void* inputs[] = {values.data(), values.data()};
  Bytes sum(values.size());
  fold(ReduceOp::kSum, dtype, inputs, 2, sum.data(), kCount, 1);
}

// Several callers work on the same tensor and the same frame.
void callers_share(DType dtype, Codec codec, Pattern pattern) {
  const Bytes values = make_values(dtype, pattern);
  const Bytes expected = encoded(values, dtype, codec, 1);
  check(decoded(expected, dtype, 1) == values, "the values back");
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] { use(values, dtype, codec, expected); });
  }
  // A path may be forced at any time: all of them give the same bytes.
  for (const std::string& path : simd_paths()) force_simd(path);
  for (std::thread& caller : callers) caller.join();
}

// The first use of the library, from several threads at once.
void first_use() {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) callers.emplace_back([] { simd_path(); });
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace uzip

int main() {
  using namespace uzip;
  first_use();
  for (const Codec codec : {Codec::kTier, Codec::kAns}) {
    callers_share(DType::kBFloat16, codec, Pattern::kNormal);
    callers_share(DType::kFloat8E4M3FN, codec, Pattern::kMostlyZero);
    callers_share(DType::kFloat32, codec, Pattern::kHalfRandom);
  }
  callers_share(DType::kFloat64, Codec::kTier, Pattern::kNormal);
  callers_share(DType::kBytes, Codec::kRaw, Pattern::kNormal);
  std::printf("%llu frames by %d callers at once, each with up to 4 threads: no race\n",
              static_cast<unsigned long long>(frames_made.load()), kCallers);
  return 0;
}
