// AVX2 rANS coder: four vectors of eight lanes. Same words and states as ans_cpu.cpp.
//
// Renormalisation moves the words of the lanes that need one by a table of permutations indexed
// with the mask of those lanes. Table entries are fetched by scalar loads: decoding with gathers
// ran at half the speed on Zen 4, and gathers are slowed on Intel by the mitigation of Gather Data
// Sampling.

#include "ans.hpp"

#if UZIP_X86

#include <immintrin.h>

#include <array>
#include <cstring>

namespace uzip::ans {
namespace {

constexpr int kVectors = 4;

// decode_source[mask] names, for each lane, the word it takes: the number of set bits below it.
// encode_source[mask] moves the 16-bit words of the set lanes to the upper end of 16 bytes.
struct Permutations {
  alignas(64) std::array<std::array<uint8_t, 8>, 256> decode_source{};
  alignas(64) std::array<std::array<uint8_t, 16>, 256> encode_source{};
  constexpr Permutations() {
    for (int mask = 0; mask < 256; ++mask) {
      int n_set = 0;
      for (int lane = 0; lane < 8; ++lane) {
        decode_source[mask][lane] = static_cast<uint8_t>(n_set);
        n_set += mask >> lane & 1;
      }
      int byte = 16 - 2 * n_set;
      for (int lane = 0; lane < 8; ++lane) {
        if (!(mask >> lane & 1)) continue;
        encode_source[mask][byte++] = static_cast<uint8_t>(2 * lane);
        encode_source[mask][byte++] = static_cast<uint8_t>(2 * lane + 1);
      }
    }
  }
};
constexpr Permutations kPermutations;

UZIP_TARGET_BEGIN("avx2,bmi,bmi2,popcnt")

__m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void store(void* to, __m256i value) { _mm256_storeu_si256(static_cast<__m256i*>(to), value); }

struct Entries {
  __m256i reciprocal, fields;
};

// Entries of two codes, `apart` bytes from each other.
inline __m128d load_two(const EncodeTable& table, const uint8_t* codes, size_t apart) {
  const __m128d low = _mm_load_sd(reinterpret_cast<const double*>(&table.entries[codes[0]]));
  return _mm_loadh_pd(low, reinterpret_cast<const double*>(&table.entries[codes[apart]]));
}

// Entries of the codes of eight lanes, whose strips start at `codes`.
inline Entries load_entries(const EncodeTable& table, const uint8_t* codes, size_t strip) {
  const __m256d a =
      _mm256_set_m128d(load_two(table, codes + 4 * strip, strip), load_two(table, codes, strip));
  const __m256d b = _mm256_set_m128d(load_two(table, codes + 6 * strip, strip),
                                     load_two(table, codes + 2 * strip, strip));
  const __m256 low = _mm256_castpd_ps(a), high = _mm256_castpd_ps(b);
  return {_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88)),
          _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xDD))};
}

// must_emit and the words of its lanes, written below `stop`.
inline __m256i emit(__m256i state, __m256i complement, uint8_t** stop) {
  const __m256i sum = _mm256_add_epi32(_mm256_srli_epi32(state, 20), complement);
  const __m256i must = _mm256_cmpgt_epi32(sum, _mm256_set1_epi32(kTableSum - 1));
  const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(must)));
  const __m256i low = _mm256_and_si256(state, _mm256_set1_epi32(0xFFFF));
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  const __m128i source =
      _mm_load_si128(reinterpret_cast<const __m128i*>(kPermutations.encode_source[mask].data()));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(*stop - 16), _mm_shuffle_epi8(words, source));
  *stop -= 2 * _mm_popcnt_u32(mask);
  return _mm256_blendv_epi8(state, _mm256_srli_epi32(state, kWordBits), must);
}

// encode_step of eight lanes.
inline __m256i step(__m256i state, __m256i complement, Entries entry) {
  const __m256i dividend = _mm256_sub_epi32(state, _mm256_srai_epi32(entry.fields, 31));
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(dividend, entry.reciprocal), 32);
  const __m256i odd =
      _mm256_mul_epu32(_mm256_srli_epi64(dividend, 32), _mm256_srli_epi64(entry.reciprocal, 32));
  const __m256i high = _mm256_blend_epi32(even, odd, 0xAA);
  const __m256i shift =
      _mm256_and_si256(_mm256_srli_epi32(entry.fields, 24), _mm256_set1_epi32(15));
  const __m256i quotient = _mm256_srlv_epi32(high, shift);
  const __m256i cumulated =
      _mm256_and_si256(_mm256_srli_epi32(entry.fields, 12), _mm256_set1_epi32(0xFFF));
  return _mm256_add_epi32(_mm256_add_epi32(state, cumulated),
                          _mm256_mullo_epi32(quotient, complement));
}

