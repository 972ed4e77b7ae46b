// Folds in blocks that stay in the L1 cache: widen the first input into an accumulator, combine
// each further input with it, narrow it to the output. Each input is read once, the output is
// written once, and it may be an input.
//
// The loops have no branches, so that the compiler vectorises the one source for every SIMD path.
// Each step is exact or correctly rounded; hence the paths agree bit for bit.
#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <stdexcept>

#include "arithmetic.hpp"
#include "platform.hpp"
#include "reduce.hpp"
#include "simd.hpp"

namespace uzip {
namespace {

constexpr size_t kBlock = 2048;  // values: 8 or 16 KiB of accumulator

// Tensors may start at any address.
template <typename T>
struct Unaligned {
  typedef T type [[gnu::aligned(1), gnu::may_alias]];
};

// The loops over values. Their arguments never overlap, which the compiler must know to vectorise.
template <typename Format>
struct Loops {
  using Accumulator = typename Format::Accumulator;
  using Stored = typename Unaligned<typename Format::Stored>::type;

  UZIP_HD static void widen(const Stored* __restrict in, Accumulator* __restrict out, size_t n) {
    for (size_t j = 0; j < n; ++j) out[j] = Format::widen(in[j]);
  }

  template <typename Op>
  UZIP_HD static void combine(const Stored* __restrict in, Accumulator* __restrict accumulator,
                              size_t n) {
    for (size_t j = 0; j < n; ++j) {
      accumulator[j] = Op::apply(accumulator[j], Format::widen(in[j]));
    }
  }

  UZIP_HD static void divide(Accumulator* accumulator, Accumulator divisor, size_t n) {
    for (size_t j = 0; j < n; ++j) accumulator[j] = uzip::divide(accumulator[j], divisor);
  }

  UZIP_HD static void narrow(const Accumulator* __restrict in, Stored* __restrict out, size_t n) {
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
  UZIP_HD void block(size_t start, size_t n) const {
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
  UZIP_HD void blocks() const {
    for (size_t start = 0; start < count; start += kBlock) {
      block<Format, Op>(start, std::min(kBlock, count - start));
    }
  }

  template <typename Format>
  UZIP_HD void run_as() const {
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

  UZIP_HD void run() const {
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
  UZIP_HD void run_as() const {
    using Loop = Loops<Format>;
    using Stored = typename Loop::Stored;
    if (widens) {
      Loop::widen(static_cast<const Stored*>(in), static_cast<float*>(out), count);
    } else {
      Loop::narrow(static_cast<const float*>(in), static_cast<Stored*>(out), count);
    }
  }

  UZIP_HD void run() const {
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
