// Values that are not zero bits: the masks of masked tiles, for processors with BMI2. Include it
// inside of a target region that has it. Zeros are taken out of, and put back into, words of 64
// bits by pext and pdep.
#include "tier.hpp"

namespace uzip {
namespace {

// Values of type Word in a 64-bit word.
template <typename Word>
struct Packed {
  static constexpr int kBits = 8 * sizeof(Word);
  static constexpr int kValues = 64 / kBits;
  static constexpr uint64_t kField = ~uint64_t{0} >> (64 - kBits);
  static constexpr uint64_t kLowest = ~uint64_t{0} / kField;  // the lowest bit of each value
  static constexpr uint64_t kBelowTop = ~(kLowest << (kBits - 1));

  // The lowest bit of each value that is not 0.
  static uint64_t nonzero(uint64_t word) {
    return (((word & kBelowTop) + kBelowTop) | word) >> (kBits - 1) & kLowest;
  }
};

template <typename Word>
int compact(const uint8_t* values, uint8_t* mask, uint8_t* nonzeros) {
  using P = Packed<Word>;
  uint8_t* end = nonzeros;
  for (int p = 0; p < kTileValues; p += 8) {
    const uint8_t* run = values + value_of_position(p) * sizeof(Word);
    uint64_t bits = 0;
    for (int k = 0; k < 8; k += P::kValues) {
      const auto word = load<uint64_t>(run + k * sizeof(Word));
      const uint64_t set = P::nonzero(word);
      store(end, _pext_u64(word, set * P::kField));
      bits |= _pext_u64(set, P::kLowest) << k;
      end += static_cast<size_t>(_mm_popcnt_u64(set)) * sizeof(Word);
    }
    mask[p / 8] = static_cast<uint8_t>(bits);
  }
  return static_cast<int>((end - nonzeros) / static_cast<ptrdiff_t>(sizeof(Word)));
}

template <typename Word>
void expand(const uint8_t* nonzeros, const uint8_t* mask, uint8_t* values) {
  using P = Packed<Word>;
  for (int p = 0; p < kTileValues; p += 8) {
    uint8_t* run = values + value_of_position(p) * sizeof(Word);
    const uint64_t bits = mask[p / 8];
    for (int k = 0; k < 8; k += P::kValues) {
      const uint64_t set = _pdep_u64(bits >> k, P::kLowest);
      store(run + k * sizeof(Word), _pdep_u64(load<uint64_t>(nonzeros), set * P::kField));
      nonzeros += static_cast<size_t>(_mm_popcnt_u64(set)) * sizeof(Word);
    }
  }
}

}  // namespace
}  // namespace uzip
