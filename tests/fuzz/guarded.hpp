// What the fuzz targets share: memory whose neighbours may not be touched, and checks that stop the
// run.
#pragma once

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace uzip::fuzz {

inline void check(bool holds, const char* expected) {
  if (holds) return;
  std::fprintf(stderr, "expected %s\n", expected);
  std::abort();  // libFuzzer keeps the input
}

// Memory that ends where a page may not be touched, and is poisoned before its beginning. The page
// also stops the vector instructions that the address sanitizer does not look at.
class Guarded {
 public:
  explicit Guarded(size_t capacity) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = (capacity + 2 * page - 1) / page * page;
    void* memory =
        mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED && mprotect(static_cast<uint8_t*>(memory) + bytes, page, 0) == 0,
          "guarded memory");
    taken_ = static_cast<uint8_t*>(memory);
    end_ = taken_ + bytes;
  }

  // The last n bytes, filled with `byte`; whatever was given before is void.
  uint8_t* take(size_t n, int byte) {
    uint8_t* before = taken_;
    taken_ = end_ - n;
    if (taken_ < before) ASAN_UNPOISON_MEMORY_REGION(taken_, static_cast<size_t>(before - taken_));
    if (before < taken_) ASAN_POISON_MEMORY_REGION(before, static_cast<size_t>(taken_ - before));
    std::memset(taken_, byte, n);
    return taken_;
  }

  uint8_t* copy(const uint8_t* bytes, size_t n) {
    uint8_t* taken = take(n, 0);
    if (n != 0) std::memcpy(taken, bytes, n);
    return taken;
  }

 private:
  uint8_t* taken_;  // all before it is poisoned
  uint8_t* end_;
};

}  // namespace uzip::fuzz
