// Four fields of a register at a time. A "quad" is a word whose bytes belong to four neighbouring
// values.
//
// Packing and unpacking of planes, table look-ups and comparisons for quads, a few instructions
// each, all of them multiplications and byte permutations, as a GPU has no instruction for bit
// fields of a word.
#pragma once

#include "platform.hpp"

namespace uzip::gpu {

constexpr uint32_t kOnes = 0x01010101u;

// The quad of a byte.
UZIP_DEVICE constexpr uint32_t repeat(int byte) { return static_cast<uint32_t>(byte) * kOnes; }

// Bytes of b:a chosen by the nibbles of `selector`; a nibble above 7 spreads the top bit of byte
// nibble - 8.
UZIP_DEVICE uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
#if UZIP_PTX
  uint32_t word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(selector));
  return word;
#else
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t choice = selector >> 4 * i & 15;
    uint32_t byte = ((choice & 4) != 0 ? b : a) >> 8 * (choice & 3) & 0xFF;
    if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    word |= byte << 8 * i;
  }
  return word;
#endif
}

// The bits of `low` where the mask is set, else those of `high`.
UZIP_DEVICE uint32_t blend(uint32_t mask, uint32_t low, uint32_t high) {
#if UZIP_PTX
  // One instruction; compilers make two of a constant mask and its complement.
  uint32_t word;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(word) : "r"(mask), "r"(low), "r"(high));
  return word;
#else
  return (low & mask) | (high & ~mask);
#endif
}

// high:low shifted by 0..31 bits; the upper, or the lower word of the result.
UZIP_DEVICE uint32_t funnel_left(uint32_t low, uint32_t high, int shift) {
#if UZIP_PTX
  return __funnelshift_l(low, high, static_cast<unsigned>(shift));
#else
  return static_cast<uint32_t>(((uint64_t{high} << 32 | low) << (shift & 31)) >> 32);
#endif
}
UZIP_DEVICE uint32_t funnel_right(uint32_t low, uint32_t high, int shift) {
#if UZIP_PTX
  return __funnelshift_r(low, high, static_cast<unsigned>(shift));
#else
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
#endif
}

// A multiplication by this moves bit 0 of each byte to the top four bits.
constexpr uint32_t kGatherBits = 0x10204080u;
// And by this bits 0 and 1 of each byte to the top eight.
constexpr uint32_t kGatherPairs = 0x01041040u;

// Packs the fields of a quad, each below 2^kWidth, into the top 4 * kWidth bits; below them is
// rubbish.
template <int kWidth>
UZIP_DEVICE uint32_t pack_top(uint32_t fields) {
  static_assert(kWidth == 1 || kWidth == 2 || kWidth == 4);
  if constexpr (kWidth == 1) return fields * kGatherBits;
  if constexpr (kWidth == 2) return fields * kGatherPairs;
  return permute(fields | fields >> 4, 0, 0x2044);
}

// The fields of width kWidth in the low bits of `plane`, one per byte.
template <int kWidth>
UZIP_DEVICE uint32_t unpack(uint32_t plane) {
  static_assert(kWidth == 1 || kWidth == 2 || kWidth == 4);
  if constexpr (kWidth == 1) return ((plane & 0xF) * 0x00204081u) & kOnes;
  if constexpr (kWidth == 2) {
    const uint32_t nibbles = ((plane & 0xFF) * 0x1001u) & 0x000F000Fu;
    return (nibbles | nibbles << 6) & 0x03030303u;
  }
  const uint32_t bytes = permute(plane, 0, 0x4140);
  return (bytes | bytes << 4) & 0x0F0F0F0Fu;
}

// One bit per byte of `fields`: bit kBit, which must be the only one, packed into the top four
// bits.
template <int kBit>
UZIP_DEVICE uint32_t pack_flags(uint32_t flags) {
  return flags * (kGatherBits >> kBit);
}

// The low nibbles of four bytes, as a selector.
UZIP_DEVICE uint32_t selector_of(uint32_t bytes) {
  return permute(blend(0x0F0F0F0Fu, bytes, bytes >> 4), 0, 0x4420);
}

