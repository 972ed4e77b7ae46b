// Interleaved rANS, the entropy coder of codec `ans` (FORMAT.md, "Codec ans").
//
// 32 lanes each hold a 32-bit state in [2^16, 2^32) and share one stream of 16-bit words;
// frequencies sum to 2^12. Codes reach the coder in order of position: in each half of a tile a
// lane owns one strip of neighbouring bytes, 8 in pair mode (two 4-bit digits a byte) and 16 in
// byte mode. Encoding walks the strips backwards, so that decoding goes forwards (Duda 2013,
// arXiv:1311.2540; 16-bit renormalisation and interleaving as in Giesen 2014, arXiv:1402.3392). The
// arithmetic of one step is here, once; ans_cpu.cpp and ans_avx2.cpp loop over it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform.hpp"

namespace uzip::ans {

constexpr int kLanes = 32;
constexpr int kCodes = 256;
constexpr int kTableLog2 = 12;
constexpr uint32_t kTableSum = 1u << kTableLog2;
constexpr uint32_t kMaxFrequency = kTableSum - 1;
constexpr int kWordBits = 16;
constexpr uint32_t kStateMin = 1u << kWordBits;

// What encoding one code needs. `reciprocal` and `shift` divide a state by the frequency without a
// division.
struct EncodeEntry {
  uint32_t reciprocal;
  uint32_t fields;  // 0..11: 4096 - frequency, 12..23: cumulated frequency, 24..27: shift, 31: add
                    // 1 to the state first
};

struct EncodeTable {
  EncodeEntry entries[kCodes];
};

// One entry for each value of state mod 4096. 0..11: slot - cum(code), 12..23: frequency, 24..31:
// code.
struct DecodeTable {
  uint32_t entries[kTableSum];
};

// Returns the entry of a code of frequency 1..4095. A state x is below frequency * 2^20 when it is
// divided, so with m = ceil(2^(32+shift) / frequency) the quotient is x * m >> (32 + shift) as long
// as frequency * (m * frequency - 2^(32+shift)) is at most 2^(12+shift). That always holds up to
// 2048; above, either it holds or rounding m down and adding 1 to x does.
UZIP_HD EncodeEntry encode_entry(uint32_t frequency, uint32_t cumulated) {
  const uint32_t common = (kTableSum - frequency) | cumulated << 12;
  if (frequency == 1) return {0xFFFFFFFFu, common | 1u << 31};
  uint32_t shift = 0;
  while ((2u << shift) < frequency) ++shift;
  const uint64_t one = uint64_t{1} << (32 + shift);
  const uint64_t down = one / frequency;
  const uint64_t up = down + (down * frequency != one);
  const bool exact = frequency * (up * frequency - one) <= uint64_t{1} << (12 + shift);
  return {static_cast<uint32_t>(exact ? up : down), common | shift << 24 | (exact ? 0u : 1u << 31)};
}

// True if a word must leave the state before the code is put in.
UZIP_HD bool must_emit(uint32_t state, EncodeEntry entry) {
  return (state >> 20) + (entry.fields & 0xFFF) >= kTableSum;
}

// Puts a code into a state that needs to emit nothing.
UZIP_HD uint32_t encode_step(uint32_t state, EncodeEntry entry) {
  const uint64_t product = uint64_t{state + (entry.fields >> 31)} * entry.reciprocal;
  const uint32_t quotient = static_cast<uint32_t>(product >> 32) >> (entry.fields >> 24 & 15);
  return state + (entry.fields >> 12 & 0xFFF) + quotient * (entry.fields & 0xFFF);
}

// Takes the code `entry >> 24` out of a state; a result below kStateMin must be refilled with a
// word.
UZIP_HD uint32_t decode_step(uint32_t state, uint32_t entry) {
  return (entry >> 12 & 0xFFF) * (state >> kTableLog2) + (entry & 0xFFF);
}

// Fills the tables from 256 frequencies that sum to 4096; those that are encoded must not be 0.
void fill_encode_table(const uint16_t* frequencies, EncodeTable* table);
void fill_decode_table(const uint16_t* frequencies, DecodeTable* table);

// Scales 256 counts, of any sum, to frequencies of 1..4095 that sum to 4096. A count of 0 becomes
// 1, so any code can be coded.
void normalise(const uint32_t* counts, uint16_t* frequencies);

// The codes of `n_halves` halves of tiles: 32 strips of `strip` bytes each, 8 or 16.
// encode: sets the 32 states that a decoder starts from; the words, little-endian, end at `stop`;
// returns where they start.
//         It may write up to kSlack bytes below that, and needs 2 bytes a code in front of `stop`
//         besides.
// decode: from `words`, never reading at `readable` or beyond; returns the end of the words it
// took, or nullptr
//         if that would be beyond `stop`. Leaves the states it ends with.
struct Coder {
  uint8_t* (*encode)(const EncodeTable& table, const uint8_t* codes, size_t n_halves, size_t strip,
                     uint32_t* states, uint8_t* stop);
  const uint8_t* (*decode)(const DecodeTable& table, const uint8_t* words, const uint8_t* stop,
                           const uint8_t* readable, uint32_t* states, uint8_t* codes,
                           size_t n_halves, size_t strip);
};
constexpr size_t kSlack = 16;

extern const Coder kPortableCoder;
#if UZIP_X86
extern const Coder kAvx2Coder;  // serves AVX-512 as well
#endif
const Coder& coder();  // of the path that simd.hpp has chosen

}  // namespace uzip::ans
