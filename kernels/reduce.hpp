// Arithmetic on tensors: folds for the reductions, and conversions to and from float32.
#pragma once

#include <cstddef>

#include "format.hpp"

namespace uzip {

enum class ReduceOp { kSum = 0, kProd = 1, kMin = 2, kMax = 3 };
constexpr int kReduceOps = 4;

// Writes out[j] = (((x[0][j] op x[1][j]) op x[2][j]) ...) / divisor for j < count, x being the
// inputs.
//
// 8- and 16-bit types accumulate in float32 and are rounded once, to nearest even, when they are
// written; float32 and float64 accumulate in their own type. Nothing is contracted or reordered, so
// all SIMD paths and machines compute the same bits.
// A result that is NaN is the positive quiet NaN of its type. Overflow gives infinity; in
// float8_e4m3fn, which has none, the NaN with the result's sign.
// min and max return NaN where any input is NaN, and order -0 below +0.
//
// `out` may be one of the inputs, but not overlap one in part. No pointer needs to be aligned.
// The floating-point environment of the calling thread (flush to zero, rounding) has no influence.
// Throws std::invalid_argument for kBytes, no inputs, a divisor below 1 or a partial overlap.
void fold(ReduceOp op, DType dtype, const void* const* inputs, size_t n_inputs, void* out,
          size_t count, int divisor);

// Writes the float32 equal to each value of an 8- or 16-bit type. Throws std::invalid_argument for
// other types.
void widen(DType dtype, const void* in, float* out, size_t count);

// Rounds float32 to an 8- or 16-bit type as fold does. Throws std::invalid_argument for other
// types.
void narrow(DType dtype, const float* in, void* out, size_t count);

}  // namespace uzip
