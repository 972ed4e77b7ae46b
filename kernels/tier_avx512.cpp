// The coder of whole tiles for AVX-512 (F, BW, DQ, VL) and BMI2: that of AVX2 with vectors twice as
// wide.
#include "tier.hpp"

#if UZIP_X86
#include <immintrin.h>

#include <initializer_list>

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own header reads variables that it leaves undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

UZIP_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,popcnt")

namespace uzip {
namespace {

// tier_avx2.cpp says what the operations do.
struct Avx512 {
  using Reg = __m512i;
  using Mask = uint64_t;
  static constexpr int kBytes = 64;

  static Reg load(const void* p) { return _mm512_loadu_si512(p); }
  static void store(void* p, Reg v) { _mm512_storeu_si512(p, v); }

  template <int kStep>
  static Reg load_lanes(const uint8_t* p) {
    Reg v = _mm512_castsi128_si512(load128(p));
    v = _mm512_inserti32x4(v, load128(p + kStep), 1);
    v = _mm512_inserti32x4(v, load128(p + 2 * kStep), 2);
    return _mm512_inserti32x4(v, load128(p + 3 * kStep), 3);
  }
  template <int kStep>
  static void store_lanes(uint8_t* p, Reg v) {
    store128(p, _mm512_castsi512_si128(v));
    store128(p + kStep, _mm512_extracti32x4_epi32(v, 1));
    store128(p + 2 * kStep, _mm512_extracti32x4_epi32(v, 2));
    store128(p + 3 * kStep, _mm512_extracti32x4_epi32(v, 3));
  }

  static Reg load_halves(const uint8_t* a, const uint8_t* b) {
    const Reg x = _mm512_castsi256_si512(load256(a));
    const Reg y = _mm512_castsi256_si512(load256(b));
    return _mm512_permutex2var_epi64(x, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), y);
  }
  static void store_halves(uint8_t* a, uint8_t* b, Reg v) {
    const Reg rows = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
    store256(a, _mm512_castsi512_si256(rows));
    store256(b, _mm512_extracti64x4_epi64(rows, 1));
  }

  static Reg set8(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  static Reg set16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
  static Reg set32(int x) { return _mm512_set1_epi32(x); }
  static Reg table(const uint8_t* bytes) { return _mm512_broadcast_i32x4(load128(bytes)); }
  static Reg table(std::initializer_list<uint8_t> bytes) { return table(bytes.begin()); }

  static Reg and_(Reg a, Reg b) { return _mm512_and_si512(a, b); }
  static Reg or_(Reg a, Reg b) { return _mm512_or_si512(a, b); }
  static Reg add8(Reg a, Reg b) { return _mm512_add_epi8(a, b); }
  static Reg adds8(Reg a, Reg b) { return _mm512_adds_epu8(a, b); }
  static Reg sub8(Reg a, Reg b) { return _mm512_sub_epi8(a, b); }
  static Reg sub16(Reg a, Reg b) { return _mm512_sub_epi16(a, b); }
  static Reg subs8(Reg a, Reg b) { return _mm512_subs_epu8(a, b); }
  static Reg min8(Reg a, Reg b) { return _mm512_min_epu8(a, b); }
  template <int kBits>
  static Reg srl16(Reg a) {
    return _mm512_srli_epi16(a, kBits);
  }
  template <int kBits>
  static Reg sll16(Reg a) {
    return _mm512_slli_epi16(a, kBits);
  }
  static Reg maddubs(Reg a, Reg weights) { return _mm512_maddubs_epi16(a, weights); }
  static Reg madd16(Reg a, Reg weights) { return _mm512_madd_epi16(a, weights); }

  static Reg shuffle8(Reg from, Reg index) { return _mm512_shuffle_epi8(from, index); }
  static Reg packus16(Reg a, Reg b) { return _mm512_packus_epi16(a, b); }
  static Reg packs32(Reg a, Reg b) { return _mm512_packs_epi32(a, b); }
  static Reg unpacklo8(Reg a, Reg b) { return _mm512_unpacklo_epi8(a, b); }
  static Reg unpackhi8(Reg a, Reg b) { return _mm512_unpackhi_epi8(a, b); }
  static Reg unpacklo16(Reg a, Reg b) { return _mm512_unpacklo_epi16(a, b); }
  static Reg unpackhi16(Reg a, Reg b) { return _mm512_unpackhi_epi16(a, b); }
  static Reg unpacklo32(Reg a, Reg b) { return _mm512_unpacklo_epi32(a, b); }
  static Reg unpackhi32(Reg a, Reg b) { return _mm512_unpackhi_epi32(a, b); }
  static Reg unpacklo64(Reg a, Reg b) { return _mm512_unpacklo_epi64(a, b); }
  static Reg unpackhi64(Reg a, Reg b) { return _mm512_unpackhi_epi64(a, b); }

  // Four vectors by four lanes: a transpose, its own inverse.
  static Reg pack_order32(Reg v) {
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
  }
  static Reg unpack_order32(Reg v) { return pack_order32(v); }
  static Reg pack_order64(Reg v) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
  }
  static Reg unpack_order64(Reg v) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), v);
  }

  static int sum8(Reg v) {
    const Reg quads = _mm512_sad_epu8(v, _mm512_setzero_si512());
    return static_cast<int>(_mm512_reduce_add_epi64(quads));
  }

  static Mask sign_bits(Reg v) { return _mm512_movepi8_mask(v); }
  static Mask equal_bits(Reg a, Reg b) { return _mm512_cmpeq_epi8_mask(a, b); }
  static Reg spread_bits(const uint8_t* p) { return _mm512_movm_epi8(uzip::load<uint64_t>(p)); }

 private:
  static __m128i load128(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static void store128(uint8_t* p, __m128i v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
  }
  static __m256i load256(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void store256(uint8_t* p, __m256i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
};

}  // namespace
}  // namespace uzip

#include "tier_simd.hpp"

namespace uzip {
TierCoder tier_coder_avx512(DType dtype) { return simd_coder_of<Avx512>(dtype); }
}  // namespace uzip

UZIP_TARGET_END
#else
namespace uzip {
TierCoder tier_coder_avx512(DType dtype) { return tier_coder_portable(dtype); }
}  // namespace uzip
#endif
