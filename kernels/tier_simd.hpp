// The coder of whole tiles, written once for vectors of any width. Include it inside of a target
// region that has BMI2, behind a class V of vector operations (tier_avx2.cpp documents them).
//
// Why it is fast: the order of positions is the one in which 128-bit lanes come out of packs and
// unpacks, so that splitting and joining need no shuffle between lanes, and one byte shuffle turns
// symbols into ranks or back.
#include "tier_levels.hpp"
#include "tier_mask.hpp"

namespace uzip {
namespace {

// --- Values as bytes: b[i] holds byte i of the values at V::kBytes positions
// --------------------------------------

// Rows `a` and `b` are those of the first and second 8 of 16 positions, already at the first lane.
template <class V, int kItemsize>
void load_bytes(const uint8_t* a, const uint8_t* b, typename V::Reg* out) {
  using Reg = typename V::Reg;
  if constexpr (kItemsize == 1) {
    out[0] = V::load_halves(a, b);
  } else if constexpr (kItemsize == 2) {
    const Reg low = V::set16(0xFF);
    const Reg x = V::load(a);
    const Reg y = V::load(b);
    out[0] = V::packus16(V::and_(x, low), V::and_(y, low));
    out[1] = V::packus16(V::template srl16<8>(x), V::template srl16<8>(y));
  } else if constexpr (kItemsize == 4) {
    const Reg by_byte = V::table({0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15});
    const Reg p = V::shuffle8(V::template load_lanes<32>(a), by_byte);
    const Reg q = V::shuffle8(V::template load_lanes<32>(a + 16), by_byte);
    const Reg r = V::shuffle8(V::template load_lanes<32>(b), by_byte);
    const Reg s = V::shuffle8(V::template load_lanes<32>(b + 16), by_byte);
    const Reg pq = V::unpacklo32(p, q);
    const Reg rs = V::unpacklo32(r, s);
    out[0] = V::unpacklo64(pq, rs);
    out[1] = V::unpackhi64(pq, rs);
    const Reg pq_high = V::unpackhi32(p, q);
    const Reg rs_high = V::unpackhi32(r, s);
    out[2] = V::unpacklo64(pq_high, rs_high);
    out[3] = V::unpackhi64(pq_high, rs_high);
  } else {
    const Reg by_byte = V::table({0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15});
    Reg pairs[8];  // word i: byte i of two values
    for (int i = 0; i < 4; ++i) {
      pairs[i] = V::shuffle8(V::template load_lanes<64>(a + 16 * i), by_byte);
      pairs[i + 4] = V::shuffle8(V::template load_lanes<64>(b + 16 * i), by_byte);
    }
    Reg fours[8];  // [4 * high + i]: dword j: byte 4 * high + j of the values 4 * i .. 4 * i + 3
    for (int i = 0; i < 4; ++i) {
      fours[i] = V::unpacklo16(pairs[2 * i], pairs[2 * i + 1]);
      fours[4 + i] = V::unpackhi16(pairs[2 * i], pairs[2 * i + 1]);
    }
    for (int high = 0; high < 2; ++high) {
      const Reg* f = fours + 4 * high;
      Reg* to = out + 4 * high;
      const Reg x = V::unpacklo32(f[0], f[1]);
      const Reg y = V::unpacklo32(f[2], f[3]);
      to[0] = V::unpacklo64(x, y);
      to[1] = V::unpackhi64(x, y);
      const Reg z = V::unpackhi32(f[0], f[1]);
      const Reg w = V::unpackhi32(f[2], f[3]);
      to[2] = V::unpacklo64(z, w);
      to[3] = V::unpackhi64(z, w);
    }
  }
}

template <class V, int kItemsize>
void store_bytes(const typename V::Reg* in, uint8_t* a, uint8_t* b) {
  using Reg = typename V::Reg;
  if constexpr (kItemsize == 1) {
    V::store_halves(a, b, in[0]);
  } else if constexpr (kItemsize == 2) {
    V::store(a, V::unpacklo8(in[0], in[1]));
    V::store(b, V::unpackhi8(in[0], in[1]));
  } else if constexpr (kItemsize == 4) {
    const Reg a01 = V::unpacklo8(in[0], in[1]);
    const Reg a23 = V::unpacklo8(in[2], in[3]);
    const Reg b01 = V::unpackhi8(in[0], in[1]);
    const Reg b23 = V::unpackhi8(in[2], in[3]);
    V::template store_lanes<32>(a, V::unpacklo16(a01, a23));
    V::template store_lanes<32>(a + 16, V::unpackhi16(a01, a23));
    V::template store_lanes<32>(b, V::unpacklo16(b01, b23));
    V::template store_lanes<32>(b + 16, V::unpackhi16(b01, b23));
  } else {
    for (int row = 0; row < 2; ++row) {
      Reg pairs[4];  // bytes 2 * i and 2 * i + 1 of 8 values
      for (int i = 0; i < 4; ++i) {
        pairs[i] = row == 0 ? V::unpacklo8(in[2 * i], in[2 * i + 1])
                            : V::unpackhi8(in[2 * i], in[2 * i + 1]);
      }
      const Reg low[2] = {V::unpacklo16(pairs[0], pairs[1]), V::unpackhi16(pairs[0], pairs[1])};
      const Reg high[2] = {V::unpacklo16(pairs[2], pairs[3]), V::unpackhi16(pairs[2], pairs[3])};
      uint8_t* to = row == 0 ? a : b;
      for (int i = 0; i < 2; ++i) {
        V::template store_lanes<64>(to + 32 * i, V::unpacklo32(low[i], high[i]));
        V::template store_lanes<64>(to + 32 * i + 16, V::unpackhi32(low[i], high[i]));
      }
    }
  }
}

// --- Fields: bytes of values to symbols and planes, and back
// -----------------------------------------------------

// sub[0], sub[1]: the fields of the sub-byte planes; one of 1 bit stands in the byte's highest bit.
template <class V>
struct Fields {
  using Reg = typename V::Reg;
  Reg planes[kMaxBytePlanes];
  Reg sub[kMaxSubPlanes];
  Reg offset;  // of the symbol in the window; any number above 15 outside of it
};

template <class V, DType kDType>
void split_fields(const typename V::Reg* b, int base, Fields<V>* f) {
  using Reg = typename V::Reg;
  constexpr FloatFormat kFormat = float_format(kDType);
  const Reg top = b[kFormat.itemsize - 1];
  for (int i = 0; i < kFormat.byte_planes; ++i) f->planes[i] = b[i];
  if constexpr (kDType == DType::kBFloat16 || kDType == DType::kFloat32) {
    const Reg below = b[kFormat.itemsize - 2];
    const Reg symbol = V::or_(V::add8(top, top), V::and_(V::template srl16<7>(below), V::set8(1)));
    f->planes[kFormat.byte_planes - 1] =
        V::or_(V::and_(below, V::set8(0x7F)), V::and_(top, V::set8(0x80)));
    f->offset = V::sub8(symbol, V::set8(base));
  } else if constexpr (kDType == DType::kFloat64) {
    const Reg below = b[6];
    const Reg nibble = V::set8(15);
    const Reg low = V::or_(V::and_(V::template srl16<4>(below), nibble),
                           V::and_(V::template sll16<4>(top), V::set8(0xF0)));
    const Reg high = V::and_(V::template srl16<4>(top), V::set8(7));
    const Reg base16 = V::set16(base);
    const Reg mask = V::set16(kFormat.symbols() - 1);
    f->offset = V::packus16(V::and_(V::sub16(V::unpacklo8(low, high), base16), mask),
                            V::and_(V::sub16(V::unpackhi8(low, high), base16), mask));
    f->sub[0] = V::and_(below, nibble);
    f->sub[1] = top;
  } else {
    constexpr int kShift = kDType == DType::kFloat8E4M3FN ? 3 : 2;  // mantissa bits in the top byte
    const Reg symbol = V::template srl16<kShift>(top);
    f->offset = V::and_(V::sub8(symbol, V::set8(base)), V::set8(kFormat.symbols() - 1));
    if constexpr (kDType == DType::kFloat8E4M3FN) {
      f->sub[0] = V::or_(V::and_(top, V::set8(7)), V::and_(V::template srl16<4>(top), V::set8(8)));
    } else {
      f->sub[0] = V::and_(top, V::set8(3));
      f->sub[1] = top;
    }
  }
}

// `exponent`: the bits of the symbol in the highest byte and in the one below.
template <class V, DType kDType>
void join_fields(const Fields<V>& f, const typename V::Reg* exponent, typename V::Reg* b) {
  constexpr FloatFormat kFormat = float_format(kDType);
  constexpr int kTop = kFormat.itemsize - 1;
  const auto sign = V::set8(0x80);
  for (int i = 0; i < kFormat.byte_planes; ++i) b[i] = f.planes[i];
  if constexpr (kDType == DType::kBFloat16 || kDType == DType::kFloat32) {
    const auto plane = f.planes[kFormat.byte_planes - 1];
    b[kTop] = V::or_(V::and_(plane, sign), exponent[0]);
    b[kTop - 1] = V::or_(V::and_(plane, V::set8(0x7F)), exponent[1]);
  } else if constexpr (kDType == DType::kFloat64) {
    b[kTop] = V::or_(V::and_(f.sub[1], sign), exponent[0]);
    b[kTop - 1] = V::or_(f.sub[0], exponent[1]);
  } else if constexpr (kDType == DType::kFloat8E4M3FN) {
    const auto signs = V::and_(V::template sll16<4>(f.sub[0]), sign);
    b[kTop] = V::or_(V::or_(V::and_(f.sub[0], V::set8(7)), signs), exponent[0]);
  } else {
    b[kTop] = V::or_(V::or_(f.sub[0], V::and_(f.sub[1], sign)), exponent[0]);
  }
}

// --- Planes of narrow fields, from and to bytes
// --------------------------------------------------------------------

// Four vectors of two-bit fields to one vector of their plane.
template <class V>
typename V::Reg pack_two_bits(const typename V::Reg* fields) {
  const auto pair = V::set16(0x0401);      // weights 1, 4
  const auto four = V::set32(0x00100001);  // weights 1, 16
  const auto bytes = [&](int i) { return V::madd16(V::maddubs(fields[i], pair), four); };
  const auto low = V::packs32(bytes(0), bytes(1));
  const auto high = V::packs32(bytes(2), bytes(3));
  return V::pack_order32(V::packus16(low, high));
}

template <class V>
void pack_plane(const uint8_t* fields, int width, uint8_t* plane) {
  constexpr int kBytes = V::kBytes;
  if (width == 4) {
    const auto weights = V::set16(0x1001);  // 1, 16
    for (int p = 0; p < kTileValues; p += 2 * kBytes) {
      const auto low = V::maddubs(V::load(fields + p), weights);
      const auto high = V::maddubs(V::load(fields + p + kBytes), weights);
      V::store(plane + p / 2, V::pack_order64(V::packus16(low, high)));
    }
  } else if (width == 2) {
    for (int p = 0; p < kTileValues; p += 4 * kBytes) {
      typename V::Reg quarter[4];
      for (int i = 0; i < 4; ++i) quarter[i] = V::load(fields + p + i * kBytes);
      V::store(plane + p / 4, pack_two_bits<V>(quarter));
    }
  } else {
    for (int p = 0; p < kTileValues; p += kBytes) {
      store(plane + p / 8, V::sign_bits(V::load(fields + p)));
    }
  }
}

template <class V>
void unpack_plane(const uint8_t* plane, int width, uint8_t* fields) {
  constexpr int kBytes = V::kBytes;
  if (width == 4) {
    const auto nibble = V::set8(15);
    for (int p = 0; p < kTileValues; p += 2 * kBytes) {
      const auto bytes = V::unpack_order64(V::load(plane + p / 2));
      const auto low = V::and_(bytes, nibble);
      const auto high = V::and_(V::template srl16<4>(bytes), nibble);
      V::store(fields + p, V::unpacklo8(low, high));
      V::store(fields + p + kBytes, V::unpackhi8(low, high));
    }
  } else if (width == 2) {
    const auto mask = V::set8(3);
    for (int p = 0; p < kTileValues; p += 4 * kBytes) {
      const auto bytes = V::unpack_order32(V::load(plane + p / 4));
      const auto d0 = V::and_(bytes, mask);
      const auto d1 = V::and_(V::template srl16<2>(bytes), mask);
      const auto d2 = V::and_(V::template srl16<4>(bytes), mask);
      const auto d3 = V::and_(V::template srl16<6>(bytes), mask);
      const auto low01 = V::unpacklo8(d0, d1);
      const auto low23 = V::unpacklo8(d2, d3);
      const auto high01 = V::unpackhi8(d0, d1);
      const auto high23 = V::unpackhi8(d2, d3);
      V::store(fields + p, V::unpacklo16(low01, low23));
      V::store(fields + p + kBytes, V::unpackhi16(low01, low23));
      V::store(fields + p + 2 * kBytes, V::unpacklo16(high01, high23));
      V::store(fields + p + 3 * kBytes, V::unpackhi16(high01, high23));
    }
  } else {
    for (int p = 0; p < kTileValues; p += kBytes)
      V::store(fields + p, V::spread_bits(plane + p / 8));
  }
}

// --- Tiles
// ----------------------------------------------------------------------------------------------------------

template <class V>
bool is_zero(const uint8_t* plane) {
  auto any = V::set8(0);
  for (int p = 0; p < kTileValues; p += V::kBytes) any = V::or_(any, V::load(plane + p));
  return V::equal_bits(any, V::set8(0)) == static_cast<typename V::Mask>(~typename V::Mask{0});
}

// Calls visit(position) for every rank that is n_ranks, in order. Returns how many there are.
template <class V, typename Visit>
int for_each_unranked(const uint8_t* ranks, int n_ranks, Visit visit) {
  const auto wanted = V::set8(n_ranks);
  int n = 0;
  for (int p = 0; p < kTileValues; p += V::kBytes) {
    auto bits = V::equal_bits(V::load(ranks + p), wanted);
    n += static_cast<int>(_mm_popcnt_u64(bits));
    for (; bits != 0; bits &= bits - 1) visit(p + static_cast<int>(_tzcnt_u64(bits)));
  }
  return n;
}

alignas(64) constexpr uint8_t kZeroPlane[kTileValues] = {};

template <class V, DType kDType>
class SimdTier {
  using Reg = typename V::Reg;
  static constexpr FloatFormat kFormat = float_format(kDType);
  static constexpr bool kSub0 = kFormat.sub_bits[0] != 0;
  static constexpr bool kSub1 = kFormat.sub_bits[1] != 0;

