// The only file that names a vendor: compilers, devices and instruction sets.
//
// UZIP_HD marks arithmetic that is compiled for the host and for the device.
// UZIP_TARGET_BEGIN(features) .. UZIP_TARGET_END compile the functions between them for instructions that the
// rest of the library must not use; whoever calls them has asked simd.hpp first.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define UZIP_HD __host__ __device__ __forceinline__
#else
#define UZIP_HD inline
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "uzipmpi reads and writes its little-endian frames in place: a little-endian machine is needed"
#endif

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define UZIP_X86 1
#else
#define UZIP_X86 0
#endif

#define UZIP_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define UZIP_TARGET_BEGIN(features) \
  UZIP_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define UZIP_TARGET_END _Pragma("clang attribute pop")
#else
#define UZIP_TARGET_BEGIN(features) \
  _Pragma("GCC push_options") UZIP_PRAGMA(GCC target(features))
#define UZIP_TARGET_END _Pragma("GCC pop_options")
#endif
