// Choice of an ans frame's table by every block for itself, from the same sample, so that all
// agree.
//
// The rules are those of ans_table.cpp, in whole numbers: the sample's pairs are counted with a
// prior, and the counts scaled to frequencies. A thread of the block serves a code.
#pragma once

#include "ans_frame_gpu.hpp"
#include "select_gpu.hpp"

namespace uzip::gpu {

// The product of the digits' own frequencies is worth as many pairs, in units of 1/256 pair.
constexpr uint32_t kPriorPairs = 1024;
constexpr int kEscapeDigit = kWindow - 1;
// A bit, in the costs below.
constexpr uint32_t kBit = 256;
// Fewer blocks than these leave multiprocessors without work, so small tensors have small blocks.
constexpr uint64_t kManyBlocks = 2048;
// A block's header and padding, and 24 of the 32 bits of a state, say nothing about the values.
constexpr uint32_t kBlockBits = 8 * 120;

struct AnsSelectRoom {
  uint32_t counts[ans::kCodes];
  uint32_t digits[kWindow];
  uint32_t sums[kWarps];
  uint32_t best[kWarps];
  uint32_t excess;  // of the commonest code, for the next one
};

// What a block agrees on, beside Choice: in shared memory.
struct AnsChoice {
  uint32_t base;
  int block_log2;  // of its tiles
  bool packed;     // a tier frame in the packed layout is smaller
  bool raw;        // not worth coding
  uint16_t frequencies[ans::kCodes];
};

// Of the 16 symbols of tier's window 15 have a digit: all but the rarer one of the two at its ends.
template <DType kDType>
UZIP_DEVICE uint32_t base_of_digits(const TierParameters& parameters) {
  if constexpr (!AnsFormat<kDType>::kPairs) return 0;
  uint32_t moved = 0;
#pragma unroll
  for (int rank = kWindow - 1; rank >= 0; --rank) {
    const uint32_t offset = nibble(parameters.order, rank);
    if (offset == 0 || offset == kEscapeDigit) moved = offset == kEscapeDigit ? 1 : 0;
  }
  return (parameters.base + moved) & (float_format(kDType).symbols() - 1);
}

// Bytes of offsets from the window's base as digits.
UZIP_DEVICE uint32_t clamp_digits(uint32_t offsets) {
  const uint32_t high = offsets >> 4 & 0x0F0F0F0Fu;
  return (offsets & 0x0F0F0F0Fu) | ((high + 0x0F0F0F0Fu) >> 4 & kOnes) * kEscapeDigit;
}

// A thread's part of the sample.
template <DType kDType>
struct DrawnCodes {
  static constexpr int kMost = kSampleRuns * AnsSample::kRunOctets / kThreads;
  Run<kDType> octets[kMost];
  int n;            // of the octets
  uint32_t values;  // of the whole sample

  // Asks for the values, which are waited for when they are counted, if they are aligned.
  UZIP_DEVICE static DrawnCodes of(const uint8_t* values, uint64_t count, bool aligned) {
    constexpr int kItemsize = float_format(kDType).itemsize;
    const auto sample = AnsSample::of(count);
    DrawnCodes drawn{{}, 0, sample.values()};
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const auto octet = static_cast<uint32_t>(thread_index() + i * kThreads);
      if (octet >= sample.octets) continue;
      drawn.octets[i] = load_octet<kDType>(values + sample.first(octet) * kItemsize, aligned);
      drawn.n = i + 1;
    }
    return drawn;
  }
};

template <DType kDType>
UZIP_DEVICE void count_codes(const Run<kDType>& octet, uint32_t base,
                             uint32_t counts[ans::kCodes]) {
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    if constexpr (AnsFormat<kDType>::kPairs) {
      const uint32_t digits =
          clamp_digits(Quad<kDType>::split(octet.words + q * Quad<kDType>::kWords, base).offset);
      const uint32_t codes = digits | digits >> 4;
      atomic_add(counts + (codes & 0xFF), 1);
      atomic_add(counts + (codes >> 16 & 0xFF), 1);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) atomic_add(counts + (octet.words[q] >> 8 * i & 0xFF), 1);
    }
  }
}

