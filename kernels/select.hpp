// Choice of a tier frame's parameters from a sample. A poor choice costs ratio, never correctness.
#pragma once

#include "format.hpp"

namespace uzip {

struct TierChoice {
  uint8_t menu;
  uint8_t zero_planes;
  bool packed;
  uint16_t base;
  uint8_t order[kWindow];
  double ratio;  // expected bytes of the frame / bytes of the tensor
};

// Deterministic: the sampled places depend on the count only. `dtype` must not be kBytes.
TierChoice choose_tier(const uint8_t* values, uint64_t count, DType dtype);

// Above this ratio a frame is not worth its coding: encoders that may choose write it raw.
constexpr double kWorthRatio = 0.97;

}  // namespace uzip
