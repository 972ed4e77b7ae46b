// Asking for memory before it is needed.
//
// A tile is read at once and then coded for longer than the processor looks ahead, so that its own
// prefetching stops at every tile. Asking for the next tile first made coding from memory 1.3
// to 1.6 times as fast (bfloat16, Zen 4).
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform.hpp"

namespace uzip {

constexpr size_t kCacheLine = 64;

// Inlined always: GCC takes a function that only prefetches for one without effects, and drops
// calls of it.
__attribute__((always_inline)) inline void prefetch_to_read(const uint8_t* begin, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(begin + i, 0);
}

__attribute__((always_inline)) inline void prefetch_to_write(const uint8_t* begin, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kCacheLine) {
#if UZIP_X86
    // The builtin gives this instruction only to compilers that are told of it. Where it does not
    // exist it does nothing.
    asm volatile("prefetchw (%0)" ::"r"(begin + i));
#else
    __builtin_prefetch(begin + i, 1);
#endif
  }
}

}  // namespace uzip