// The count of this thread's code with the prior, in units of 1/256 pair. By a whole block.
UZIP_DEVICE uint32_t smooth(uint32_t count, uint32_t pairs, AnsSelectRoom& room) {
  const int code = thread_index();
  if (code < kWindow) room.digits[code] = 0;
  sync_block();
  if (count != 0) {
    atomic_add(room.digits + (code & 15), count);
    atomic_add(room.digits + (code >> 4), count);
  }
  sync_block();
  // At most 2^12 digits of each kind, of at least 2^9.
  const uint64_t expected = uint64_t{room.digits[code & 15] * room.digits[code >> 4]};
  const uint32_t all = 2 * pairs;
  return count * 256 + static_cast<uint32_t>((expected * (256 * kPriorPairs)) / (all * all));
}

// The largest word of a block, and the thread it belongs to: of equal ones the first.
UZIP_DEVICE uint32_t largest_of_block(uint32_t word, uint32_t best[kWarps], int* thread) {
  const uint32_t found = max32(word << 8 | static_cast<uint32_t>(kThreads - 1 - thread_index()));
  if (thread_index() % kLanes == 0) best[thread_index() / kLanes] = found;
  sync_block();
  uint32_t largest = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) largest = best[warp] > largest ? best[warp] : largest;
  sync_block();
  *thread = kThreads - 1 - static_cast<int>(largest & 0xFF);
  return largest >> 8;
}

// Whether encoding divides by a frequency without adding 1 to the state before, which the GPU's
// steps leave out.
UZIP_DEVICE bool divides_at_once(uint32_t frequency) {
  return frequency == 1 || ans::encode_entry(frequency, 0).fields >> 31 == 0;
}

// The frequency of this thread's code: ans::normalise() by a whole block. Counts add up to less
// than 2^20.
UZIP_DEVICE uint32_t normalise(uint32_t count, AnsSelectRoom& room) {
  constexpr uint32_t kOne = 1u << 20;
  uint32_t total;
  sum_below(count, room.sums, &total);
  uint32_t sum = total;
  uint32_t left = ans::kTableSum;
  bool given = false;
  for (int round = 0; round < 3; ++round) {
    const bool gives = !given && count * left <= sum;
    sum_below(gives ? count + kOne : 0, room.sums, &total);
    given = given || gives;
    sum -= total % kOne;
    left -= total / kOne;
  }
  uint32_t frequency = given ? 1 : (count * left + sum / 2) / sum;
  sum_below(frequency, room.sums, &total);
  auto surplus = static_cast<int>(total) - static_cast<int>(ans::kTableSum);
  int owner;
  auto largest = static_cast<int>(largest_of_block(frequency, room.best, &owner));
  while (surplus != 0) {
    int change = largest / 8 + 1;
    if (surplus < change) change = surplus;
    if (change < -64) change = -64;
    if (thread_index() == owner) {
      frequency = static_cast<uint32_t>(static_cast<int>(frequency) - change);
    }
    surplus -= change;
    largest = static_cast<int>(largest_of_block(frequency, room.best, &owner));
  }
  if (thread_index() == owner) {
    const uint32_t before = frequency;
    while (!divides_at_once(frequency)) --frequency;  // 10 at most
    room.excess = before - frequency;
  }
  sync_block();
  if (thread_index() == (owner + 1) % kThreads) frequency += room.excess;
  sync_block();
  return frequency;
}

// Of a number of 1..4096, in 1/256.
UZIP_DEVICE uint32_t log2_of(uint32_t number) {
  const int whole = highest_bit(number);
  const uint32_t part = (number << 8 >> whole) - 256;
  return static_cast<uint32_t>(whole) * 256 + part + (part * (256 - part) * 87 >> 16);
}

