// Folds in blocks that stay in the L1 cache: widen the first input into an accumulator, combine
// each further input with it, narrow it to the output. Each input is read once, the output is
// written once, and it may be an input.
//
// The loops have no branches, so that the compiler vectorises the one source for every SIMD path.
// Each step is exact or correctly rounded; hence the paths agree bit for bit.
#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "platform.hpp"
#include "reduce.hpp"
#include "simd.hpp"

// What a SIMD path calls must become part of that path's functions, to be compiled for its target.
#define UZIP_INLINE [[gnu::always_inline]] inline

namespace uzip {
namespace {

constexpr size_t kBlock = 2048;  // values: 8 or 16 KiB of accumulator

// Tensors may start at any address.
template <typename T>
struct Unaligned {
  typedef T type [[gnu::aligned(1), gnu::may_alias]];
};

template <typename To, typename From>
UZIP_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Both sides are always computed: a branch would keep the loop from being vectorised.
UZIP_INLINE uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = -static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// float32 bits without the sign; below 2^31, so signed comparisons (all that AVX2 has) are right.
UZIP_INLINE int32_t magnitude(float x) {
  return static_cast<int32_t>(bit_cast<uint32_t>(x) & 0x7FFFFFFF);
}

constexpr int32_t kInfinity32 = 0x7F800000;

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;

