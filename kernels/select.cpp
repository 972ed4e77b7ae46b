#include "select.hpp"

#include <algorithm>
#include <numeric>

#include "tier.hpp"

namespace uzip {
namespace {

constexpr int kBlockValues = 64;
constexpr uint64_t kMinBlocks = 64;
constexpr uint64_t kMaxBlocks = 256;
constexpr uint64_t kValuesPerSampled = 32;  // beyond kMinBlocks, at most one value in 32 is read
constexpr uint64_t kMinEvidence = 256;  // values without which a plane is not believed to be zero
// A level costs time of its own; a menu with one more must save this many bits per value.
constexpr double kLevelCharge = 0.02;

struct Sample {
  uint64_t values = 0;
  uint64_t zeros = 0;            // values that are zero bits
  uint64_t constant_values = 0;  // in blocks of equal values
  uint64_t mixed_zeros = 0;      // zeros in other blocks
  uint64_t rest_bits = 0;        // union of all rests
  // Of the symbols of all values. Those at odd places are first counted by themselves: equal
  // neighbours would wait for each other's count.
  uint32_t histogram[2048] = {};
  uint32_t odd_histogram[2048] = {};
};

template <DType kDType>
void sample_block(const uint8_t* values, int n, Sample* sample) {
  using V = Value<kDType>;
  using Word = typename V::Word;
  const Word first = load<Word>(values);
  Word differences = 0;
  Word any = 0;
  unsigned zeros = 0;
  for (int i = 0; i < n; ++i) {
    const Word value = load<Word>(values + i * sizeof(Word));
    differences |= value ^ first;
    any |= value;
    zeros += value == 0;
  }
  sample->rest_bits |= V::rest(any);
  for (int i = 0; i < n; ++i) {
    uint32_t* histogram = i % 2 == 0 ? sample->histogram : sample->odd_histogram;
    ++histogram[V::symbol(load<Word>(values + i * sizeof(Word)))];
  }
  sample->values += static_cast<uint64_t>(n);
  sample->zeros += zeros;
  if (differences == 0) {
    sample->constant_values += static_cast<uint64_t>(n);
  } else {
    sample->mixed_zeros += zeros;
  }
}

template <DType kDType>
void draw(const uint8_t* values, uint64_t count, Sample* sample) {
  constexpr uint64_t kItemsize = Value<kDType>::kFormat.itemsize;
  const uint64_t wanted = count / kValuesPerSampled / kBlockValues;
  const uint64_t blocks = std::clamp(wanted, kMinBlocks, kMaxBlocks);
  const uint64_t stride = count / blocks;
  if (stride < kBlockValues) {
    for (uint64_t v = 0; v < count; v += kBlockValues) {
      const uint64_t n = std::min<uint64_t>(kBlockValues, count - v);
      sample_block<kDType>(values + v * kItemsize, static_cast<int>(n), sample);
    }
    return;
  }
  for (uint64_t block = 0; block < blocks; ++block) {
    // Jitter, or a stride that is a multiple of a row would only ever see the same columns.
    const uint64_t jitter = block * 0x9E3779B1u % (stride - kBlockValues + 1);
    sample_block<kDType>(values + (block * stride + jitter) * kItemsize, kBlockValues, sample);
  }
}

Sample draw_sample(const uint8_t* values, uint64_t count, DType dtype) {
  Sample sample;
  switch (dtype) {
    case DType::kBFloat16:
      draw<DType::kBFloat16>(values, count, &sample);
      break;
    case DType::kFloat16:
      draw<DType::kFloat16>(values, count, &sample);
      break;
    case DType::kFloat32:
      draw<DType::kFloat32>(values, count, &sample);
      break;
    case DType::kFloat64:
      draw<DType::kFloat64>(values, count, &sample);
      break;
    case DType::kFloat8E4M3FN:
      draw<DType::kFloat8E4M3FN>(values, count, &sample);
      break;
    case DType::kFloat8E5M2:
      draw<DType::kFloat8E5M2>(values, count, &sample);
      break;
    default:
      break;
  }
  for (int i = 0; i < float_format(dtype).symbols(); ++i) {
    sample.histogram[i] += sample.odd_histogram[i];
  }
  return sample;
}

// The 16 neighbouring symbols that hold most values.
int best_window(const uint32_t* histogram, int symbols) {
  uint64_t inside = 0;
  for (int i = 0; i < kWindow; ++i) inside += histogram[i];
  uint64_t best = inside;
  int base = 0;
  for (int first = 1; first < symbols; ++first) {
    inside += histogram[(first + kWindow - 1) & (symbols - 1)];
    inside -= histogram[first - 1];
    if (inside > best) {
      best = inside;
      base = first;
    }
  }
  return base;
}

// Offsets from base, the commonest symbol first.
void rank_symbols(const uint32_t* histogram, int symbols, int base, uint8_t order[kWindow]) {
  std::iota(order, order + kWindow, uint8_t{0});
  std::stable_sort(order, order + kWindow, [&](uint8_t a, uint8_t b) {
    return histogram[(base + a) & (symbols - 1)] > histogram[(base + b) & (symbols - 1)];
  });
}

// Bits of digits and raw symbols of all values together, and the charge for levels.
double menu_cost(int menu, const uint64_t counts[kWindow], uint64_t values, int symbol_bytes) {
  double bits = 0;
  uint64_t left = values;
  int rank = 0;
  for (int level = 0; level < kMaxLevels && kMenuWidths[menu][level] != 0; ++level) {
    const int width = kMenuWidths[menu][level];
    bits += static_cast<double>(left) * width + kLevelCharge * static_cast<double>(values);
    for (const int end = rank + (1 << width) - 1; rank < end; ++rank) left -= counts[rank];
  }
  return bits + static_cast<double>(left) * 8 * symbol_bytes;
}

int unseen_planes(const Sample& sample, int byte_planes) {
  if (sample.values - sample.zeros < kMinEvidence) return 0;
  int zero_planes = 0;
  for (int i = 0; i < byte_planes; ++i) {
    if ((sample.rest_bits >> 8 * i & 0xFF) == 0) zero_planes |= 1 << i;
  }
  return zero_planes;
}

double per_value(double bits, uint64_t values) {
  return values == 0 ? 0 : bits / static_cast<double>(values);
}

}  // namespace

TierChoice choose_tier(const uint8_t* values, uint64_t count, DType dtype) {
  const FloatFormat format = float_format(dtype);
  Sample sample = draw_sample(values, count, dtype);
  TierChoice choice{};
  const uint64_t special = std::max(sample.zeros, sample.constant_values);
  choice.packed = special * 8 >= std::max<uint64_t>(sample.values, 1);
  // Zeros are not coded in packed tiles, or hardly any.
  if (choice.packed) sample.histogram[0] -= static_cast<uint32_t>(sample.zeros);
  const uint64_t coded = choice.packed ? sample.values - sample.zeros : sample.values;

  const int base = best_window(sample.histogram, format.symbols());
  choice.base = static_cast<uint16_t>(base);
  rank_symbols(sample.histogram, format.symbols(), base, choice.order);
  uint64_t counts[kWindow];
  for (int rank = 0; rank < kWindow; ++rank) {
    counts[rank] = sample.histogram[(base + choice.order[rank]) & (format.symbols() - 1)];
  }
  double best = menu_cost(0, counts, coded, format.symbol_bytes());
  for (int menu = 1; menu < kMenus; ++menu) {
    const double cost = menu_cost(menu, counts, coded, format.symbol_bytes());
    if (cost < best) {
      best = cost;
      choice.menu = static_cast<uint8_t>(menu);
    }
  }

  const int zero_planes = unseen_planes(sample, format.byte_planes);
  choice.zero_planes = static_cast<uint8_t>(zero_planes);
  double rest_bits = format.rest_bits();
  for (int i = 0; i < format.byte_planes; ++i) rest_bits -= 8 * (zero_planes >> i & 1);
  constexpr double kDirectoryBits = 8 * (2 + 4.0 / kGroupTiles) / kTileValues;
  double bits = rest_bits + per_value(best, coded);
  if (choice.packed) {
    const double mixed = static_cast<double>(sample.values - sample.constant_values);
    const double stored = mixed - static_cast<double>(sample.mixed_zeros);
    bits = per_value(stored * bits + mixed, sample.values);
  }
  choice.ratio = (bits + kDirectoryBits) / (8 * format.itemsize);
  return choice;
}

}  // namespace uzip
