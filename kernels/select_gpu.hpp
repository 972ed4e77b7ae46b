// Choice of a tier frame's parameters by every block for itself, from the same sample, so that all
// agree.
//
// The rules are those of select.cpp, but for what menus cost here in time; costs are whole numbers,
// so that no rounding depends on anything.
#pragma once

#include "frame_gpu.hpp"
#include "select.hpp"
#include "tile_code_gpu.hpp"

namespace uzip::gpu {

constexpr int kSampleRuns = 64;
constexpr uint32_t kMinEvidence = 256;  // values without which a plane is not believed to be zero
// In 1/50 bits per value: what a level costs in time, as in select.cpp.
constexpr uint32_t kBitCost = 50;
constexpr uint32_t kLevelCost = 1;
// What it costs that coders are not compiled for a menu, which are half as fast; and that digits
// beyond the first level have 3 bits, which take a seventh more time to decode.
constexpr uint32_t kAnyMenuCost = 8;
constexpr uint32_t kThreeBitsCost = 2;

// Symbols are counted in several copies of a histogram, or most lanes would wait for the same few
// counters.
template <DType kDType>
constexpr int kHistogramCopies = float_format(kDType).exponent_bits > 8 ? 2 : 8;

template <DType kDType>
struct alignas(16) SelectRoom {
  static constexpr int kSymbols = float_format(kDType).symbols();
  uint32_t copies[kSymbols * kHistogramCopies<kDType>];
  uint32_t histogram[kSymbols + kWindow];  // the first symbols once more behind the last
  uint32_t best[kWarps];       // of each warp: values in its best window, and the window
  uint32_t rest_bits[2];       // union of the rests of all sampled values
  uint32_t left[kWindow + 1];  // values whose rank is not below the index
  uint32_t order[2];
  uint32_t zeros;      // values of zero bits
  uint32_t constants;  // values in runs of equal values
  uint32_t mixed;      // zeros in other runs
};

// What a block agrees on: in shared memory.
struct Choice {
  TierParameters parameters;
  DigitTable digits;
  uint32_t cost;  // of a value on average, in 1/kBitCost bits
  bool packed;    // layout
  bool raw;       // not worth coding
};

// Where the sampled values are: runs of kRun neighbouring values spread evenly over the tensor,
// with jitter, as a stride that is a multiple of a row would only ever see the same columns.
template <int kRun>
struct Sample {
  static constexpr uint32_t kRunOctets = kRun / 8;
  uint32_t octets;  // of neighbouring values
  uint32_t jitter;  // places that a run has to choose from
  uint64_t stride;  // of the runs

  UZIP_DEVICE static Sample of(uint64_t count) {
    constexpr uint64_t kAll = kRun * kSampleRuns;
    const auto runs = static_cast<uint32_t>(count < kAll ? count / kRun : kSampleRuns);
    // 64-bit divisions would take longer than all else here.
    const uint64_t stride =
        runs == kSampleRuns ? count / kSampleRuns : static_cast<uint32_t>(count) / runs;
    const uint64_t slack = stride - kRun + 1;
    return {runs * kRunOctets, static_cast<uint32_t>(slack < 0xFFFFFFFFu ? slack : 0xFFFFFFFFu),
            stride};
  }

  UZIP_DEVICE uint32_t values() const { return octets * 8; }
  // The first value of an octet.
  UZIP_DEVICE uint64_t first(uint32_t octet) const {
    const uint32_t run = octet / kRunOctets;
    const auto moved = static_cast<uint32_t>(uint64_t{run * 0x9E3779B1u} * jitter >> 32);
    return ((run * stride + moved) & ~uint64_t{7}) + octet % kRunOctets * 8;
  }
};

// An octet at most for each thread of a block: the values are waited for only once.
using TierSample = Sample<32>;
static_assert(kSampleRuns * TierSample::kRunOctets == kThreads);
// A table of frequencies wants more.
using AnsSample = Sample<64>;

// Value i of an octet.
template <DType kDType>
UZIP_DEVICE typename Value<kDType>::Word value_of(const Run<kDType>& octet, int i) {
  constexpr int kItemsize = float_format(kDType).itemsize;
  if constexpr (kItemsize == 8) {
    return uint64_t{octet.words[2 * i + 1]} << 32 | octet.words[2 * i];
  } else {
    return static_cast<typename Value<kDType>::Word>(octet.words[i * kItemsize / 4] >>
                                                     8 * (i * kItemsize % 4));
  }
}

// Values of an octet that are zero bits.
template <DType kDType>
UZIP_DEVICE uint32_t count_zeros(const Run<kDType>& octet) {
  constexpr int kItemsize = float_format(kDType).itemsize;
  if constexpr (kItemsize <= 2) {
    // A value's top bit is borrowed only where it, or one below it, is zero.
    constexpr uint32_t kLowest = kItemsize == 2 ? 0x00010001u : kOnes;
    uint32_t borrowed = 0;
#pragma unroll
    for (const uint32_t word : octet.words) borrowed |= (word - kLowest) & ~word;
    if ((borrowed & kLowest << (8 * kItemsize - 1)) == 0) return 0;
  }
  uint32_t zeros = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) zeros += value_of<kDType>(octet, i) == 0 ? 1 : 0;
  return zeros;
}

