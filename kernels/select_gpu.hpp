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

template <DType kDType>
struct alignas(16) SelectRoom {
  static constexpr int kSymbols = float_format(kDType).symbols();
  uint32_t histogram[kSymbols];
  uint32_t best[kWarps];       // of each warp: values in its best window, and the window
  uint32_t rest_bits[2];       // union of the rests of all sampled values
  uint32_t left[kWindow + 1];  // values whose rank is not below the index
  uint32_t zeros;              // values of zero bits
  uint32_t constants;          // values in runs of equal values
  uint32_t mixed;              // zeros in other runs
};

// What a block agrees on: in shared memory.
struct Choice {
  TierParameters parameters;
  DigitTable digits;
  uint32_t values;  // sampled
  uint32_t cost;    // of these together, in 1/kBitCost bits
  bool packed;      // layout
  bool raw;         // not worth coding
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

// A call, so that nobody waits for loads of both kinds.
template <DType kDType>
UZIP_DEVICE_CALL Run<kDType> load_unaligned(const uint8_t* from) {
  return Run<kDType>::template load<false>(from);
}
template <DType kDType>
UZIP_DEVICE Run<kDType> load_octet(const uint8_t* from, bool aligned) {
  return aligned ? Run<kDType>::template load<true>(from) : load_unaligned<kDType>(from);
}

// A thread's part of the sample. Neighbouring lanes have the octets of a run, all of them or none.
template <DType kDType>
struct Drawn {
  Run<kDType> octet;
  bool present;
  uint32_t values;  // of the whole sample

  // Asks for the values, which are waited for when they are counted, if they are aligned.
  UZIP_DEVICE static Drawn of(const uint8_t* values, uint64_t count, bool aligned) {
    const auto sample = TierSample::of(count);
    const auto octet = static_cast<uint32_t>(thread_index());
    Drawn drawn{{}, octet < sample.octets, sample.values()};
    if (drawn.present) {
      const uint64_t place = sample.first(octet) * float_format(kDType).itemsize;
      drawn.octet = load_octet<kDType>(values + place, aligned);
    }
    return drawn;
  }
};

// Counts the values of this thread's octet, if it has one.
template <DType kDType>
UZIP_DEVICE void count_octet(const Drawn<kDType>& drawn, SelectRoom<kDType>& room) {
  using V = Value<kDType>;
  const Run<kDType>& octet = drawn.octet;
  const int lane = thread_index() % kLanes;
  if (drawn.present) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      atomic_add(room.histogram + V::symbol(value_of<kDType>(octet, i)), 1);
    }
  }
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
  if (!drawn.present) return;
  const uint32_t zeros = count_zeros<kDType>(octet);
  if (zeros != 0) atomic_add(&room.zeros, zeros);
  if (!differs) atomic_add(&room.constants, 8);
  if (differs && zeros != 0) atomic_add(&room.mixed, zeros);
}

// Counts the symbols of a sample. By a block.
template <DType kDType>
UZIP_DEVICE void count_sample(const Drawn<kDType>& drawn, SelectRoom<kDType>& room) {
  constexpr int kSymbols = SelectRoom<kDType>::kSymbols;
#pragma unroll 1
  for (int i = thread_index(); i < kSymbols / 4; i += kThreads) {
    reinterpret_cast<Chunk*>(room.histogram)[i] = Chunk{};
  }
  if (thread_index() == 0) {
    room.zeros = room.constants = room.mixed = room.rest_bits[0] = room.rest_bits[1] = 0;
  }
  sync_block();
  count_octet<kDType>(drawn, room);
  sync_block();
}

// Whether zeros, or runs of equal values, are so many that packed tiles pay, as in select.cpp.
template <DType kDType>
UZIP_DEVICE bool wants_packed(const SelectRoom<kDType>& room, uint32_t values) {
  const uint32_t special = room.zeros > room.constants ? room.zeros : room.constants;
  return special * 8 >= values;
}

