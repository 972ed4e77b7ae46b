// The portable coder of whole tiles: one plain loop per step.
#include "tier.hpp"

namespace uzip {

TierCode make_tier_code(DType dtype, int menu, int base, const uint8_t order[kWindow],
                        int zero_planes) {
  const FloatFormat format = float_format(dtype);
  TierCode code{};
  code.dtype = dtype;
  code.menu = static_cast<uint8_t>(menu);
  code.base = static_cast<uint16_t>(base);
  code.zero_planes = static_cast<uint8_t>(zero_planes);
  code.n_ranks = static_cast<uint8_t>(menu_ranks(menu));
  for (int level = 0; level < kMaxLevels && kMenuWidths[menu][level] != 0; ++level) {
    code.widths[code.levels++] = kMenuWidths[menu][level];
  }
  std::memset(code.rank_of_offset, code.n_ranks, sizeof code.rank_of_offset);
  std::memcpy(code.order, order, sizeof code.order);
  for (int rank = 0; rank < code.n_ranks; ++rank) {
    code.rank_of_offset[order[rank]] = static_cast<uint8_t>(rank);
    const int symbol = (base + order[rank]) & (format.symbols() - 1);
    code.symbol_of_rank[rank] = static_cast<uint16_t>(symbol);
    const uint64_t placed = uint64_t{code.symbol_of_rank[rank]}
                            << (64 - 8 * format.itemsize + format.mantissa_bits);
    code.exponent_bytes[0][rank] = static_cast<uint8_t>(placed >> 56);
    code.exponent_bytes[1][rank] = static_cast<uint8_t>(placed >> 48);
  }
  for (int offset = 0; offset < kWindow; ++offset) {
    code.ranks_below[offset] = static_cast<uint8_t>(code.n_ranks - code.rank_of_offset[offset]);
  }
  int place = 0;
  for (int i = 0; i < format.byte_planes; ++i) {
    const bool stored = (zero_planes >> i & 1) == 0;
    code.byte_plane[i] = stored ? static_cast<uint16_t>(place) : kAbsent;
    place += stored ? kTileValues : 0;
  }
  for (int i = 0; i < kMaxSubPlanes; ++i) {
    code.sub_plane[i] = static_cast<uint16_t>(place);
    place += plane_bytes(format.sub_bits[i], kTileValues);
  }
  code.digits = static_cast<uint16_t>(place);
  code.stride = static_cast<uint16_t>(place + plane_bytes(code.widths[0], kTileValues));
  return code;
}

namespace {

// Packs the low `width` bits (1, 2 or 4) of n fields; the fields after the n-th, up to a multiple
// of 8, must be writable: they become 0.
uint8_t* pack(uint8_t* fields, int n, int width, uint8_t* out) {
  for (int i = n; i % 8 != 0; ++i) fields[i] = 0;
  const int bytes = plane_bytes(width, n);
  if (width == 4) {
    for (int i = 0; i < bytes; ++i) {
      out[i] = static_cast<uint8_t>((fields[2 * i] & 15) | fields[2 * i + 1] << 4);
    }
  } else if (width == 2) {
    for (int i = 0; i < bytes; ++i) {
      const uint8_t* f = fields + 4 * i;
      out[i] = static_cast<uint8_t>((f[0] & 3) | (f[1] & 3) << 2 | (f[2] & 3) << 4 | f[3] << 6);
    }
  } else {
    for (int i = 0; i < bytes; ++i) {
      uint8_t bits = 0;
      for (int k = 0; k < 8; ++k) bits |= static_cast<uint8_t>((fields[8 * i + k] & 1) << k);
      out[i] = bits;
    }
  }
  return out + bytes;
}

template <int kWidth>
void unpack_fields(const uint8_t* plane, int n, uint8_t* fields) {
  constexpr int kPerByte = 8 / kWidth;
  const int bytes = plane_bytes(kWidth, n);
  for (int i = 0; i < bytes; ++i) {
    for (int k = 0; k < kPerByte; ++k) {
      fields[kPerByte * i + k] = plane[i] >> kWidth * k & ((1 << kWidth) - 1);
    }
  }
}

// Writes n fields, and up to 7 more behind them.
const uint8_t* unpack(const uint8_t* plane, int n, int width, uint8_t* fields) {
  if (width == 4) {
    unpack_fields<4>(plane, n, fields);
  } else if (width == 2) {
    unpack_fields<2>(plane, n, fields);
  } else {
    unpack_fields<1>(plane, n, fields);
  }
  return plane + plane_bytes(width, n);
}

int digit_plane_bytes(int width, int n) {
  return width == 3 ? plane_bytes(2, n) + plane_bytes(1, n) : plane_bytes(width, n);
}

// Writes the digits of n ranks.
uint8_t* pack_digits(const uint8_t* ranks, int n, int width, uint8_t* out) {
  uint8_t digits[kTileValues + 8];
  const uint8_t escape = static_cast<uint8_t>((1 << width) - 1);
  for (int i = 0; i < n; ++i) digits[i] = ranks[i] < escape ? ranks[i] : escape;
  if (width != 3) return pack(digits, n, width, out);
  out = pack(digits, n, 2, out);
  for (int i = 0; i < n; ++i) digits[i] >>= 2;
  return pack(digits, n, 1, out);
}

const uint8_t* unpack_digits(const uint8_t* plane, int n, int width, uint8_t* digits) {
  if (width != 3) return unpack(plane, n, width, digits);
  uint8_t high[kTileValues + 8];
  plane = unpack(plane, n, 2, digits);
  plane = unpack(plane, n, 1, high);
  for (int i = 0; i < n; ++i) digits[i] = static_cast<uint8_t>(digits[i] | high[i] << 2);
  return plane;
}

// No branches in the next two: where zeros are is hard to predict.
template <typename Word>
int compact(const uint8_t* values, uint8_t* mask, uint8_t* nonzeros) {
  size_t n = 0;
  for (int p = 0; p < kTileValues; p += 8) {
    const uint8_t* run = values + value_of_position(p) * sizeof(Word);
    unsigned bits = 0;
    for (int k = 0; k < 8; ++k) {
      const Word value = load<Word>(run + k * sizeof(Word));
      const unsigned set = value != 0;
      store<Word>(nonzeros + n * sizeof(Word), value);
      bits |= set << k;
      n += set;
    }
    mask[p / 8] = static_cast<uint8_t>(bits);
  }
  return static_cast<int>(n);
}

template <typename Word>
void expand(const uint8_t* nonzeros, const uint8_t* mask, uint8_t* values) {
  size_t n = 0;
  for (int p = 0; p < kTileValues; p += 8) {
    uint8_t* run = values + value_of_position(p) * sizeof(Word);
    const unsigned bits = mask[p / 8];
    for (int k = 0; k < 8; ++k) {
      const Word set = bits >> k & 1;
      const Word next = load<Word>(nonzeros + n * sizeof(Word));
      store<Word>(run + k * sizeof(Word), static_cast<Word>(next & (Word{0} - set)));
      n += set;
    }
  }
}

template <DType kDType>
class PortableTier {
  using V = Value<kDType>;
  using Word = typename V::Word;
  static constexpr FloatFormat kFormat = V::kFormat;

