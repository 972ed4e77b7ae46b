// The coder of whole tiles for the SIMD path in use.
#include "simd.hpp"
#include "tier.hpp"

namespace uzip {

TierCoder tier_coder(DType dtype) {
  switch (simd_path()) {
    case SimdPath::kAvx512:
      return tier_coder_avx512(dtype);
    case SimdPath::kAvx2:
      return tier_coder_avx2(dtype);
    default:
      return tier_coder_portable(dtype);
  }
}

}  // namespace uzip