  // Byte planes go to the head, or to `absent` where they are not stored; all else is left in
  // bytes.
  static void split(const TierCode& code, const uint8_t* values, uint8_t* head, uint8_t* absent,
                    uint8_t (*sub)[kTileValues], uint8_t* ranks) {
    const Reg ranks_of_window = V::table(code.ranks_below);
    const Reg n_ranks = V::set8(code.n_ranks);
    const Reg to_table =
        V::set8(0x70);  // offsets above 15 get their highest bit: the shuffle gives 0
    uint8_t* planes[kMaxBytePlanes + 1];
    for (int i = 0; i < kFormat.byte_planes; ++i) {
      planes[i] =
          code.byte_plane[i] == kAbsent ? absent + i * kTileValues : head + code.byte_plane[i];
    }
    for (int p = 0; p < kTileValues; p += V::kBytes) {
      const uint8_t* row = values + value_of_position(p) * kFormat.itemsize;
      Reg bytes[kFormat.itemsize];
      Fields<V> fields;
      load_bytes<V, kFormat.itemsize>(row, row + 256 * kFormat.itemsize, bytes);
      split_fields<V, kDType>(bytes, code.base, &fields);
      for (int i = 0; i < kFormat.byte_planes; ++i) V::store(planes[i] + p, fields.planes[i]);
      if constexpr (kSub0) V::store(sub[0] + p, fields.sub[0]);
      if constexpr (kSub1) V::store(sub[1] + p, fields.sub[1]);
      const Reg below = V::shuffle8(ranks_of_window, V::adds8(fields.offset, to_table));
      V::store(ranks + p, V::sub8(n_ranks, below));
    }
  }