uint8_t* encode(const EncodeTable& table, const uint8_t* codes, size_t n_halves, size_t strip,
                uint32_t* states, uint8_t* stop) {
  __m256i state[kVectors];
  for (auto& lanes : state) lanes = _mm256_set1_epi32(kStateMin);
  for (size_t half = n_halves; half-- > 0;) {
    for (size_t i = strip; i-- > 0;) {
      const uint8_t* column = codes + half * kLanes * strip + i;
#pragma GCC unroll 4
      for (int v = kVectors; v-- > 0;) {
        const Entries entry = load_entries(table, column + v * 8 * strip, strip);
        const __m256i complement = _mm256_and_si256(entry.fields, _mm256_set1_epi32(0xFFF));
        state[v] = step(emit(state[v], complement, &stop), complement, entry);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) store(states + 8 * v, state[v]);
  return stop;
}

inline int entry_at(const DecodeTable& table, uint64_t slot) {
  return static_cast<int>(table.entries[slot]);
}

// Entries of four slots.
inline __m128i load_entries(const DecodeTable& table, __m128i slots) {
  const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(slots));
  const auto high = static_cast<uint64_t>(_mm_extract_epi64(slots, 1));
  __m128i entries = _mm_cvtsi32_si128(entry_at(table, low & 0xFFFFFFFF));
  entries = _mm_insert_epi32(entries, entry_at(table, low >> 32), 1);
  entries = _mm_insert_epi32(entries, entry_at(table, high & 0xFFFFFFFF), 2);
  return _mm_insert_epi32(entries, entry_at(table, high >> 32), 3);
}

// Takes the codes of eight lanes out of their states; shifts them into the top bytes of `codes`.
inline __m256i decode_vector(const DecodeTable& table, __m256i state, const uint8_t** words,
                             __m256i* codes) {
  const __m256i slot = _mm256_and_si256(state, _mm256_set1_epi32(kTableSum - 1));
  const __m256i entry = _mm256_set_m128i(load_entries(table, _mm256_extracti128_si256(slot, 1)),
                                         load_entries(table, _mm256_castsi256_si128(slot)));
  const __m256i code = _mm256_and_si256(entry, _mm256_set1_epi32(static_cast<int>(0xFF000000u)));
  *codes = _mm256_or_si256(_mm256_srli_epi32(*codes, 8), code);
  const __m256i frequency =
      _mm256_and_si256(_mm256_srli_epi32(entry, 12), _mm256_set1_epi32(0xFFF));
  const __m256i offset = _mm256_and_si256(entry, _mm256_set1_epi32(0xFFF));
  state =
      _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srli_epi32(state, kTableLog2)), offset);

  const __m256i must =
      _mm256_cmpeq_epi32(_mm256_srli_epi32(state, kWordBits), _mm256_setzero_si256());
  const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(must)));
  const __m256i next =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(*words)));
  const __m256i source = _mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPermutations.decode_source[mask].data())));
  const __m256i refilled = _mm256_or_si256(_mm256_slli_epi32(state, kWordBits),
                                           _mm256_permutevar8x32_epi32(next, source));
  *words += 2 * _mm_popcnt_u32(mask);
  return _mm256_blendv_epi8(state, refilled, must);
}

// Stores four codes of each of eight lanes into their strips.
inline void store_codes(__m256i codes, uint8_t* to, size_t strip) {
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), codes);
#pragma GCC unroll 8
  for (int lane = 0; lane < 8; ++lane) std::memcpy(to + lane * strip, lanes + lane, 4);
}

const uint8_t* decode(const DecodeTable& table, const uint8_t* words, const uint8_t* stop,
                      const uint8_t* readable, uint32_t* states, uint8_t* codes, size_t n_halves,
                      size_t strip) {
  const size_t half_bytes = kLanes * strip;
  __m256i state[kVectors];
  for (int v = 0; v < kVectors; ++v) state[v] = load(states + 8 * v);
  size_t half = 0;
  // A half takes at most one word a code; words past `stop` are noticed afterwards, by where we
  // ended.
  for (; half < n_halves && static_cast<size_t>(readable - words) >= 2 * half_bytes + 16; ++half) {
    uint8_t* strips = codes + half * half_bytes;
    for (size_t i = 0; i < strip; i += 4) {
      __m256i four[kVectors];
      for (auto& codes_of : four) codes_of = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          state[v] = decode_vector(table, state[v], &words, &four[v]);
      }
      for (int v = 0; v < kVectors; ++v) store_codes(four[v], strips + 8 * v * strip + i, strip);
    }
  }
  for (int v = 0; v < kVectors; ++v) store(states + 8 * v, state[v]);
  if (words > stop) return nullptr;
  return kPortableCoder.decode(table, words, stop, readable, states, codes + half * half_bytes,
                               n_halves - half, strip);
}

UZIP_TARGET_END

}  // namespace

const Coder kAvx2Coder = {encode, decode};

}  // namespace uzip::ans

#endif  // UZIP_X86