  // Rests and ranks, in order of position.
  static void split(const TierCode& code, const uint8_t* values, Word* rests, uint8_t* ranks) {
    for (int run = 0; run < kTileValues; run += 8) {
      const uint8_t* from = values + value_of_position(run) * kFormat.itemsize;
      for (int k = 0; k < 8; ++k) {
        const Word value = load<Word>(from + k * kFormat.itemsize);
        const int offset = (V::symbol(value) - code.base) & (kFormat.symbols() - 1);
        rests[run + k] = V::rest(value);
        ranks[run + k] = offset < kWindow ? code.rank_of_offset[offset] : code.n_ranks;
      }
    }
  }

  static bool store_planes(const TierCode& code, const Word* rests, uint8_t* head) {
    for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
      if (code.byte_plane[plane] == kAbsent) {
        Word any = 0;
        for (int p = 0; p < kTileValues; ++p) any |= rests[p];
        if ((any >> 8 * plane & 0xFF) != 0) return false;
        continue;
      }
      uint8_t* out = head + code.byte_plane[plane];
      for (int p = 0; p < kTileValues; ++p) out[p] = static_cast<uint8_t>(rests[p] >> 8 * plane);
    }
    int shift = 8 * kFormat.byte_planes;
    for (int i = 0; i < kMaxSubPlanes && kFormat.sub_bits[i] != 0; ++i) {
      uint8_t fields[kTileValues];
      for (int p = 0; p < kTileValues; ++p) fields[p] = static_cast<uint8_t>(rests[p] >> shift);
      pack(fields, kTileValues, kFormat.sub_bits[i], head + code.sub_plane[i]);
      shift += kFormat.sub_bits[i];
    }
    return true;
  }