  static void join(const TierCode& code, const uint8_t* head, const uint8_t* ranks,
                   const uint8_t (*sub)[kTileValues], uint8_t* values) {
    const Reg tables[2] = {V::table(code.exponent_bytes[0]), V::table(code.exponent_bytes[1])};
    const uint8_t* planes[kMaxBytePlanes + 1];
    for (int i = 0; i < kFormat.byte_planes; ++i) {
      planes[i] = code.byte_plane[i] == kAbsent ? kZeroPlane : head + code.byte_plane[i];
    }
    for (int p = 0; p < kTileValues; p += V::kBytes) {
      Reg bytes[kFormat.itemsize];
      Fields<V> fields;
      for (int i = 0; i < kFormat.byte_planes; ++i) fields.planes[i] = V::load(planes[i] + p);
      if constexpr (kSub0) fields.sub[0] = V::load(sub[0] + p);
      if constexpr (kSub1) fields.sub[1] = V::load(sub[1] + p);
      const Reg rank = V::load(ranks + p);
      const Reg exponent[2] = {V::shuffle8(tables[0], rank), V::shuffle8(tables[1], rank)};
      join_fields<V, kDType>(fields, exponent, bytes);
      uint8_t* row = values + value_of_position(p) * kFormat.itemsize;
      store_bytes<V, kFormat.itemsize>(bytes, row, row + 256 * kFormat.itemsize);
    }
  }