// Whether the run of neighbouring lanes that this one belongs to has different values.
template <DType kDType>
UZIP_DEVICE bool run_differs(const Run<kDType>& octet) {
  constexpr int kItemsize = float_format(kDType).itemsize;
  constexpr int kRunLanes = TierSample::kRunOctets;
  const int first_lane = thread_index() % kLanes / kRunLanes * kRunLanes;
  // The first value of the run, in as many words as repeat it.
  constexpr int kFirstWords = kItemsize == 8 ? 2 : 1;
  uint32_t first[kFirstWords];
#pragma unroll
  for (int i = 0; i < kFirstWords; ++i) first[i] = shuffle32(octet.words[i], first_lane);
  if (kItemsize == 1) first[0] = repeat(static_cast<int>(first[0] & 0xFF));
  if (kItemsize == 2) first[0] = (first[0] & 0xFFFF) * 0x00010001u;
  uint32_t differences = 0;
#pragma unroll
  for (int i = 0; i < Run<kDType>::kWords; ++i) {
    differences |= octet.words[i] ^ first[i % kFirstWords];
  }
  const uint32_t votes = ballot32(differences != 0) >> first_lane;
  return (votes & ((1u << kRunLanes) - 1)) != 0;
}

// Counts the values of this thread's octet, if it has one. Neighbouring lanes have the octets of a
// run, all of them or none.
template <DType kDType>
UZIP_DEVICE void count_octet(const Run<kDType>& octet, bool present, SelectRoom<kDType>& room) {
  using V = Value<kDType>;
  constexpr int kCopies = kHistogramCopies<kDType>;
  const int lane = thread_index() % kLanes;
  const bool differs = run_differs<kDType>(octet);
  typename V::Word any = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) any |= value_of<kDType>(octet, i);
  // Lanes without values have zeros, which add no bits.
  const uint64_t rest_bits = V::rest(any);
  const uint32_t low = or32(static_cast<uint32_t>(rest_bits));
  const uint32_t high = V::kFormat.itemsize > 4 ? or32(static_cast<uint32_t>(rest_bits >> 32)) : 0;
  if (lane == 0) atomic_or(&room.rest_bits[0], low);
  if (V::kFormat.itemsize > 4 && lane == 0) atomic_or(&room.rest_bits[1], high);
  if (!present) return;
  uint32_t* copy = room.copies + lane % kCopies;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto symbol = static_cast<uint32_t>(V::symbol(value_of<kDType>(octet, i)));
    atomic_add(copy + symbol * kCopies, 1);
  }
  const uint32_t zeros = count_zeros<kDType>(octet);
  if (zeros != 0) atomic_add(&room.zeros, zeros);
  if (!differs) atomic_add(&room.constants, 8);
  if (differs && zeros != 0) atomic_add(&room.mixed, zeros);
}

// Draws a sample and counts its symbols; returns how many values it has.
template <DType kDType>
UZIP_DEVICE uint32_t draw_sample(const uint8_t* values, uint64_t count, bool aligned,
                                 SelectRoom<kDType>& room) {
  constexpr int kCopies = kHistogramCopies<kDType>;
  constexpr int kSymbols = SelectRoom<kDType>::kSymbols;
  const auto sample = TierSample::of(count);
  const auto octet = static_cast<uint32_t>(thread_index());
  const bool present = octet < sample.octets;
  Run<kDType> words{};
  if (present) {
    words =
        Run<kDType>::load(values + sample.first(octet) * float_format(kDType).itemsize, aligned);
  }
  for (int i = thread_index(); i < kSymbols * kCopies / 4; i += kThreads) {
    reinterpret_cast<Chunk*>(room.copies)[i] = Chunk{};
  }
  if (thread_index() == 0) {
    room.zeros = room.constants = room.mixed = room.rest_bits[0] = room.rest_bits[1] = 0;
  }
  sync_block();
  count_octet<kDType>(words, present, room);
  sync_block();
  return sample.values();
}