// What the codes cost that the sample has of this thread's, with the raw symbols of escapes.
template <DType kDType>
UZIP_DEVICE uint32_t code_cost(uint32_t count, uint32_t frequency) {
  uint32_t bits = ans::kTableLog2 * kBit - log2_of(frequency);
  if constexpr (AnsFormat<kDType>::kPairs) {
    const int code = thread_index();
    const int escapes = (code % 16 == kEscapeDigit ? 1 : 0) + (code / 16 == kEscapeDigit ? 1 : 0);
    bits += static_cast<uint32_t>(escapes * 8 * float_format(kDType).symbol_bytes()) * kBit;
  }
  return count * bits;
}

// `cost`: of the sample. `block_bytes`: room for words and raw symbols.
template <DType kDType>
UZIP_DEVICE int choose_block(uint64_t tiles, uint32_t cost, uint32_t values, uint32_t block_bytes) {
  // 1/16 more than the sample says.
  const uint64_t tile_bytes = uint64_t{cost} * kTileValues / values * 17 / (16 * 8 * kBit);
  int log2 = kMinBlockLog2;
  while (log2 < kMaxBlockLog2 && tiles >> (log2 + 1) >= kManyBlocks &&
         tile_bytes << (log2 + 1) <= block_bytes) {
    ++log2;
  }
  return log2;
}

// Beyond so many values the bits of the table are hardly one for each kBit values.
constexpr uint64_t kTinyCount = uint64_t{1} << 20;

// What a value of the sample costs on average, in bits / kBit.
template <DType kDType>
UZIP_DEVICE uint32_t ans_value_cost(uint32_t cost, uint32_t values, uint32_t zero_planes,
                                    int block_log2, uint64_t count) {
  constexpr int kRestBits = AnsFormat<kDType>::kPairs ? float_format(kDType).rest_bits() : 0;
  const auto rest = static_cast<uint32_t>(kRestBits - 8 * popcount(zero_planes));
  const uint32_t table =
      8 * kTableBytes * kBit / static_cast<uint32_t>(count < kTinyCount ? count : kTinyCount);
  return rest * kBit + cost / values + table + (kBlockBits * kBit / kTileValues >> block_log2);
}

// Called by a whole block, after choose(); `choice` is in shared memory and valid for all threads
// after it.
template <DType kDType>
UZIP_DEVICE void choose_ans(const DrawnCodes<kDType>& drawn, uint64_t count,
                            const EncodeOptions& options, const Choice& tier, uint32_t block_bytes,
                            AnsSelectRoom& room, AnsChoice* choice) {
  const int code = thread_index();
  const uint32_t base = base_of_digits<kDType>(tier.parameters);
  room.counts[code] = 0;
  sync_block();
#pragma unroll
  for (int i = 0; i < DrawnCodes<kDType>::kMost; ++i) {
    if (i < drawn.n) count_codes<kDType>(drawn.octets[i], base, room.counts);
  }
  sync_block();
  const uint32_t sampled = room.counts[code];
  uint32_t weight = sampled;
  if constexpr (AnsFormat<kDType>::kPairs) weight = smooth(sampled, drawn.values / 2, room);
  const uint32_t frequency = normalise(weight, room);
  choice->frequencies[code] = static_cast<uint16_t>(frequency);
  uint32_t cost;
  sum_below(code_cost<kDType>(sampled, frequency), room.sums, &cost);
  if (code == 0) {
    choice->base = base;
    choice->block_log2 = options.menu >= 0 ? options.menu
                                           : choose_block<kDType>(count / kTileValues, cost,
                                                                  drawn.values, block_bytes);
    const uint32_t bits = ans_value_cost<kDType>(cost, drawn.values, tier.parameters.zero_planes,
                                                 choice->block_log2, count);
    choice->packed =
        tier.packed && uint64_t{tier.cost} * kBit <= uint64_t{bits} * kBitCost * tier.values;
    choice->raw = choice->packed ? tier.raw : bits > most_cost<kDType, kBit>(options.always);
  }
  sync_block();
}

}  // namespace uzip::gpu