  static void load_planes(const TierCode& code, const uint8_t* head, Word* rests) {
    std::memset(rests, 0, kTileValues * sizeof(Word));
    for (int plane = 0; plane < kFormat.byte_planes; ++plane) {
      if (code.byte_plane[plane] == kAbsent) continue;
      const uint8_t* in = head + code.byte_plane[plane];
      for (int p = 0; p < kTileValues; ++p) {
        rests[p] = static_cast<Word>(rests[p] | static_cast<Word>(in[p]) << 8 * plane);
      }
    }
    int shift = 8 * kFormat.byte_planes;
    for (int i = 0; i < kMaxSubPlanes && kFormat.sub_bits[i] != 0; ++i) {
      uint8_t fields[kTileValues];
      unpack(head + code.sub_plane[i], kTileValues, kFormat.sub_bits[i], fields);
      for (int p = 0; p < kTileValues; ++p) {
        rests[p] = static_cast<Word>(rests[p] | static_cast<Word>(fields[p]) << shift);
      }
      shift += kFormat.sub_bits[i];
    }
  }

 public:
  static int encode(const TierCode& code, const uint8_t* values, uint8_t* head, uint8_t* tail) {
    Word rests[kTileValues];
    uint8_t ranks[kTileValues];
    split(code, values, rests, ranks);
    if (!store_planes(code, rests, head)) return kNotCodable;

    uint16_t positions[kTileValues];  // of the n values that escaped so far
    for (int p = 0; p < kTileValues; ++p) positions[p] = static_cast<uint16_t>(p);
    int n = kTileValues;
    uint8_t* end = tail;
    for (int level = 0; level < code.levels; ++level) {
      const int width = code.widths[level];
      const int escape = (1 << width) - 1;
      if (level == 0) {
        pack_digits(ranks, n, width, head + code.digits);
      } else {
        end = pack_digits(ranks, n, width, end);
      }
      int escaped = 0;
      for (int i = 0; i < n; ++i) {
        const int rank = ranks[i];
        positions[escaped] = positions[i];
        ranks[escaped] = static_cast<uint8_t>(rank - escape);
        escaped += rank >= escape;
      }
      n = escaped;
    }
    for (int i = 0; i < n; ++i) end = put_raw_symbol<kDType>(values, positions[i], end);
    return static_cast<int>(end - tail);
  }

  static int decode(const TierCode& code, const uint8_t* head, const uint8_t* tail, int tail_bytes,
                    uint8_t* values) {
    uint8_t ranks[kTileValues];
    uint16_t positions[kTileValues];
    unpack_digits(head + code.digits, kTileValues, code.widths[0], ranks);
    const int escape = (1 << code.widths[0]) - 1;
    int n = 0;
    for (int p = 0; p < kTileValues; ++p) {
      positions[n] = static_cast<uint16_t>(p);
      n += ranks[p] == escape;
    }
    const uint8_t* next = tail;
    for (int level = 1; level < code.levels; ++level) {
      const int width = code.widths[level];
      if (next - tail + digit_plane_bytes(width, n) > tail_bytes) return kMalformed;
      uint8_t digits[kTileValues + 8];
      next = unpack_digits(next, n, width, digits);
      int escaped = 0;
      for (int i = 0; i < n; ++i) {
        const uint16_t p = positions[i];
        ranks[p] = static_cast<uint8_t>(ranks[p] + digits[i]);
        positions[escaped] = p;
        escaped += digits[i] == (1 << width) - 1;
      }
      n = escaped;
    }
    if (next - tail + n * kFormat.symbol_bytes() > tail_bytes) return kMalformed;

    Word rests[kTileValues];
    load_planes(code, head, rests);
    for (int run = 0; run < kTileValues; run += 8) {
      uint8_t* to = values + value_of_position(run) * kFormat.itemsize;
      for (int k = 0; k < 8; ++k) {
        store<Word>(to + k * kFormat.itemsize,
                    V::join(code.symbol_of_rank[ranks[run + k]], rests[run + k]));
      }
    }
    for (int i = 0; i < n; ++i) next = take_raw_symbol<kDType>(next, positions[i], values);
    return static_cast<int>(next - tail);
  }
};

template <DType kDType>
constexpr TierCoder portable() {
  using Word = typename Value<kDType>::Word;
  return {PortableTier<kDType>::encode, PortableTier<kDType>::decode, compact<Word>, expand<Word>};
}

}  // namespace

TierCoder tier_coder_portable(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return portable<DType::kBFloat16>();
    case DType::kFloat16:
      return portable<DType::kFloat16>();
    case DType::kFloat32:
      return portable<DType::kFloat32>();
    case DType::kFloat64:
      return portable<DType::kFloat64>();
    case DType::kFloat8E4M3FN:
      return portable<DType::kFloat8E4M3FN>();
    case DType::kFloat8E5M2:
      return portable<DType::kFloat8E5M2>();
    default:
      return {};
  }
}

}  // namespace uzip