// Zeros that are counted as symbols but not coded: they are not in packed tiles, or hardly any.
template <DType kDType>
UZIP_DEVICE uint32_t uncoded_zeros(const SelectRoom<kDType>& room, uint32_t values) {
  return wants_packed(room, values) ? room.zeros : 0;
}

// The window of 16 neighbouring symbols that holds most values, the first such: of those that begin
// with one of 8 symbols of each lane of this warp. As values << 16 | 0xFFFF - first symbol.
template <DType kDType>
UZIP_DEVICE uint32_t best_window(const SelectRoom<kDType>& room, uint32_t uncoded) {
  constexpr uint32_t kSymbols = SelectRoom<kDType>::kSymbols;
  const uint32_t first = 8 * static_cast<uint32_t>(thread_index());
  uint32_t counts[8 + kWindow];
#pragma unroll
  for (uint32_t i = 0; i < 8 + kWindow; i += 4) {
    const uint32_t symbol = (first + i) % kSymbols;
    const Chunk chunk = reinterpret_cast<const Chunk*>(room.histogram)[symbol / 4];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) counts[i + k] = chunk.words[k];
    if (symbol == 0) counts[i] -= uncoded;
  }
  uint32_t inside = 0;
#pragma unroll
  for (int i = 0; i < kWindow; ++i) inside += counts[i];
  uint32_t best = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t candidate = inside << 16 | (0xFFFF - first - i);
    best = candidate > best ? candidate : best;
    inside += counts[i + kWindow] - counts[i];
  }
  return max32(first < kSymbols ? best : 0);
}

// The base of the best window, for the first warp. By a block; the first warp alone where it can
// look at all symbols.
template <DType kDType>
UZIP_DEVICE uint32_t find_base(SelectRoom<kDType>& room, uint32_t uncoded) {
  constexpr bool kAlone = SelectRoom<kDType>::kSymbols <= 8 * kLanes;
  uint32_t best = 0;
  if (!kAlone || thread_index() < kLanes) best = best_window<kDType>(room, uncoded);
  if constexpr (!kAlone) {
    if (thread_index() % kLanes == 0) room.best[thread_index() / kLanes] = best;
    sync_block();
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      best = room.best[warp] > best ? room.best[warp] : best;
    }
  }
  return 0xFFFF - (best & 0xFFFF);
}

// What a lane knows of the symbol at offset lane % 16 of the window.
struct Ranked {
  int rank;
  uint32_t order[2];  // of all symbols, as in TierParameters
};

