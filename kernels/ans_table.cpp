// The table of an ans frame, from a sample of its codes.
#include <algorithm>
#include <cmath>

#include "ans_frame.hpp"

namespace uzip {
namespace ans {

void normalise(const uint32_t* counts, uint16_t* frequencies) {
  uint64_t sum = 0;  // of the counts that are worth more than 1, and what is left for them
  for (int code = 0; code < kCodes; ++code) sum += counts[code];
  uint64_t left = kTableSum;
  bool given[kCodes] = {};
  // Giving 1 to a rare code leaves less to the others, which may make further codes rare; three
  // rounds settle it.
  for (int round = 0; round < 3; ++round) {
    const uint64_t sum_before = sum, left_before = left;
    for (int code = 0; code < kCodes; ++code) {
      if (given[code] || counts[code] * left_before > sum_before) continue;
      given[code] = true;
      sum -= counts[code];
      --left;
    }
  }
  int32_t surplus = -static_cast<int32_t>(kTableSum);
  for (int code = 0; code < kCodes; ++code) {
    const uint64_t scaled = given[code] ? 1 : (counts[code] * left + sum / 2) / sum;
    frequencies[code] = static_cast<uint16_t>(std::max<uint64_t>(scaled, 1));
    surplus += frequencies[code];
  }
  // Rounding leaves a few too many or too few; the commonest codes notice it least.
  while (surplus != 0) {
    uint16_t* largest = std::max_element(frequencies, frequencies + kCodes);
    const int32_t change = std::clamp<int32_t>(surplus, -64, *largest / 8 + 1);
    *largest = static_cast<uint16_t>(*largest - change);
    surplus -= change;
  }
}

}  // namespace ans

namespace {

// The sample: runs of values at places that depend on the count only.
constexpr uint64_t kRunValues = 32;  // a cache line of 2-byte values
constexpr uint64_t kMinRuns = 64;
constexpr uint64_t kMaxRuns = 256;  // 13 us; four times as many save 0.02% of the bytes
constexpr uint64_t kValuesPerSampled = 16;
// Pairs are nearly independent, so a small sample of them is worth less than the product of the
// digits' own frequencies, which counts as this many pairs.
constexpr double kPriorPairs = 1024;
constexpr int kEscape = kWindow - 1;

struct CodeCounts {
  uint32_t of[ans::kCodes] = {};
  uint64_t codes = 0;
};

template <typename Visit>
void for_each_run(uint64_t count, Visit visit) {
  const uint64_t places = count / kRunValues;
  const uint64_t runs =
      std::min(places, std::clamp(places / kValuesPerSampled, kMinRuns, kMaxRuns));
  for (uint64_t run = 0; run < runs; ++run) {
    const uint64_t step = places / runs;
    // Jitter, or a step that is a multiple of a row would only ever see the same columns.
    visit((run * step + run * 0x9E3779B1u % step) * kRunValues);
  }
}

template <DType kDType>
CodeCounts count_pairs(const uint8_t* values, uint64_t count, int base) {
  using V = Value<kDType>;
  using Word = typename V::Word;
  const auto digit = [&](const uint8_t* from) {
    return std::min((V::symbol(load<Word>(from)) - base) & (V::kFormat.symbols() - 1), kEscape);
  };
  CodeCounts counts;
  for_each_run(count, [&](uint64_t first) {
    const uint8_t* run = values + first * sizeof(Word);
    for (uint64_t i = 0; i < kRunValues; i += 2) {
      ++counts.of[digit(run + i * sizeof(Word)) | digit(run + (i + 1) * sizeof(Word)) << 4];
    }
    counts.codes += kRunValues / 2;
  });
  return counts;
}

CodeCounts count_bytes(const uint8_t* values, uint64_t count) {
  CodeCounts counts;
  for_each_run(count, [&](uint64_t first) {
    for (uint64_t i = 0; i < kRunValues; ++i) ++counts.of[values[first + i]];
    counts.codes += kRunValues;
  });
  return counts;
}

CodeCounts count_codes(const uint8_t* values, uint64_t count, DType dtype, int base) {
  switch (dtype) {
    case DType::kBFloat16:
      return count_pairs<DType::kBFloat16>(values, count, base);
    case DType::kFloat16:
      return count_pairs<DType::kFloat16>(values, count, base);
    case DType::kFloat32:
      return count_pairs<DType::kFloat32>(values, count, base);
    case DType::kFloat64:
      return count_pairs<DType::kFloat64>(values, count, base);
    default:
      return count_bytes(values, count);
  }
}

// Adds the prior to the counts of pairs, in units of 1/256 pair.
void smooth_pairs(CodeCounts* counts) {
  double digits[kWindow] = {};
  for (int code = 0; code < ans::kCodes; ++code) {
    digits[code & 15] += counts->of[code];
    digits[code >> 4] += counts->of[code];
  }
  const double all = 2 * static_cast<double>(counts->codes);
  for (int code = 0; code < ans::kCodes; ++code) {
    const double prior = kPriorPairs * (digits[code & 15] / all) * (digits[code >> 4] / all);
    counts->of[code] = static_cast<uint32_t>((counts->of[code] + prior) * 256 + 0.5);
  }
}

// Bits of the codes of the sample, and of the raw symbols that escapes are followed by.
double sample_bits(const CodeCounts& counts, const uint16_t* frequencies,
                   const FloatFormat& format) {
  const int escape_bits = format.itemsize == 1 ? 0 : 8 * format.symbol_bytes();
  double bits = 0;
  for (int code = 0; code < ans::kCodes; ++code) {
    if (counts.of[code] == 0) continue;
    const int escapes = ((code & 15) == kEscape) + (code >> 4 == kEscape);
    const double code_bits = ans::kTableLog2 - std::log2(frequencies[code]);
    bits += counts.of[code] * (code_bits + escapes * escape_bits);
  }
  return bits;
}

// Large blocks share the cost of their states among more values, several blocks give work to
// several threads.
int block_log2(uint64_t tiles) {
  constexpr uint64_t kBlocks = 4;
  int log2 = 2;
  while (log2 < 5 && tiles >= kBlocks << (log2 + 1)) ++log2;
  return log2;
}

}  // namespace

AnsChoice choose_ans(const uint8_t* values, uint64_t count, DType dtype, const TierChoice& tier) {
  const FloatFormat format = float_format(dtype);
  const bool byte_mode = format.itemsize == 1;
  AnsChoice choice{};
  choice.menu = static_cast<uint8_t>(block_log2(count / kTileValues));
  choice.zero_planes = tier.zero_planes;
  if (!byte_mode) {
    // Of the 16 symbols of tier's window 15 have a digit: all but the rarer one of the two at its
    // ends.
    const uint8_t* end = std::find_if(tier.order, tier.order + kWindow,
                                      [](uint8_t o) { return o == 0 || o == kEscape; });
    const int base = tier.base + (*end == kEscape);
    choice.base = static_cast<uint16_t>(base & (format.symbols() - 1));
  }
  CodeCounts counts = count_codes(values, count, dtype, choice.base);
  const CodeCounts sampled = counts;
  if (!byte_mode) smooth_pairs(&counts);
  ans::normalise(counts.of, choice.frequencies);

  double rest_bits = byte_mode ? 0 : format.rest_bits();
  for (int i = 0; i < format.byte_planes; ++i) rest_bits -= 8 * (choice.zero_planes >> i & 1);
  const double sampled_values = static_cast<double>(sampled.codes) * (byte_mode ? 1 : 2);
  const double code_bits = sample_bits(sampled, choice.frequencies, format) / sampled_values;
  // A block's header and padding, and 24 of the 32 bits of a state, say nothing about the values.
  const double block_bits = 8.0 * 120 / static_cast<double>(kTileValues << choice.menu);
  const double table_bits = 8.0 * 512 / static_cast<double>(count);
  choice.ratio = (rest_bits + code_bits + block_bits + table_bits) / (8 * format.itemsize);
  return choice;
}

}  // namespace uzip
