#include "tile.hpp"

#include "errors.hpp"

namespace uzip {
namespace {

int pad(uint8_t* begin, int bytes) {
  const int padded = static_cast<int>(align_up(static_cast<uint64_t>(bytes)));
  std::memset(begin + bytes, 0, static_cast<size_t>(padded - bytes));
  return padded;
}

int body_head_bytes(const TierCode& code, int n) {
  int bytes = 0;
  for_each_plane(code, [&](int, int width) { bytes += plane_bytes(width, n); });
  return bytes;
}

// All values equal? Comparing the tile with itself, one value further on.
bool is_constant(const uint8_t* values, int tile_bytes, int itemsize) {
  return std::memcmp(values, values + itemsize, static_cast<size_t>(tile_bytes - itemsize)) == 0;
}

template <typename Word>
int count_zeros(const uint8_t* values) {
  int zeros = 0;
  for (int v = 0; v < kTileValues; ++v) zeros += load<Word>(values + v * sizeof(Word)) == 0;
  return zeros;
}

// Values in order of position to a tile, and back: runs of 8 change places.
template <typename Word>
void order_as_tile(const uint8_t* positions, uint8_t* values) {
  for (int p = 0; p < kTileValues; p += 8) {
    std::memcpy(values + value_of_position(p) * sizeof(Word), positions + p * sizeof(Word),
                8 * sizeof(Word));
  }
}

template <typename Word>
void order_as_positions(const uint8_t* values, uint8_t* positions) {
  for (int p = 0; p < kTileValues; p += 8) {
    std::memcpy(positions + p * sizeof(Word), values + value_of_position(p) * sizeof(Word),
                8 * sizeof(Word));
  }
}

// Values `first` to the last of a tile.
template <typename Word>
void fill(Word value, int first, uint8_t* values) {
  for (int v = first; v < kTileValues; ++v) store<Word>(values + v * sizeof(Word), value);
}

// The values of a tile, and what coders may touch behind them.
struct TileValues {
  alignas(64) uint8_t bytes[8 * kTileValues + kTailSlack];
};

// Calls visit(a value of the word type of this size) and returns what it returns.
template <typename Visit>
auto with_word(int itemsize, Visit visit) {
  switch (itemsize) {
    case 1:
      return visit(uint8_t{});
    case 2:
      return visit(uint16_t{});
    case 4:
      return visit(uint32_t{});
    default:
      return visit(uint64_t{});
  }
}

// Makes a tile of the values that are not zero. Values of rank 0 and rest 0 follow them: their
// fields are 0 and they have no further digits, so the first n fields of every plane of this tile,
// and its tail, are the body of n values.
int make_masked_tile(const TierCode& code, const TierCoder& coder, const uint8_t* values,
                     uint8_t* mask, uint8_t* tile) {
  const FloatFormat format = float_format(code.dtype);
  TileValues nonzeros;
  const int n = coder.compact(values, mask, nonzeros.bytes);
  with_word(format.itemsize, [&](auto word) {
    using Word = decltype(word);
    const uint64_t symbol = code.symbol_of_rank[0];
    fill<Word>(static_cast<Word>(symbol << format.mantissa_bits), n, nonzeros.bytes);
    order_as_tile<Word>(nonzeros.bytes, tile);
  });
  return n;
}

// Returns the bytes written, not padded, or kNotCodable.
int encode_masked(const TierCode& code, const TierCoder& coder, const uint8_t* values,
                  uint8_t* out) {
  TileValues compacted;
  alignas(64) uint8_t head[kMaxHeadBytes];
  const int n = make_masked_tile(code, coder, values, out, compacted.bytes);
  uint8_t* end = out + kMaskBytes;
  uint8_t* tail = end + body_head_bytes(code, n);
  const int tail_bytes = coder.encode(code, compacted.bytes, head, tail);
  if (tail_bytes == kNotCodable) return kNotCodable;
  for_each_plane(code, [&](int offset, int width) {
    std::memcpy(end, head + offset, static_cast<size_t>(plane_bytes(width, n)));
    end += plane_bytes(width, n);
  });
  return static_cast<int>(tail + tail_bytes - out);
}

void decode_masked(const TierCode& code, const TierCoder& coder, int size, const uint8_t* tile,
                   uint8_t* values) {
  const FloatFormat format = float_format(code.dtype);
  require(size >= kMaskBytes, "a masked tile of at least 128 bytes", size);
  int n = 0;
  for (int i = 0; i < kMaskBytes; i += 8) n += __builtin_popcountll(load<uint64_t>(tile + i));
  const uint8_t* plane = tile + kMaskBytes;
  const uint8_t* tail = plane + body_head_bytes(code, n);
  const int tail_room = static_cast<int>(tile + size - tail);
  require(tail_room >= 0, "a masked tile as large as its mask asks for", size);

  alignas(64) uint8_t head[kMaxHeadBytes];
  std::memset(head, 0, code.stride);
  TileValues compacted;
  for_each_plane(code, [&](int offset, int width) {
    const int bytes = plane_bytes(width, n);
    std::memcpy(head + offset, plane, static_cast<size_t>(bytes));
    plane += bytes;
    // The bits after the last field are no values, whatever a frame says.
    const int used = width * n % 8;
    if (used != 0) head[offset + bytes - 1] &= static_cast<uint8_t>((1 << used) - 1);
  });
  const int tail_bytes = coder.decode(code, head, tail, tail_room, compacted.bytes);
  const int found = static_cast<int>(tail - tile) + tail_bytes;
  require(tail_bytes != kMalformed &&
              align_up(static_cast<uint64_t>(found)) == static_cast<uint64_t>(size),
          "a masked tile as large as its digits ask for", size);
  TileValues nonzeros;
  with_word(format.itemsize, [&](auto word) {
    order_as_positions<decltype(word)>(compacted.bytes, nonzeros.bytes);
  });
  coder.expand(nonzeros.bytes, tile, values);
}

void decode_constant(int size, int tile_bytes, int itemsize, const uint8_t* tile, uint8_t* values) {
  if (size == 0) {
    std::memset(values, 0, static_cast<size_t>(tile_bytes));
    return;
  }
  require(size == kAlignment, "a constant tile of 0 or 16 bytes", size);
  with_word(itemsize, [&](auto word) {
    using Word = decltype(word);
    fill<Word>(load<Word>(tile), 0, values);
  });
}

TileEntry encode_constant(const uint8_t* values, int itemsize, uint8_t* out) {
  std::memset(out, 0, kAlignment);
  std::memcpy(out, values, static_cast<size_t>(itemsize));
  const bool zero = load<uint64_t>(out) == 0;
  return {TileKind::kConstant, zero ? 0 : kAlignment};
}

}  // namespace

TileEntry encode_dense_tile(const TierCode& code, const TierCoder& coder, const uint8_t* values,
                            uint8_t* head, uint8_t* tail) {
  const int raw_bytes = float_format(code.dtype).tile_bytes() - code.stride;
  const int tail_bytes = coder.encode(code, values, head, tail);
  if (tail_bytes != kNotCodable && tail_bytes < raw_bytes) return {TileKind::kCoded, tail_bytes};
  std::memcpy(head, values, code.stride);
  std::memcpy(tail, values + code.stride, static_cast<size_t>(raw_bytes));
  return {TileKind::kRaw, raw_bytes};
}

TileEntry encode_packed_tile(const TierCode& code, const TierCoder& coder, const uint8_t* values,
                             uint8_t* out) {
  const FloatFormat format = float_format(code.dtype);
  const int tile_bytes = format.tile_bytes();
  if (is_constant(values, tile_bytes, format.itemsize)) {
    return encode_constant(values, format.itemsize, out);
  }
  const int zeros =
      with_word(format.itemsize, [&](auto word) { return count_zeros<decltype(word)>(values); });
  // A mask pays when it is smaller than what the zeros would have in the heads.
  const bool masked = zeros * code.stride > kMaskBytes * kTileValues;
  int bytes = 0;
  if (masked) {
    bytes = encode_masked(code, coder, values, out);
  } else {
    bytes = coder.encode(code, values, out, out + code.stride);
    if (bytes != kNotCodable) bytes += code.stride;
  }
  if (bytes != kNotCodable &&
      align_up(static_cast<uint64_t>(bytes)) < static_cast<uint64_t>(tile_bytes)) {
    return {masked ? TileKind::kMasked : TileKind::kCoded, pad(out, bytes)};
  }
  std::memcpy(out, values, static_cast<size_t>(tile_bytes));
  return {TileKind::kRaw, tile_bytes};
}

void decode_dense_tile(const TierCode& code, const TierCoder& coder, TileEntry entry,
                       const uint8_t* head, const uint8_t* tail, uint8_t* values) {
  if (entry.kind == TileKind::kCoded) {
    const int tail_bytes = coder.decode(code, head, tail, entry.size, values);
    require(tail_bytes == entry.size, "a tail as large as its digits ask for", entry.size);
    return;
  }
  require(entry.kind == TileKind::kRaw, "a coded or raw tile in the dense layout",
          static_cast<int>(entry.kind));
  const int raw_bytes = float_format(code.dtype).tile_bytes() - code.stride;
  require(entry.size == raw_bytes, "a raw tile's exact size", entry.size);
  std::memcpy(values, head, code.stride);
  std::memcpy(values + code.stride, tail, static_cast<size_t>(raw_bytes));
}

void decode_packed_tile(const TierCode& code, const TierCoder& coder, TileEntry entry,
                        const uint8_t* tile, uint8_t* values) {
  const FloatFormat format = float_format(code.dtype);
  switch (entry.kind) {
    case TileKind::kConstant:
      return decode_constant(entry.size, format.tile_bytes(), format.itemsize, tile, values);
    case TileKind::kMasked:
      return decode_masked(code, coder, entry.size, tile, values);
    case TileKind::kRaw:
      require(entry.size == format.tile_bytes(), "a raw tile's exact size", entry.size);
      std::memcpy(values, tile, static_cast<size_t>(entry.size));
      return;
    case TileKind::kCoded:
      break;
  }
  require(entry.size >= code.stride, "a coded tile of at least its head's size", entry.size);
  const int tail_bytes =
      coder.decode(code, tile, tile + code.stride, entry.size - code.stride, values);
  require(tail_bytes != kMalformed && align_up(static_cast<uint64_t>(code.stride + tail_bytes)) ==
                                          static_cast<uint64_t>(entry.size),
          "a tile as large as its digits ask for", entry.size);
}

}  // namespace uzip