// Ranks the window's symbols, the commonest first; ties in order of the symbols. By one warp.
// `coded`: values of the sample but for `uncoded` zeros.
template <DType kDType>
UZIP_DEVICE Ranked rank_symbols(SelectRoom<kDType>& room, uint32_t base, uint32_t coded,
                                uint32_t uncoded, int lane) {
  constexpr uint32_t kSymbols = SelectRoom<kDType>::kSymbols;
  constexpr uint32_t kOffsets = kWindow - 1;
  const uint32_t offset = static_cast<uint32_t>(lane) % kWindow;
  const uint32_t symbol = (base + offset) % kSymbols;
  const uint32_t mine = room.histogram[symbol] - (symbol == 0 ? uncoded : 0);
  const uint32_t key = mine << 4 | (kOffsets - offset);
  // Two lanes have each offset: one compares it with the lower half, the other with the upper.
  uint32_t before = 0;  // symbols, and << 8 values, of lower rank
#pragma unroll
  for (int i = 0; i < kWindow / 2; ++i) {
    const uint32_t theirs = shuffle32(key, lane / kWindow * (kWindow / 2) + i);
    if (theirs > key) before += (theirs & ~kOffsets) << 4 | 1;
  }
  before += shuffle_xor32(before, kWindow);
  const uint32_t rank = before & 0xFF;
  const uint32_t left = coded - (before >> 8);
  if (lane < kWindow) {
    room.left[rank] = left;
    if (rank == kOffsets) room.left[kWindow] = left - mine;
  }
  sync_lanes();
  const uint32_t place = offset << 4 * (rank % 8);
  return {static_cast<int>(rank), {or32(rank < 8 ? place : 0), or32(rank < 8 ? 0 : place)}};
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

// What the values of the sample cost, in 1/kBitCost bits; `cost`: the digits of `coded` of them.
template <DType kDType>
UZIP_DEVICE uint32_t sample_cost(const SelectRoom<kDType>& room, uint32_t cost, uint32_t coded,
                                 uint32_t values, uint32_t zero_planes, bool packed) {
  constexpr FloatFormat kFormat = float_format(kDType);
  // The directory has 2.5 bytes per tile.
  constexpr uint32_t kDirectory = 8 * kBitCost * 5 / (2 * kTileValues) + 1;
  const auto rest = static_cast<uint32_t>(kFormat.rest_bits() - 8 * popcount(zero_planes));
  const uint32_t directory = kDirectory * values;
  if (!packed) return rest * kBitCost * values + cost + directory;
  const uint32_t mixed = values - room.constants;
  const uint32_t bits = rest * kBitCost + (coded != 0 ? cost / coded : 0);
  return (mixed - room.mixed) * bits + mixed * kBitCost + directory;
}

// Beyond this estimate no frame would become smaller than a raw one, which takes half the time
// then.
constexpr double kHopelessRatio = 1.08;

// What a value may cost for a frame to be tried, in 1/kUnit bits. `always`: see EncodeOptions.
template <DType kDType, uint32_t kUnit>
UZIP_DEVICE uint32_t most_cost(bool always) {
  constexpr double kRaw = 8 * float_format(kDType).itemsize * kUnit;
  return static_cast<uint32_t>(always ? kHopelessRatio * kRaw : kWorthRatio * kRaw);
}

// By the first warp.
template <DType kDType>
UZIP_DEVICE void conclude(SelectRoom<kDType>& room, uint32_t base, uint32_t uncoded,
                          uint32_t values, const EncodeOptions& options, Choice* choice) {
  const int lane = thread_index();
  const uint32_t coded = values - uncoded;
  const Ranked ranked = rank_symbols<kDType>(room, base, coded, uncoded, lane);
  const int candidate = lane % kMenus;
  const uint32_t cost = menu_cost(candidate, room.left, float_format(kDType).symbol_bytes());
  // Cheapest first, then lowest index. 2048 values x 23 bits x kBitCost fit 28 bits.
  const bool allowed = options.menu < 0 || options.menu == candidate;
  const uint32_t best =
      max32(allowed ? (0x0FFFFFFFu - cost) << 3 | static_cast<uint32_t>(7 - candidate) : 0);
  const auto menu = static_cast<int>(7 - (best & 7));
  if (lane < kWindow) set_digits(Menu::of(menu), lane, ranked.rank, &choice->digits);
  if (lane == 0) {
    const uint32_t zero_planes = unseen_planes<kDType>(room, values);
    const bool packed = wants_packed(room, values);
    choice->parameters = {menu, base, zero_planes, {ranked.order[0], ranked.order[1]}};
    choice->packed = packed;
    choice->values = values;
    choice->cost =
        sample_cost<kDType>(room, 0x0FFFFFFFu - (best >> 3), coded, values, zero_planes, packed);
    choice->raw = choice->cost > most_cost<kDType, kBitCost>(options.always) * values;
  }
  sync_lanes();
}

// Called by a whole block. `choice` is in shared memory, and for the first warp only until the
// block has met again. The other warps call meanwhile().
template <DType kDType, typename Meanwhile>
UZIP_DEVICE void choose(const Drawn<kDType>& drawn, const EncodeOptions& options,
                        SelectRoom<kDType>& room, Choice* choice, const Meanwhile& meanwhile) {
  count_sample<kDType>(drawn, room);
  const uint32_t uncoded = uncoded_zeros(room, drawn.values);
  const uint32_t base = find_base<kDType>(room, uncoded);
  if (thread_index() < kLanes) {
    conclude<kDType>(room, base, uncoded, drawn.values, options, choice);
  } else {
    meanwhile();
  }
}

}  // namespace uzip::gpu