 public:
  static int encode(const TierCode& code, const uint8_t* values, uint8_t* head, uint8_t* tail) {
    alignas(64) uint8_t ranks[kTileValues];
    alignas(64) uint8_t sub[kMaxSubPlanes][kTileValues];
    alignas(64) uint8_t absent[kMaxBytePlanes * kTileValues];
    split(code, values, head, absent, sub, ranks);
    for (int i = 0; i < kFormat.byte_planes; ++i) {
      if (code.byte_plane[i] == kAbsent && !is_zero<V>(absent + i * kTileValues))
        return kNotCodable;
    }
    for (int i = 0; i < kMaxSubPlanes && kFormat.sub_bits[i] != 0; ++i) {
      pack_plane<V>(sub[i], kFormat.sub_bits[i], head + code.sub_plane[i]);
    }
    uint8_t* end = tail;
    int n = 1;
    if (code.widths[0] == 4) {
      pack_plane<V>(ranks, 4, head + code.digits);
    } else {
      Nibbles nibbles;
      pack_plane<V>(ranks, 4, reinterpret_cast<uint8_t*>(nibbles.words));
      end = store_levels<V>(code, &nibbles, head + code.digits, tail, &n);
    }
    if (n != 0) {
      for_each_unranked<V>(ranks, code.n_ranks,
                           [&](int p) { end = put_raw_symbol<kDType>(values, p, end); });
    }
    return static_cast<int>(end - tail);
  }