  UZIP_INLINE static float widen(Stored bits) {
    return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

  UZIP_INLINE static Stored narrow(float x) {
    const auto bits = bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return static_cast<Stored>(select(magnitude(x) > kInfinity32, 0x7FC0, rounded));
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

  UZIP_INLINE static float widen(S bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & kSign) << kSignShift;
    const auto value = static_cast<int32_t>(bits & (kSign - 1));
    const uint32_t shifted = static_cast<uint32_t>(value) << kShift;
    const float subnormal = static_cast<float>(value) * bit_cast<float>(kSmallest << 23);
    uint32_t wide = shifted + kRebias;
    wide = select(value < (1 << kMantissaBits), bit_cast<uint32_t>(subnormal), wide);
    wide =
        select(value >= static_cast<int32_t>(kSpecial), kInfinity32 | (shifted & 0x7FFFFF), wide);
    return bit_cast<float>(sign | wide);
  }

  UZIP_INLINE static S narrow(float x) {
    const int32_t wide = magnitude(x);
    const auto bits = static_cast<uint32_t>(wide);
    const uint32_t sign = bit_cast<uint32_t>(x) >> kSignShift & kSign;
    const uint32_t half = (1u << (kShift - 1)) - 1 + (bits >> kShift & 1);
    const uint32_t normal = (bits - kRebias + half) >> kShift;
    // The unit in the last place of this sum is the smallest subnormal: the addition rounds.
    const uint32_t ruler = (kSmallest + 23) << 23;
    const float sum = bit_cast<float>(bits) + bit_cast<float>(ruler);
    const uint32_t subnormal = bit_cast<uint32_t>(sum) - ruler;
    const bool is_subnormal = wide < static_cast<int32_t>(kRebias + (1u << 23));
    uint32_t value = select(is_subnormal, subnormal, normal);
    value = std::min(value, kSpecial) | sign;
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

  UZIP_INLINE static T widen(T x) { return x; }

  // Which of two NaNs an addition returns depends on the order the compiler gives its operands.
  UZIP_INLINE static T narrow(T x) { return x == x ? x : bit_cast<T>(kNan); }
};

using Float32 = NativeFloat<float, uint32_t, 0x7FC00000>;
using Float64 = NativeFloat<double, uint64_t, 0x7FF8000000000000>;

struct Sum {
  template <typename T>
  UZIP_INLINE static T apply(T a, T b) {
    return a + b;
  }
};

struct Prod {
  template <typename T>
  UZIP_INLINE static T apply(T a, T b) {
    return a * b;
  }
};

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

// Equal values differ in bits only as zeros do, so `or` finds -0 and `and` finds +0.
struct Min {
  template <typename T>
  UZIP_INLINE static T apply(T a, T b) {
    const T either = bit_cast<T>(bit_cast<BitsOf<T>>(a) | bit_cast<BitsOf<T>>(b));
    const T less = a < b ? a : b;  // b if one of them is NaN
    const T ordered = a == b ? either : less;
    return a == a ? ordered : a;
  }
};

struct Max {
  template <typename T>
  UZIP_INLINE static T apply(T a, T b) {
    const T both = bit_cast<T>(bit_cast<BitsOf<T>>(a) & bit_cast<BitsOf<T>>(b));
    const T greater = a > b ? a : b;  // b if one of them is NaN
    const T ordered = a == b ? both : greater;
    return a == a ? ordered : a;
  }
};

// The loops over values. Their arguments never overlap, which the compiler must know to vectorise.
template <typename Format>
struct Loops {
  using Accumulator = typename Format::Accumulator;
  using Stored = typename Unaligned<typename Format::Stored>::type;

  UZIP_INLINE static void widen(const Stored* __restrict in, Accumulator* __restrict out,
                                size_t n) {
    for (size_t j = 0; j < n; ++j) out[j] = Format::widen(in[j]);
  }

  template <typename Op>
  UZIP_INLINE static void combine(const Stored* __restrict in, Accumulator* __restrict accumulator,
                                  size_t n) {
    for (size_t j = 0; j < n; ++j) {
      accumulator[j] = Op::apply(accumulator[j], Format::widen(in[j]));
    }
  }

  UZIP_INLINE static void divide(Accumulator* accumulator, Accumulator divisor, size_t n) {
    for (size_t j = 0; j < n; ++j) accumulator[j] /= divisor;
  }

  UZIP_INLINE static void narrow(const Accumulator* __restrict in, Stored* __restrict out,
                                 size_t n) {
    for (size_t j = 0; j < n; ++j) out[j] = Format::narrow(in[j]);
  }
};

struct Fold {
  ReduceOp op;
  DType dtype;
  const void* const* inputs;
  size_t n_inputs;
  void* out;
  size_t count;
  int divisor;

  template <typename Format, typename Op>
  UZIP_INLINE void block(size_t start, size_t n) const {
    using Loop = Loops<Format>;
    using Accumulator = typename Loop::Accumulator;
    using Stored = typename Loop::Stored;
    alignas(64) Accumulator accumulator[kBlock];
    Loop::widen(static_cast<const Stored*>(inputs[0]) + start, accumulator, n);
    for (size_t i = 1; i < n_inputs; ++i) {
      Loop::template combine<Op>(static_cast<const Stored*>(inputs[i]) + start, accumulator, n);
      // Without this GCC merges the loops of two inputs (unroll and jam) and then fails to
      // vectorise the result: 10 times slower.
      asm volatile("" ::: "memory");
    }
    if (divisor != 1) Loop::divide(accumulator, static_cast<Accumulator>(divisor), n);
    Loop::narrow(accumulator, static_cast<Stored*>(out) + start, n);
  }

  template <typename Format, typename Op>
  UZIP_INLINE void blocks() const {
    for (size_t start = 0; start < count; start += kBlock) {
      block<Format, Op>(start, std::min(kBlock, count - start));
    }
  }

  template <typename Format>
  UZIP_INLINE void run_as() const {
    switch (op) {
      case ReduceOp::kSum:
        return blocks<Format, Sum>();
      case ReduceOp::kProd:
        return blocks<Format, Prod>();
      case ReduceOp::kMin:
        return blocks<Format, Min>();
      case ReduceOp::kMax:
        return blocks<Format, Max>();
    }
  }

  UZIP_INLINE void run() const {
    switch (dtype) {
      case DType::kBytes:
        return;
      case DType::kBFloat16:
        return run_as<BFloat16>();
      case DType::kFloat16:
        return run_as<Float16>();
      case DType::kFloat32:
        return run_as<Float32>();
      case DType::kFloat64:
        return run_as<Float64>();
      case DType::kFloat8E4M3FN:
        return run_as<Float8E4M3FN>();
      case DType::kFloat8E5M2:
        return run_as<Float8E5M2>();
    }
  }
};

struct Conversion {
  DType dtype;
  const void* in;
  void* out;
  size_t count;
  bool widens;

  template <typename Format>
  UZIP_INLINE void run_as() const {
    using Loop = Loops<Format>;
    using Stored = typename Loop::Stored;
    if (widens) {
      Loop::widen(static_cast<const Stored*>(in), static_cast<float*>(out), count);
    } else {
      Loop::narrow(static_cast<const float*>(in), static_cast<Stored*>(out), count);
    }
  }

  UZIP_INLINE void run() const {
    switch (dtype) {
      case DType::kBFloat16:
        return run_as<BFloat16>();
      case DType::kFloat16:
        return run_as<Float16>();
      case DType::kFloat8E4M3FN:
        return run_as<Float8E4M3FN>();
      case DType::kFloat8E5M2:
        return run_as<Float8E5M2>();
      default:
        return;
    }
  }
};

void run_portable(const Fold& fold) { fold.run(); }
void run_portable(const Conversion& conversion) { conversion.run(); }

#if UZIP_X86
UZIP_TARGET_BEGIN("avx2")
void run_avx2(const Fold& fold) { fold.run(); }
void run_avx2(const Conversion& conversion) { conversion.run(); }
UZIP_TARGET_END

UZIP_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq")
void run_avx512(const Fold& fold) { fold.run(); }
void run_avx512(const Conversion& conversion) { conversion.run(); }
UZIP_TARGET_END
#endif

// Sets what every machine starts with, round to nearest and keep subnormals, for a scope.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

template <typename Job>
void run(const Job& job) {
  const DefaultFloatEnvironment environment;
  switch (simd_path()) {
#if UZIP_X86
    case SimdPath::kAvx2:
      return run_avx2(job);
    case SimdPath::kAvx512:
      return run_avx512(job);
#endif
    default:
      return run_portable(job);
  }
}

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

bool overlaps_in_part(const void* a, const void* b, size_t bytes) {
  const auto low = std::min(reinterpret_cast<uintptr_t>(a), reinterpret_cast<uintptr_t>(b));
  const auto high = std::max(reinterpret_cast<uintptr_t>(a), reinterpret_cast<uintptr_t>(b));
  return low != high && high - low < bytes;
}

bool is_small(DType dtype) { return dtype != DType::kBytes && float_format(dtype).itemsize <= 2; }

}  // namespace

void fold(ReduceOp op, DType dtype, const void* const* inputs, size_t n_inputs, void* out,
          size_t count, int divisor) {
  require(dtype != DType::kBytes, "expected values of a float type to fold, found bytes");
  require(n_inputs >= 1, "expected at least one input to fold, found none");
  require(divisor >= 1, "expected a divisor of at least 1");
  for (size_t i = 0; i < n_inputs; ++i) {
    require(!overlaps_in_part(inputs[i], out, count * float_format(dtype).itemsize),
            "expected an output that is an input or apart from it, found a partial overlap");
  }
  run(Fold{op, dtype, inputs, n_inputs, out, count, divisor});
}

void widen(DType dtype, const void* in, float* out, size_t count) {
  require(is_small(dtype), "expected values of an 8- or 16-bit float type to widen");
  run(Conversion{dtype, in, out, count, true});
}

void narrow(DType dtype, const float* in, void* out, size_t count) {
  require(is_small(dtype), "expected an 8- or 16-bit float type to narrow to");
  run(Conversion{dtype, in, out, count, false});
}

}  // namespace uzip
