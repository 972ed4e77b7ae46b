// The coder of whole tiles for the SIMD path in use.
#include "simd.hpp"
#include "tier.hpp"

namespace uzip {

TierCoder tier_coder(DType dtype) { return tier_coder_portable(dtype); }

}  // namespace uzip