// Values of the sample that have a symbol, in all copies of the histogram.
template <DType kDType>
UZIP_DEVICE uint32_t count_of(const SelectRoom<kDType>& room, int symbol) {
  constexpr int kCopies = kHistogramCopies<kDType>;
  uint32_t n = 0;
  if constexpr (kCopies % 4 == 0) {
    // Copies of a symbol are neighbours.
#pragma unroll
    for (int i = 0; i < kCopies / 4; ++i) {
      const Chunk chunk = reinterpret_cast<const Chunk*>(room.copies)[symbol * (kCopies / 4) + i];
      n += chunk.words[0] + chunk.words[1] + chunk.words[2] + chunk.words[3];
    }
  } else {
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy) n += room.copies[symbol * kCopies + copy];
  }
  return n;
}

// Whether zeros, or runs of equal values, are so many that packed tiles pay, as in select.cpp.
template <DType kDType>
UZIP_DEVICE bool wants_packed(const SelectRoom<kDType>& room, uint32_t values) {
  const uint32_t special = room.zeros > room.constants ? room.zeros : room.constants;
  return special * 8 >= values;
}

// The window of 16 neighbouring symbols that holds most values, the first such, as each warp's best
// candidate.
template <DType kDType>
UZIP_DEVICE void find_window(SelectRoom<kDType>& room) {
  constexpr int kSymbols = SelectRoom<kDType>::kSymbols;
  uint32_t best = 0;
  for (int first = thread_index(); first < kSymbols; first += kThreads) {
    uint32_t inside = 0;
#pragma unroll
    for (int i = 0; i < kWindow; ++i) inside += room.histogram[first + i];
    const uint32_t candidate = inside << 16 | static_cast<uint32_t>(0xFFFF - first);
    best = candidate > best ? candidate : best;
  }
  best = max32(best);
  if (thread_index() % kLanes == 0) room.best[thread_index() / kLanes] = best;
}

// Ranks the window's symbols, the commonest first; ties in order of the symbols. By one warp:
// returns the rank of the symbol at offset lane % 16.
template <DType kDType>
UZIP_DEVICE int rank_symbols(SelectRoom<kDType>& room, uint32_t base, uint32_t values, int lane) {
  const int offset = lane % kWindow;
  const uint32_t mine = room.histogram[base + static_cast<uint32_t>(offset)];
  const uint32_t key = mine << 4 | static_cast<uint32_t>(kWindow - 1 - offset);
  int rank = 0;
  uint32_t before = 0;  // values of lower rank
#pragma unroll
  for (int other = 0; other < kWindow; ++other) {
    const uint32_t theirs = shuffle32(key, other);
    if (theirs > key) {
      ++rank;
      before += theirs >> 4;
    }
  }
  if (lane < 2) room.order[lane] = 0;
  sync_lanes();
  if (lane < kWindow) {
    room.left[rank] = values - before;
    if (rank == kWindow - 1) room.left[kWindow] = values - before - mine;
    atomic_or(&room.order[rank >> 3], static_cast<uint32_t>(offset) << 4 * (rank & 7));
  }
  sync_lanes();
  return rank;
}

// Cost of a menu for all sampled values, in 1/kBitCost bits. `left` as in SelectRoom.
UZIP_DEVICE uint32_t menu_cost(int index, const uint32_t left[kWindow + 1], int symbol_bytes) {
  const Menu menu = Menu::of(index);
  const bool three_bits = menu.levels > 1 && menu.width(menu.levels - 1) == 3;
  const uint32_t speed_cost = static_cast<uint32_t>(menu.levels) * kLevelCost +
                              (CompiledMenus::has(index) ? 0 : kAnyMenuCost) +
                              (three_bits ? kThreeBitsCost : 0);
  uint32_t cost = speed_cost * left[0];
  int rank = 0;
#pragma unroll
  for (int level = 0; level < kMaxLevels; ++level) {
    const int width = menu.width(level);  // 0 after the last level
    cost += left[rank] * static_cast<uint32_t>(width) * kBitCost;
    rank += (1 << width) - 1;
  }
  return cost + left[rank] * 8 * static_cast<uint32_t>(symbol_bytes) * kBitCost;
}

