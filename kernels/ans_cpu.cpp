// Portable rANS coder and the tables of all coders.

#include <algorithm>
#include <cstring>

#include "ans.hpp"
#include "simd.hpp"

namespace uzip::ans {
namespace {

uint16_t load_word(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

void store_word(uint8_t* to, uint32_t word) {
  to[0] = static_cast<uint8_t>(word);
  to[1] = static_cast<uint8_t>(word >> 8);
}

// Both loops keep the states in an array of their own: stores of bytes might change the caller's,
// so every step would reload it. Neither branches on whether a lane moves a word, which no
// predictor guesses.

uint8_t* encode(const EncodeTable& table, const uint8_t* codes, size_t n_halves, size_t strip,
                uint32_t* states, uint8_t* stop) {
  uint32_t state[kLanes];
  std::fill_n(state, kLanes, kStateMin);
  for (size_t column = n_halves * strip; column-- > 0;) {
    const uint8_t* code = codes + column / strip * kLanes * strip + column % strip;
    for (int lane = kLanes; lane-- > 0;) {
      const EncodeEntry entry = table.entries[code[lane * strip]];
      const uint32_t emit = must_emit(state[lane], entry);
      store_word(stop - 2, state[lane]);  // overwritten by the next word if it is not emitted
      stop -= 2 * emit;
      state[lane] = encode_step(state[lane] >> kWordBits * emit, entry);
    }
  }
  std::copy_n(state, kLanes, states);
  return stop;
}

const uint8_t* decode(const DecodeTable& table, const uint8_t* words, const uint8_t* stop,
                      const uint8_t*, uint32_t* states, uint8_t* codes, size_t n_halves,
                      size_t strip) {
  uint32_t state[kLanes];
  std::copy_n(states, kLanes, state);
  for (size_t column = 0; column < n_halves * strip; ++column) {
    uint8_t* code = codes + column / strip * kLanes * strip + column % strip;
    const bool checked = stop - words < 2 * kLanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t entry = table.entries[state[lane] % kTableSum];
      code[lane * strip] = static_cast<uint8_t>(entry >> 24);
      state[lane] = decode_step(state[lane], entry);
      const uint32_t refill = state[lane] < kStateMin;
      if (checked && stop - words < 2) {
        if (refill) return nullptr;
        continue;
      }
      state[lane] = state[lane] << kWordBits * refill | (load_word(words) & (0 - refill));
      words += 2 * refill;
    }
  }
  std::copy_n(state, kLanes, states);
  return words;
}

}  // namespace

const Coder kPortableCoder = {encode, decode};

const Coder& coder() {
#if UZIP_X86
  if (simd_path() != SimdPath::kPortable) return kAvx2Coder;
#endif
  return kPortableCoder;
}

void fill_encode_table(const uint16_t* frequencies, EncodeTable* table) {
  uint32_t cumulated = 0;
  for (int code = 0; code < kCodes; ++code) {
    if (frequencies[code] != 0) table->entries[code] = encode_entry(frequencies[code], cumulated);
    cumulated += frequencies[code];
  }
}

void fill_decode_table(const uint16_t* frequencies, DecodeTable* table) {
  uint32_t* entry = table->entries;
  for (uint32_t code = 0; code < kCodes; ++code) {
    const uint32_t frequency = frequencies[code];
    for (uint32_t offset = 0; offset < frequency; ++offset)
      *entry++ = offset | frequency << 12 | code << 24;
  }
}

}  // namespace uzip::ans
