// The digits of ranks, for processors with BMI2. Include it inside of a target region that has it,
// behind a class V of vector operations (tier_avx2.cpp documents them).
//
// Ranks stand in nibbles. A level takes the low bits of all nibbles, and the ranks of the values
// that escape move together by pext, so every level works on what is left of the one before. The
// decoder goes the other way with pdep: the sums of the digits of a level's escapes are put back to
// where they came from.
#include "tier.hpp"

namespace uzip {
namespace {

constexpr int kNibbleWords = kTileValues / 16;  // of 64 bits
constexpr uint64_t kOnes = 0x1111111111111111;  // the lowest bit of each nibble

// The nibbles of a tile, and what vectors and words may touch behind them.
struct Nibbles {
  alignas(64) uint64_t words[kNibbleWords + 16];
};

constexpr int words_of(int n) { return (n + 15) / 16; }

// Words up to the end of the two vectors in which the n-th nibble is.
template <class V>
constexpr int padded_words_of(int n) {
  return (n + 4 * V::kBytes - 1) / (4 * V::kBytes) * (V::kBytes / 4);
}

// In the lowest bit of each nibble: is the rank at least 2^kWidth - 1?
template <class V, int kWidth>
typename V::Reg escaping(typename V::Reg ranks) {
  const auto bit1 = V::template srl16<1>(ranks);
  const auto bit2 = V::template srl16<2>(ranks);
  const auto bit3 = V::template srl16<3>(ranks);
  const auto ones = V::set8(0x11);
  if constexpr (kWidth == 1) return V::and_(V::or_(V::or_(ranks, bit1), V::or_(bit2, bit3)), ones);
  if constexpr (kWidth == 2) return V::and_(V::or_(V::and_(ranks, bit1), V::or_(bit2, bit3)), ones);
  return V::and_(V::or_(V::and_(ranks, V::and_(bit1, bit2)), bit3), ones);
}

// In the lowest bit of each nibble: is the digit the escape?
template <class V, int kWidth>
typename V::Reg escape_digits(typename V::Reg digits) {
  auto escapes = V::and_(digits, V::set8(0x11));
  if constexpr (kWidth >= 2) escapes = V::and_(escapes, V::template srl16<1>(digits));
  if constexpr (kWidth >= 3) escapes = V::and_(escapes, V::template srl16<2>(digits));
  return escapes;
}

// The lowest bit of each nibble, times 2^kWidth - 1.
template <class V, int kWidth>
typename V::Reg times_escape(typename V::Reg bits) {
  if constexpr (kWidth == 1) return bits;
  return V::sub16(V::template sll16<kWidth>(bits), bits);
}

// Writes bits one behind the other, `place` being the byte that is not yet full.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* place) : place_(place) {}

  // Up to 64 bits. Touches 8 bytes.
  void put(uint64_t bits, unsigned n) {
    const unsigned total = filled_ + n;
    pending_ |= bits << filled_;
    store(place_, pending_);
    if (total < 64) {
      pending_ >>= total & 56;
      place_ += total >> 3;
      filled_ = total & 7;
    } else {
      pending_ = filled_ == 0 ? 0 : bits >> (64 - filled_);
      place_ += 8;
      filled_ = total - 64;
    }
  }

  uint8_t* place() const { return place_; }
  uint64_t pending() const { return pending_; }
  unsigned filled() const { return filled_; }

 private:
  uint8_t* place_;
  uint64_t pending_ = 0;
  unsigned filled_ = 0;  // bits of pending
};

inline unsigned count_bits(uint64_t word) { return static_cast<unsigned>(_mm_popcnt_u64(word)); }

// Reads nibbles one behind the other.
class NibbleReader {
 public:
  explicit NibbleReader(const void* begin) : begin_(static_cast<const uint8_t*>(begin)) {}

  // The next 15 nibbles, the next 16.
  uint64_t peek_15() const { return load<uint64_t>(begin_ + (bit_ >> 3)) >> (bit_ & 7); }
  uint64_t peek_16() const {
    const uint64_t last = begin_[(bit_ >> 3) + 8];
    return peek_15() | (last << 1) << (63 - (bit_ & 7));
  }
  void skip(unsigned bits) { bit_ += bits; }