// The byte planes that were zero in the whole sample, where it says enough.
template <DType kDType>
UZIP_DEVICE uint32_t unseen_planes(const SelectRoom<kDType>& room, uint32_t values) {
  if (values - room.zeros < kMinEvidence) return 0;
  const uint64_t bits = uint64_t{room.rest_bits[1]} << 32 | room.rest_bits[0];
  uint32_t planes = 0;
  for (int i = 0; i < float_format(kDType).byte_planes; ++i) {
    if ((bits >> 8 * i & 0xFF) == 0) planes |= 1u << i;
  }
  return planes;
}

// What a value of the sample costs on average, in 1/kBitCost bits; `cost`: the digits of `coded`
// values.
template <DType kDType>
UZIP_DEVICE uint32_t value_cost(const SelectRoom<kDType>& room, uint32_t cost, uint32_t coded,
                                uint32_t values, uint32_t zero_planes, bool packed) {
  constexpr FloatFormat kFormat = float_format(kDType);
  // The directory has 2.5 bytes per tile.
  constexpr uint32_t kDirectory = 8 * kBitCost * 5 / (2 * kTileValues) + 1;
  const auto rest = static_cast<uint32_t>(kFormat.rest_bits() - 8 * popcount(zero_planes));
  uint32_t bits = rest * kBitCost + (coded != 0 ? cost / coded : 0);
  if (packed) {
    const uint32_t mixed = values - room.constants;
    bits = ((mixed - room.mixed) * bits + mixed * kBitCost) / values;
  }
  return bits + kDirectory;
}

template <DType kDType>
UZIP_DEVICE bool is_hopeless(uint32_t value_cost) {
  constexpr auto kMost =
      static_cast<uint32_t>(kWorthRatio * 8 * float_format(kDType).itemsize * kBitCost);
  return value_cost > kMost;
}

// By one warp.
template <DType kDType>
UZIP_DEVICE void conclude(SelectRoom<kDType>& room, uint32_t values, const EncodeOptions& options,
                          int lane, Choice* choice) {
  uint32_t best = room.best[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) best = room.best[warp] > best ? room.best[warp] : best;
  const uint32_t base = 0xFFFF - (best & 0xFFFF);
  const bool packed = wants_packed(room, values);
  const uint32_t coded = packed ? values - room.zeros : values;
  const int rank = rank_symbols<kDType>(room, base, coded, lane);
  const int candidate = lane % kMenus;
  const uint32_t cost = menu_cost(candidate, room.left, float_format(kDType).symbol_bytes());
  // Cheapest first, then lowest index. 2048 values x 23 bits x kBitCost fit 28 bits.
  const bool allowed = options.menu < 0 || options.menu == candidate;
  best = max32(allowed ? (0x0FFFFFFFu - cost) << 3 | static_cast<uint32_t>(7 - candidate) : 0);
  const auto menu = static_cast<int>(7 - (best & 7));
  if (lane < kWindow) set_digits(Menu::of(menu), lane, rank, &choice->digits);
  if (lane == 0) {
    const uint32_t zero_planes = unseen_planes<kDType>(room, values);
    choice->parameters = {menu, base, zero_planes, {room.order[0], room.order[1]}};
    choice->packed = packed;
    choice->cost =
        value_cost<kDType>(room, 0x0FFFFFFFu - (best >> 3), coded, values, zero_planes, packed);
    choice->raw = !options.always && is_hopeless<kDType>(choice->cost);
  }
}

// Called by a whole block; `choice` is in shared memory and valid for all threads after it.
template <DType kDType>
UZIP_DEVICE void choose(const uint8_t* values, uint64_t count, bool aligned,
                        const EncodeOptions& options, SelectRoom<kDType>& room, Choice* choice) {
  const int thread = thread_index();
  const uint32_t values_sampled = draw_sample<kDType>(values, count, aligned, room);
  for (int symbol = thread; symbol < SelectRoom<kDType>::kSymbols; symbol += kThreads) {
    uint32_t n = count_of(room, symbol);
    // Zeros are not coded in packed tiles, or hardly any.
    if (symbol == 0 && wants_packed(room, values_sampled)) n -= room.zeros;
    room.histogram[symbol] = n;
    if (symbol < kWindow) room.histogram[SelectRoom<kDType>::kSymbols + symbol] = n;
  }
  sync_block();
  find_window<kDType>(room);
  sync_block();
  if (thread < kLanes) conclude(room, values_sampled, options, thread, choice);
  sync_block();
}

}  // namespace uzip::gpu
