#include "checksum.hpp"

#include "format.hpp"
#include "tier.hpp"

namespace uzip {
namespace {

constexpr uint64_t kFirstFactor = 0x9E3779B97F4A7C15;
constexpr uint64_t kFactorStep = 0xD1B54A32D192ED04;

uint64_t factor(size_t word) { return kFirstFactor + word * kFactorStep; }

}  // namespace

uint64_t frame_checksum(const uint8_t* frame, size_t frame_bytes) {
  const size_t words = frame_bytes / 8;
  uint64_t sum = 0;
  uint64_t weight = factor(0);
  for (size_t i = 0; i < words; ++i) {
    sum += load<uint64_t>(frame + 8 * i) * weight;
    weight += kFactorStep;
  }
  if (const size_t rest = frame_bytes % 8; rest != 0) {
    uint64_t last = 0;
    std::memcpy(&last, frame + 8 * words, rest);
    sum += last * weight;
  }
  constexpr size_t kField = offsetof(Header, checksum);
  return sum - load<uint64_t>(frame + kField) * factor(kField / 8);
}

}  // namespace uzip