  static int decode(const TierCode& code, const uint8_t* head, const uint8_t* tail, int tail_bytes,
                    uint8_t* values) {
    alignas(64) uint8_t ranks[kTileValues];
    alignas(64) uint8_t sub[kMaxSubPlanes][kTileValues];
    const uint8_t* end = tail + tail_bytes;
    const uint8_t* next = tail;
    int n = 0;
    if (code.widths[0] == 4) {
      unpack_plane<V>(head + code.digits, 4, ranks);
      n = for_each_unranked<V>(ranks, code.n_ranks, [](int) {});
    } else {
      Nibbles nibbles;
      next = load_levels<V>(code, head + code.digits, tail, end, &nibbles, &n);
      if (next == nullptr) return kMalformed;
      unpack_plane<V>(reinterpret_cast<const uint8_t*>(nibbles.words), 4, ranks);
    }
    if (end - next < n * kFormat.symbol_bytes()) return kMalformed;
    for (int i = 0; i < kMaxSubPlanes && kFormat.sub_bits[i] != 0; ++i) {
      unpack_plane<V>(head + code.sub_plane[i], kFormat.sub_bits[i], sub[i]);
    }
    join(code, head, ranks, sub, values);
    if (n != 0) {
      for_each_unranked<V>(ranks, code.n_ranks,
                           [&](int p) { next = take_raw_symbol<kDType>(next, p, values); });
    }
    return static_cast<int>(next - tail);
  }
};

template <class V, DType kDType>
constexpr TierCoder simd_coder() {
  using Word = typename Value<kDType>::Word;
  return {SimdTier<V, kDType>::encode, SimdTier<V, kDType>::decode, compact<Word>, expand<Word>};
}

template <class V>
TierCoder simd_coder_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return simd_coder<V, DType::kBFloat16>();
    case DType::kFloat16:
      return simd_coder<V, DType::kFloat16>();
    case DType::kFloat32:
      return simd_coder<V, DType::kFloat32>();
    case DType::kFloat64:
      return simd_coder<V, DType::kFloat64>();
    case DType::kFloat8E4M3FN:
      return simd_coder<V, DType::kFloat8E4M3FN>();
    case DType::kFloat8E5M2:
      return simd_coder<V, DType::kFloat8E5M2>();
    default:
      return {};
  }
}

}  // namespace
}  // namespace uzip
