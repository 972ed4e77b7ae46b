// Arithmetic of the float types, value by value: to and from the type that accumulates, and the
// operators. reduce.hpp says what they compute.
//
// Compiled for processors, whose compilers make SIMD code of it, and for GPUs. Nothing here has a
// branch. Each step is exact or correctly rounded by itself; hence all of them agree bit for bit.
#pragma once

#include <type_traits>

#include "format.hpp"

namespace uzip {

template <typename To, typename From>
UZIP_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Both sides are always computed: a branch would keep the loop from being vectorised.
UZIP_HD uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = -static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// float32 bits without the sign; below 2^31, so signed comparisons (all that AVX2 has) are right.
UZIP_HD int32_t magnitude(float x) {
  return static_cast<int32_t>(bit_cast<uint32_t>(x) & 0x7FFFFFFF);
}

constexpr int32_t kInfinity32 = 0x7F800000;

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;

  UZIP_HD static float widen(Stored bits) {
    return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

  UZIP_HD static Stored narrow(float x) {
#if UZIP_GPU_SOURCE && UZIP_PTX
    return x == x ? narrow_bfloat(x) : Stored{0x7FC0};
#else
    const auto bits = bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return static_cast<Stored>(select(magnitude(x) > kInfinity32, 0x7FC0, rounded));
#endif
  }
};

// A float below 32 bits with subnormals. kSpecial is the first magnitude past the finite ones
// (infinity; for e4m3fn NaN), kNan the quiet NaN.
template <typename S, int kExponentBits, int kMantissaBits, uint32_t kSpecial, uint32_t kNan>
struct SmallFloat {
  using Stored = S;
  using Accumulator = float;

  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kSignShift = 32 - 8 * static_cast<int>(sizeof(S));
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kSign = 1u << (8 * sizeof(S) - 1);
  // Exponent field of 2^(1 - kBias - kMantissaBits), the smallest subnormal.
  static constexpr uint32_t kSmallest = 128 - kBias - kMantissaBits;

#if UZIP_GPU_SOURCE
  // Subnormals cost a GPU nothing, conversions of integers do: the fields are moved to where
  // float32 has them, and a power of two makes up for the other bias.
  UZIP_HD static float widen(S bits) {
#if UZIP_PTX
    if constexpr (kMantissaBits == 10) return widen_half(bits);
#endif
    constexpr uint32_t kFields = ((kSign - 1) << kShift) | 0x80000000u;
    const auto top = static_cast<int32_t>(static_cast<uint32_t>(bits) << kSignShift);
    const uint32_t moved = static_cast<uint32_t>(top >> (8 - kExponentBits)) & kFields;
    const float scale = bit_cast<float>(static_cast<uint32_t>(254 - kBias) << 23);
    const auto wide = bit_cast<uint32_t>(multiply(bit_cast<float>(moved), scale));
    const bool is_special = (moved & 0x7FFFFFFF) >= kSpecial << kShift;
    return bit_cast<float>(wide | (is_special ? kInfinity32 : 0));
  }
#else
  UZIP_HD static float widen(S bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & kSign) << kSignShift;
    const auto value = static_cast<int32_t>(bits & (kSign - 1));
    const uint32_t shifted = static_cast<uint32_t>(value) << kShift;
    const float subnormal = multiply(static_cast<float>(value), bit_cast<float>(kSmallest << 23));
    uint32_t wide = shifted + kRebias;
    wide = select(value < (1 << kMantissaBits), bit_cast<uint32_t>(subnormal), wide);
    wide =
        select(value >= static_cast<int32_t>(kSpecial), kInfinity32 | (shifted & 0x7FFFFF), wide);
    return bit_cast<float>(sign | wide);
  }
#endif

  UZIP_HD static S narrow(float x) {
#if UZIP_GPU_SOURCE && UZIP_PTX
    if constexpr (kMantissaBits == 10) return x == x ? narrow_half(x) : S{kNan};
#endif
    const int32_t wide = magnitude(x);
    const auto bits = static_cast<uint32_t>(wide);
    const uint32_t sign = bit_cast<uint32_t>(x) >> kSignShift & kSign;
    const uint32_t half = (1u << (kShift - 1)) - 1 + (bits >> kShift & 1);
    const uint32_t normal = (bits - kRebias + half) >> kShift;
    // The unit in the last place of this sum is the smallest subnormal: the addition rounds.
    const uint32_t ruler = (kSmallest + 23) << 23;
    const float sum = add(bit_cast<float>(bits), bit_cast<float>(ruler));
    const uint32_t subnormal = bit_cast<uint32_t>(sum) - ruler;
    const bool is_subnormal = wide < static_cast<int32_t>(kRebias + (1u << 23));
    uint32_t value = select(is_subnormal, subnormal, normal);
    value = (value < kSpecial ? value : kSpecial) | sign;
    return static_cast<S>(select(wide > kInfinity32, kNan, value));
  }
};

using Float16 = SmallFloat<uint16_t, 5, 10, 0x7C00, 0x7E00>;
using Float8E4M3FN = SmallFloat<uint8_t, 4, 3, 0x7F, 0x7F>;
using Float8E5M2 = SmallFloat<uint8_t, 5, 2, 0x7C, 0x7E>;

template <typename T, typename Bits, Bits kNan>
struct NativeFloat {
  using Stored = T;
  using Accumulator = T;

  UZIP_HD static T widen(T x) { return x; }

  // Which of two NaNs an addition returns depends on the order the compiler gives its operands.
  UZIP_HD static T narrow(T x) { return x == x ? x : bit_cast<T>(kNan); }
};

using Float32 = NativeFloat<float, uint32_t, 0x7FC00000>;
using Float64 = NativeFloat<double, uint64_t, 0x7FF8000000000000>;

struct Sum {
  template <typename T>
  UZIP_HD static T apply(T a, T b) {
    return add(a, b);
  }
};

struct Prod {
  template <typename T>
  UZIP_HD static T apply(T a, T b) {
    return multiply(a, b);
  }
};

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

// Equal values differ in bits only as zeros do, so `or` finds -0 and `and` finds +0.
struct Min {
  template <typename T>
  UZIP_HD static T apply(T a, T b) {
    const T either = bit_cast<T>(bit_cast<BitsOf<T>>(a) | bit_cast<BitsOf<T>>(b));
    const T less = a < b ? a : b;  // b if one of them is NaN
    const T ordered = a == b ? either : less;
    return a == a ? ordered : a;
  }
};

struct Max {
  template <typename T>
  UZIP_HD static T apply(T a, T b) {
    const T both = bit_cast<T>(bit_cast<BitsOf<T>>(a) & bit_cast<BitsOf<T>>(b));
    const T greater = a > b ? a : b;  // b if one of them is NaN
    const T ordered = a == b ? both : greater;
    return a == a ? ordered : a;
  }
};

// The arithmetic of a data type.
template <DType kDType>
struct ArithmeticOf;
template <>
struct ArithmeticOf<DType::kBFloat16> : BFloat16 {};
template <>
struct ArithmeticOf<DType::kFloat16> : Float16 {};
template <>
struct ArithmeticOf<DType::kFloat32> : Float32 {};
template <>
struct ArithmeticOf<DType::kFloat64> : Float64 {};
template <>
struct ArithmeticOf<DType::kFloat8E4M3FN> : Float8E4M3FN {};
template <>
struct ArithmeticOf<DType::kFloat8E5M2> : Float8E5M2 {};

}  // namespace uzip