 private:
  const uint8_t* begin_;
  unsigned bit_ = 0;
};

// Of the values that meet a digit of one bit about half escape, of others few. Then two words are
// handled as one, as long as their nibbles fit into it; with half of them it would be a coin toss,
// and mispredicted, whether they do.
constexpr bool escapes_are_rare(int width) { return width > 1; }

// Moves the nibbles under the masks together, in place. Returns their number; those behind them
// become 0, up to the end of the vectors. Words are read before the writer gets there.
template <class V, bool kRare>
int compress(Nibbles* nibbles, const Nibbles& masks, int n) {
  const int words = (words_of(n) + 1) & ~1;
  auto* const begin = reinterpret_cast<uint8_t*>(nibbles->words);
  BitWriter writer(begin);
  for (int i = 0; i < words; i += 2) {
    const uint64_t first = _pext_u64(nibbles->words[i], masks.words[i]);
    const uint64_t second = _pext_u64(nibbles->words[i + 1], masks.words[i + 1]);
    const unsigned first_bits = count_bits(masks.words[i]);
    const unsigned second_bits = count_bits(masks.words[i + 1]);
    if (kRare && first_bits + second_bits < 64) {
      writer.put(first | second << first_bits, first_bits + second_bits);
    } else {
      writer.put(first, first_bits);
      writer.put(second, second_bits);
    }
  }
  for (int i = 0; i < 2; ++i) V::store(writer.place() + i * V::kBytes, V::set8(0));
  store(writer.place(), writer.pending());
  return static_cast<int>(writer.place() - begin) * 2 + static_cast<int>(writer.filled() / 4);
}

// The inverse of compress(), added to what is there.
template <bool kRare>
void add_expanded(const Nibbles& compressed, const Nibbles& masks, int n, Nibbles* nibbles) {
  const int words = (words_of(n) + 1) & ~1;
  NibbleReader reader(compressed.words);
  for (int i = 0; i < words; i += 2) {
    const unsigned first_bits = count_bits(masks.words[i]);
    const unsigned second_bits = count_bits(masks.words[i + 1]);
    uint64_t first = 0;
    uint64_t second = 0;
    if (kRare && first_bits + second_bits < 64) {
      first = reader.peek_15();
      second = first >> first_bits;
      reader.skip(first_bits + second_bits);
    } else {
      first = reader.peek_16();
      reader.skip(first_bits);
      second = reader.peek_16();
      reader.skip(second_bits);
    }
    nibbles->words[i] += _pdep_u64(first, masks.words[i]);
    nibbles->words[i + 1] += _pdep_u64(second, masks.words[i + 1]);
  }
}

// Fields of two bits in the nibbles of two vectors, to one vector of their plane.
template <class V>
typename V::Reg pack_nibbles(typename V::Reg a, typename V::Reg b) {
  const auto four_bits = V::set8(15);
  const auto weights = V::set16(0x1001);  // 1, 16
  a = V::maddubs(V::and_(V::or_(a, V::template srl16<2>(a)), four_bits), weights);
  b = V::maddubs(V::and_(V::or_(b, V::template srl16<2>(b)), four_bits), weights);
  return V::pack_order64(V::packus16(a, b));
}

// The inverse, to out[0] and out[1].
template <class V>
void unpack_nibbles(typename V::Reg plane, typename V::Reg* out) {
  const auto low = V::set8(0x03);
  const auto high = V::set8(0x30);
  plane = V::unpack_order64(plane);
  const auto first = V::or_(V::and_(plane, low), V::and_(V::template sll16<2>(plane), high));
  const auto second =
      V::or_(V::and_(V::template srl16<4>(plane), low), V::and_(V::template srl16<2>(plane), high));
  out[0] = V::unpacklo8(first, second);
  out[1] = V::unpackhi8(first, second);
}

// Bit kBit of n nibbles to a plane of bits, and back; 16 at a time.
template <int kBit>
void store_bit(const Nibbles& nibbles, int n, uint8_t* plane) {
  for (int i = 0; i < words_of(n); ++i) {
    store(plane + 2 * i, static_cast<uint16_t>(_pext_u64(nibbles.words[i], kOnes << kBit)));
  }
}

inline void load_bits(const uint8_t* plane, int n, Nibbles* nibbles) {
  for (int i = 0; i < words_of(n); ++i) {
    nibbles->words[i] = _pdep_u64(load<uint16_t>(plane + 2 * i), kOnes);
  }
}

// As the highest bit of digits of 3 bits.
inline void add_bits(const uint8_t* plane, int n, Nibbles* nibbles) {
  for (int i = 0; i < words_of(n); ++i) {
    nibbles->words[i] |= _pdep_u64(load<uint16_t>(plane + 2 * i), kOnes << 2);
  }
}

// Writes the digits of n ranks and keeps, in place, what remains of the ranks that escaped: *n of
// them. Touches less than a vector behind the digits, and nothing where these are those of a whole
// tile.
template <class V, int kWidth>
uint8_t* store_level(Nibbles* ranks, int* n, uint8_t* out) {
  constexpr int kStep = V::kBytes / 8;  // words of a vector
  Nibbles digits;
  Nibbles masks;
  for (int i = 0; i < padded_words_of<V>(*n); i += 2 * kStep) {
    typename V::Reg pair[2];
    for (int k = 0; k < 2; ++k) {
      const int at = i + k * kStep;
      const auto rank = V::load(ranks->words + at);
      const auto escaped = escaping<V, kWidth>(rank);
      const auto escape = times_escape<V, kWidth>(escaped);
      pair[k] = V::or_(rank, escape);
      V::store(masks.words + at, times_escape<V, 4>(escaped));
      V::store(ranks->words + at, V::sub16(rank, escape));
      if constexpr (kWidth != 2) V::store(digits.words + at, pair[k]);
    }
    if constexpr (kWidth >= 2) {
      const auto two_bits = V::set8(0x33);
      V::store(out + 4 * i,
               pack_nibbles<V>(V::and_(pair[0], two_bits), V::and_(pair[1], two_bits)));
    }
  }
  if constexpr (kWidth == 1) store_bit<0>(digits, *n, out);
  out += plane_bytes(kWidth == 1 ? 1 : 2, *n);
  if constexpr (kWidth == 3) {
    store_bit<2>(digits, *n, out);
    out += plane_bytes(1, *n);
  }
  *n = compress<V, escapes_are_rare(kWidth)>(ranks, masks, *n);
  return out;
}

// Reads n digits, and the masks of those that are escapes. Returns how many these are. Reads up to
// a vector behind the digits, unless these are those of a whole tile.
template <class V, int kWidth>
int load_level(const uint8_t* in, int n, Nibbles* digits, Nibbles* masks) {
  constexpr int kStep = V::kBytes / 8;
  const int padded = padded_words_of<V>(n);
  if constexpr (kWidth == 1) {
    load_bits(in, n, digits);
  } else {
    for (int i = 0; i < padded; i += 2 * kStep) {
      typename V::Reg pair[2];
      unpack_nibbles<V>(V::load(in + 4 * i), pair);
      V::store(digits->words + i, pair[0]);
      V::store(digits->words + i + kStep, pair[1]);
    }
    if constexpr (kWidth == 3) add_bits(in + plane_bytes(2, n), n, digits);
  }
  // What stands behind the n digits is not theirs.
  if (n % 16 != 0) digits->words[n / 16] &= (uint64_t{1} << n % 16 * 4) - 1;
  for (int i = words_of(n); i < padded; ++i) digits->words[i] = 0;
  if constexpr (kWidth == 1) {
    unsigned escaped = 0;
    for (int i = 0; i < padded; ++i) {
      masks->words[i] = digits->words[i] * 15;
      escaped += count_bits(digits->words[i]);
    }
    return static_cast<int>(escaped);
  }
  auto counts = V::set8(0);  // at most 2 * 32 in a byte
  for (int i = 0; i < padded; i += kStep) {
    const auto escapes = escape_digits<V, kWidth>(V::load(digits->words + i));
    V::store(masks->words + i, times_escape<V, 4>(escapes));
    counts = V::add8(counts, V::and_(V::add8(escapes, V::template srl16<4>(escapes)), V::set8(15)));
  }
  return V::sum8(counts);
}

// Writes the digits of all levels but the 4-bit one, and destroys the ranks. Returns the end of the
// tail so far. *n: the values without a rank.
template <class V>
uint8_t* store_levels(const TierCode& code, Nibbles* ranks, uint8_t* plane, uint8_t* tail, int* n) {
  *n = kTileValues;
  for (int level = 0; level < code.levels && *n != 0; ++level) {
    uint8_t* out = level == 0 ? plane : tail;
    switch (code.widths[level]) {
      case 1:
        out = store_level<V, 1>(ranks, n, out);
        break;
      case 2:
        out = store_level<V, 2>(ranks, n, out);
        break;
      default:
        out = store_level<V, 3>(ranks, n, out);
    }
    if (level != 0) tail = out;
  }
  return tail;
}

template <class V>
int load_level_of(int width, const uint8_t* in, int n, Nibbles* digits, Nibbles* masks) {
  switch (width) {
    case 1:
      return load_level<V, 1>(in, n, digits, masks);
    case 2:
      return load_level<V, 2>(in, n, digits, masks);
    default:
      return load_level<V, 3>(in, n, digits, masks);
  }
}

// Reads the digits of all levels and adds them up to ranks. Returns the end of their planes in the
// tail, or nullptr if that passes `end`. *n: the values without a rank.
template <class V>
const uint8_t* load_levels(const TierCode& code, const uint8_t* plane, const uint8_t* tail,
                           const uint8_t* end, Nibbles* ranks, int* n) {
  Nibbles sums[kMaxLevels - 1];  // of the digits of the levels behind the first
  Nibbles masks[kMaxLevels];
  int counts[kMaxLevels];
  int level = 0;
  *n = kTileValues;
  for (; level < code.levels && *n != 0; ++level) {
    const int width = code.widths[level];
    const int bytes = width == 3 ? plane_bytes(2, *n) + plane_bytes(1, *n) : plane_bytes(width, *n);
    if (level != 0 && end - tail < bytes) return nullptr;
    counts[level] = *n;
    *n = load_level_of<V>(width, level == 0 ? plane : tail, *n,
                          level == 0 ? ranks : &sums[level - 1], &masks[level]);
    if (level != 0) tail += bytes;
  }
  for (--level; level > 0; --level) {
    Nibbles* digits = level == 1 ? ranks : &sums[level - 2];
    if (escapes_are_rare(code.widths[level - 1])) {
      add_expanded<true>(sums[level - 1], masks[level - 1], counts[level - 1], digits);
    } else {
      add_expanded<false>(sums[level - 1], masks[level - 1], counts[level - 1], digits);
    }
  }
  return tail;
}

}  // namespace
}  // namespace uzip
