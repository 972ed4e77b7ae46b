// The coder of whole tiles for AVX2 and BMI2.
#include "tier.hpp"

#if UZIP_X86
#include <immintrin.h>

#include <initializer_list>

UZIP_TARGET_BEGIN("avx2,bmi,bmi2,popcnt")

namespace uzip {
namespace {

// Operations on vectors of bytes. Numbers in names are widths of elements in bits; packs, unpacks
// and shuffles work in each 128-bit lane by itself, as the instructions do.
struct Avx2 {
  using Reg = __m256i;
  using Mask = uint32_t;
  static constexpr int kBytes = 32;

  static Reg load(const void* p) { return _mm256_loadu_si256(static_cast<const Reg*>(p)); }
  static void store(void* p, Reg v) { _mm256_storeu_si256(static_cast<Reg*>(p), v); }

  // Lane i from or to p + i * kStep.
  template <int kStep>
  static Reg load_lanes(const uint8_t* p) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(p + kStep), 1);
  }
  template <int kStep>
  static void store_lanes(uint8_t* p, Reg v) {
    store128(p, _mm256_castsi256_si128(v));
    store128(p + kStep, _mm256_extracti128_si256(v, 1));
  }

  // Lane i from or to the 8 bytes at a + 8 * i and those at b + 8 * i.
  static Reg load_halves(const uint8_t* a, const uint8_t* b) {
    const __m128i x = load128(a);
    const __m128i y = load128(b);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi64(x, y)),
                                   _mm_unpackhi_epi64(x, y), 1);
  }
  static void store_halves(uint8_t* a, uint8_t* b, Reg v) {
    const __m128i x = _mm256_castsi256_si128(v);
    const __m128i y = _mm256_extracti128_si256(v, 1);
    store128(a, _mm_unpacklo_epi64(x, y));
    store128(b, _mm_unpackhi_epi64(x, y));
  }

  static Reg set8(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
  static Reg set16(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
  static Reg set32(int x) { return _mm256_set1_epi32(x); }
  // The same 16 bytes in every lane.
  static Reg table(const uint8_t* bytes) { return _mm256_broadcastsi128_si256(load128(bytes)); }
  static Reg table(std::initializer_list<uint8_t> bytes) { return table(bytes.begin()); }

  static Reg and_(Reg a, Reg b) { return _mm256_and_si256(a, b); }
  static Reg or_(Reg a, Reg b) { return _mm256_or_si256(a, b); }
  static Reg add8(Reg a, Reg b) { return _mm256_add_epi8(a, b); }
  static Reg adds8(Reg a, Reg b) { return _mm256_adds_epu8(a, b); }
  static Reg sub8(Reg a, Reg b) { return _mm256_sub_epi8(a, b); }
  static Reg sub16(Reg a, Reg b) { return _mm256_sub_epi16(a, b); }
  static Reg subs8(Reg a, Reg b) { return _mm256_subs_epu8(a, b); }
  static Reg min8(Reg a, Reg b) { return _mm256_min_epu8(a, b); }
  template <int kBits>
  static Reg srl16(Reg a) {
    return _mm256_srli_epi16(a, kBits);
  }
  template <int kBits>
  static Reg sll16(Reg a) {
    return _mm256_slli_epi16(a, kBits);
  }
  static Reg maddubs(Reg a, Reg weights) { return _mm256_maddubs_epi16(a, weights); }
  static Reg madd16(Reg a, Reg weights) { return _mm256_madd_epi16(a, weights); }

  static Reg shuffle8(Reg from, Reg index) { return _mm256_shuffle_epi8(from, index); }
  static Reg packus16(Reg a, Reg b) { return _mm256_packus_epi16(a, b); }
  static Reg packs32(Reg a, Reg b) { return _mm256_packs_epi32(a, b); }
  static Reg unpacklo8(Reg a, Reg b) { return _mm256_unpacklo_epi8(a, b); }
  static Reg unpackhi8(Reg a, Reg b) { return _mm256_unpackhi_epi8(a, b); }
  static Reg unpacklo16(Reg a, Reg b) { return _mm256_unpacklo_epi16(a, b); }
  static Reg unpackhi16(Reg a, Reg b) { return _mm256_unpackhi_epi16(a, b); }
  static Reg unpacklo32(Reg a, Reg b) { return _mm256_unpacklo_epi32(a, b); }
  static Reg unpackhi32(Reg a, Reg b) { return _mm256_unpackhi_epi32(a, b); }
  static Reg unpacklo64(Reg a, Reg b) { return _mm256_unpacklo_epi64(a, b); }
  static Reg unpackhi64(Reg a, Reg b) { return _mm256_unpackhi_epi64(a, b); }

  // Elements as packs of four (32) or two (64) vectors leave them, lane by lane, into the order of
  // the vectors; and the inverse, for unpacks.
  static Reg pack_order32(Reg v) {
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  static Reg unpack_order32(Reg v) {
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  }
  static Reg pack_order64(Reg v) { return _mm256_permute4x64_epi64(v, 0xD8); }    // 0, 2, 1, 3
  static Reg unpack_order64(Reg v) { return _mm256_permute4x64_epi64(v, 0xD8); }  // its own inverse

  // The sum of all bytes.
  static int sum8(Reg v) {
    const Reg quads = _mm256_sad_epu8(v, _mm256_setzero_si256());
    const __m128i pairs =
        _mm_add_epi64(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
    return static_cast<int>(_mm_cvtsi128_si64(pairs) + _mm_extract_epi64(pairs, 1));
  }

  // One bit per byte: the highest; whether bytes are equal.
  static Mask sign_bits(Reg v) { return static_cast<Mask>(_mm256_movemask_epi8(v)); }
  static Mask equal_bits(Reg a, Reg b) { return sign_bits(_mm256_cmpeq_epi8(a, b)); }
  // 0xFF for every bit that is set at p, else 0.
  static Reg spread_bits(const uint8_t* p) {
    const Reg bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32(uzip::load<int>(p)),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const Reg bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  }

 private:
  static __m128i load128(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static void store128(uint8_t* p, __m128i v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
  }
};

}  // namespace
}  // namespace uzip

#include "tier_simd.hpp"

namespace uzip {
TierCoder tier_coder_avx2(DType dtype) { return simd_coder_of<Avx2>(dtype); }
}  // namespace uzip

UZIP_TARGET_END
#else
namespace uzip {
TierCoder tier_coder_avx2(DType dtype) { return tier_coder_portable(dtype); }
}  // namespace uzip
#endif
