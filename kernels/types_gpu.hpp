// Which data types a file's kernels are compiled for.
//
// Kernels take long to compile, so each type is a compilation of its own: of the same file, with
// UZIP_TYPE defined as a name of DType. Without it a file is compiled for all types.
#pragma once

#include "format.hpp"

#if defined(UZIP_TYPE)
#define UZIP_EACH_TYPE(instantiate) instantiate(DType::UZIP_TYPE)
#else
#define UZIP_EACH_TYPE(instantiate)                                                       \
  instantiate(DType::kBFloat16) instantiate(DType::kFloat16) instantiate(DType::kFloat32) \
      instantiate(DType::kFloat64) instantiate(DType::kFloat8E4M3FN)                      \
          instantiate(DType::kFloat8E5M2)
#endif

namespace uzip::gpu {

// Calls code.run<data type>(). Kernels handle bytes, which are never coded, whatever their type.
template <typename Code>
const char* with_type(DType dtype, const Code& code) {
  switch (dtype) {
    case DType::kFloat16:
      return code.template run<DType::kFloat16>();
    case DType::kFloat32:
      return code.template run<DType::kFloat32>();
    case DType::kFloat64:
      return code.template run<DType::kFloat64>();
    case DType::kFloat8E4M3FN:
      return code.template run<DType::kFloat8E4M3FN>();
    case DType::kFloat8E5M2:
      return code.template run<DType::kFloat8E5M2>();
    default:
      return code.template run<DType::kBFloat16>();
  }
}

}  // namespace uzip::gpu