// A table of 16 bytes below 128, looked up for the four nibbles of a selector.
struct Table {
  uint32_t words[4];

  UZIP_DEVICE uint32_t lookup(uint32_t selector) const {
    // The half that a nibble does not mean yields the top bits of its bytes: zeros.
    return permute(words[0], words[1], selector) | permute(words[2], words[3], selector ^ 0x8888u);
  }
};

// Byte by byte, modulo 256.
UZIP_DEVICE uint32_t subtract_bytes(uint32_t a, uint32_t b) {
  constexpr uint32_t kHigh = 0x80808080u;
  return ((a | kHigh) - (b & ~kHigh)) ^ ((a ^ ~b) & kHigh);
}
UZIP_DEVICE uint32_t add_bytes(uint32_t a, uint32_t b) {
  constexpr uint32_t kHigh = 0x80808080u;
  return ((a & ~kHigh) + (b & ~kHigh)) ^ ((a ^ b) & kHigh);
}

// A place in shared memory. As a pointer it would take two registers, and an addition each time.
#if UZIP_PTX
using SharedPlace = uint32_t;
UZIP_DEVICE SharedPlace shared_place(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
#else
using SharedPlace = const uint8_t*;
UZIP_DEVICE SharedPlace shared_place(const void* pointer) {
  return static_cast<SharedPlace>(pointer);
}
#endif

// Four bytes of shared memory from any place.
UZIP_DEVICE uint32_t load_bytes(SharedPlace place) {
#if UZIP_PTX
  uint32_t word;
  asm volatile(
      "{ .reg .b32 at, low, high, shift;\n"
      "and.b32 at, %1, 0xFFFFFFFC;\n"
      "shl.b32 shift, %1, 3;\n"
      "ld.shared.u32 low, [at];\n"
      "ld.shared.u32 high, [at + 4];\n"
      "shf.r.wrap.b32 %0, low, high, shift; }"
      : "=r"(word)
      : "r"(place)
      : "memory");
  return word;
#else
  const auto address = reinterpret_cast<uintptr_t>(place);
  const auto* words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
  return funnel_right(words[0], words[1], static_cast<int>(8 * (address & 3)));
#endif
}

// The lowest bits set, as many as a number from 0 on says.
UZIP_DEVICE uint32_t low_bits(int n) {
#if UZIP_PTX
  return __funnelshift_lc(~0u, 0, static_cast<unsigned>(n));
#else
  return n < 32 ? (1u << n) - 1 : ~0u;
#endif
}

// Sixteen bytes of memory, moved at once.
struct alignas(16) Chunk {
  uint32_t words[4];
};

// `sum`, and in lanes from `by` on the sum of the lane `by` below as well.
UZIP_DEVICE uint32_t add_from_below(uint32_t sum, int by, int lane) {
#if UZIP_PTX
  // The shuffle says itself whether there is such a lane.
  (void)lane;
  asm volatile(
      "{ .reg .b32 below; .reg .pred has;\n"
      "shfl.sync.up.b32 below|has, %0, %1, 0, 0xFFFFFFFF;\n"
      "@has add.u32 %0, %0, below; }"
      : "+r"(sum)
      : "r"(by));
  return sum;
#else
  const uint32_t below = shuffle_up32(sum, by);
  return lane >= by ? sum + below : sum;
#endif
}

// Exclusive sums over the 32 lanes of counts that are packed into words such that they do not
// overflow; `total` of all lanes.
UZIP_DEVICE uint32_t scan32(uint32_t counts, int lane) {
  uint32_t sum = counts;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) sum = add_from_below(sum, by, lane);
  return sum - counts;
}
UZIP_DEVICE uint32_t scan32(uint32_t counts, int lane, uint32_t* total) {
  const uint32_t before = scan32(counts, lane);
  *total = shuffle32(before + counts, 31);
  return before;
}

UZIP_DEVICE bool any32(bool vote) { return ballot32(vote) != 0; }

}  // namespace uzip::gpu
