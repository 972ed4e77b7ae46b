// New frames from old ones for fuzz_decode.cpp: mutations that know the sections of a frame, after
// which sizes, directory and checksum are made to fit again, so that a change gets past the first
// comparisons of a decoder. Now and then they are not.
#include <algorithm>
#include <cstring>

#include "ans_block.hpp"
#include "codec.hpp"
#include "frame_fuzz.hpp"
#include "tier.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* bytes, size_t n, size_t limit);

namespace uzip::fuzz {
namespace {

constexpr size_t kMaxNewValues = 9 * kTileValues + 100;

// Lets libFuzzer change bytes begin .. end - 1, without moving what follows.
void mutate_range(Frame* frame, uint64_t begin, uint64_t end) {
  if (begin >= end || end > frame->size()) return;
  Frame range(frame->begin() + static_cast<ptrdiff_t>(begin),
              frame->begin() + static_cast<ptrdiff_t>(end));
  const size_t n = LLVMFuzzerMutate(range.data(), range.size(), range.size());
  std::memcpy(frame->data() + begin, range.data(), n);
}

void mutate_section(Frame* frame, const Header& header, Random& random) {
  const Sections s = Sections::of(header);
  const uint64_t begins[] = {kHeaderBytes, s.remainder, s.table,
                             s.directory,  s.tails,     frame->size()};
  const size_t section = below(random, 5);
  mutate_range(frame, begins[section], begins[section + 1]);
}

// A few bytes of the head or the tails: less than libFuzzer's own mutations, which often replace
// many.
void flip_bits(Frame* frame, Random& random) {
  if (frame->size() <= kHeaderBytes) return;
  for (size_t flips = 1 + below(random, 4); flips > 0; --flips) {
    const size_t at = kHeaderBytes + below(random, frame->size() - kHeaderBytes);
    (*frame)[at] ^= static_cast<uint8_t>(1 << below(random, 8));
  }
}

void mutate_header(Header* header, Random& random) {
  const auto byte = static_cast<uint8_t>(random());
  switch (below(random, 8)) {
    case 0:
      header->dtype = byte;
      break;
    case 1:
      header->codec = byte;
      break;
    case 2:
      header->flags ^= static_cast<uint8_t>(1 + below(random, 3));
      break;
    case 3:
      header->menu = byte;
      break;
    case 4:
      header->zero_planes ^= static_cast<uint8_t>(1 << below(random, kMaxBytePlanes));
      break;
    case 5:
      header->base = static_cast<uint16_t>(random());
      break;
    case 6:
      std::swap(header->order[below(random, 8)], header->order[below(random, 8)]);
      break;
    default: {
      constexpr int64_t kSteps[] = {-8192, -1024, -1, 1, 2, 1024, 4096, 8192};
      header->count += static_cast<uint64_t>(kSteps[below(random, 8)]);
      break;
    }
  }
}

void mutate_directory(Frame* frame, const Header& header, Random& random) {
  const Sections s = Sections::of(header);
  if (s.units == 0) return;
  if (s.tiles == 0 || below(random, 4) == 0) {
    uint8_t* entry = frame->data() + s.directory + 4 * below(random, s.units);
    const uint64_t steps = (frame->size() - s.tails) / kAlignment + 2;
    store(entry, static_cast<uint32_t>(below(random, steps)));
    return;
  }
  uint8_t* entry = frame->data() + s.directory + 4 * s.units + 2 * below(random, s.tiles);
  constexpr uint16_t kChanges[] = {1, 2, 16, 128, 1 << 14, 1 << 15, 3 << 14, 0x3FFF};
  store(entry, static_cast<uint16_t>(load<uint16_t>(entry) ^ kChanges[below(random, 8)]));
}

// Moves a part of one code's frequency to another: the sum stays.
void mutate_table(Frame* frame, const Header& header, Random& random) {
  const Sections s = Sections::of(header);
  uint8_t* from = frame->data() + s.table + 2 * below(random, 256);
  uint8_t* to = frame->data() + s.table + 2 * below(random, 256);
  const auto moved = static_cast<uint16_t>(below(random, load<uint16_t>(from) + size_t{1}));
  store(from, static_cast<uint16_t>(load<uint16_t>(from) - moved));
  store(to, static_cast<uint16_t>(load<uint16_t>(to) + moved));
}

// The header and the states of a block.
void mutate_block(Frame* frame, const Header& header, Random& random) {
  const Sections s = Sections::of(header);
  if (s.units == 0) return;
  const uint8_t* entry = frame->data() + s.directory + 4 * below(random, s.units);
  const uint64_t place = s.tails + uint64_t{load<uint32_t>(entry)} * kAlignment;
  if (frame->size() < place + sizeof(BlockHeader) + kStateBytes) return;
  uint8_t* block = frame->data() + place;
  auto changed = load<BlockHeader>(block);
  const auto word = static_cast<uint16_t>(random());
  switch (below(random, 4)) {
    case 0:
      changed.n_words += below(random, 2) == 0 ? 1 : word;
      break;
    case 1:
      changed.n_raw = static_cast<uint16_t>(changed.n_raw + (below(random, 2) == 0 ? 1 : word));
      break;
    case 2:
      changed.kind ^= 1;
      break;
    default:
      block[sizeof changed + below(random, kStateBytes)] ^= static_cast<uint8_t>(word);
  }
  store(block, changed);
}

void mutate_structure(Frame* frame, const Header& header, Random& random) {
  // A header that was mended may ask for more than there is.
  if (Sections::of(header).tails > frame->size()) return;
  const size_t choice = header.codec == static_cast<uint8_t>(Codec::kAns) ? below(random, 4) : 0;
  if (choice == 0) {
    mutate_directory(frame, header, random);
  } else if (choice == 1) {
    mutate_table(frame, header, random);
  } else {
    mutate_block(frame, header, random);
  }
}

void resize_tails(Frame* frame, const Header& header, Random& random) {
  const uint64_t tails = Sections::of(header).tails;
  const auto bytes = static_cast<uint64_t>(below(random, 4 * kAlignment));
  const uint64_t size = below(random, 2) == 0 ? frame->size() + bytes : frame->size() - bytes;
  if (size >= tails && size <= kMaxFrameBytes) frame->resize(size);
}

// The values of a frame, or bytes of the frame itself where it has none.
Frame values_of(const Frame& frame, const Header& header) {
  const auto dtype = static_cast<DType>(header.dtype);
  Frame values(header.count * float_format(dtype).itemsize);
  try {
    decode(frame.data(), frame.size(), dtype, header.count, values.data(), {});
  } catch (const FormatError&) {
    values = frame;
  }
  return values;
}

// Encodes the values of a frame, somewhat changed, as the encoder would.
void encode_again(Frame* frame, const Header& header, Random& random) {
  Frame values = values_of(*frame, header);
  values.resize(std::min(values.size(), kMaxNewValues * 8));
  const size_t room = values.size() + below(random, 2 * kTileValues);
  values.resize(room + 1);
  if (below(random, 4) != 0) values.resize(LLVMFuzzerMutate(values.data(), room, room + 1));
  const auto dtype =
      static_cast<DType>(below(random, 3) == 0 ? below(random, kDTypes) : header.dtype);
  const uint64_t count = std::min(values.size() / float_format(dtype).itemsize, kMaxNewValues);
  EncodeOptions options;
  options.codec = below(random, 3) == 0 ? Codec::kTier : Codec::kAns;
  options.checksum = below(random, 2) == 0;
  frame->assign(bound(count, dtype), 0);
  frame->resize(encode(values.data(), count, dtype, frame->data(), options));
}

void mutate_once(Frame* frame, Random& random) {
  Header header = mend_header(frame->data());
  switch (below(random, 10)) {
    case 0:
    case 1:
      mutate_section(frame, header, random);
      break;
    case 2:
    case 3:
      flip_bits(frame, random);
      break;
    case 4:
      mutate_header(&header, random);
      store(frame->data(), header);
      break;
    case 5:
    case 6:
    case 7:
      mutate_structure(frame, header, random);
      break;
    case 8:
      resize_tails(frame, header, random);
      break;
    default:
      encode_again(frame, header, random);
      break;
  }
  mend_sizes(mend_header(frame->data()), frame);
}

Frame mutated(const uint8_t* bytes, size_t n, Random& random) {
  Frame frame(bytes, bytes + n);
  if (n < kHeaderBytes) frame.resize(kHeaderBytes);
  mend_sizes(mend_header(frame.data()), &frame);
  for (size_t times = 1 + below(random, 3); times > 0; --times) mutate_once(&frame, random);
  if (below(random, 2) == 0) mend_tiles(&frame);
  if (below(random, 8) == 0) {
    const Header header = mend_header(frame.data());
    if (Sections::of(header).tails <= frame.size()) mutate_directory(&frame, header, random);
    mend_sizes(header, &frame);
  }
  return frame;
}

}  // namespace
}  // namespace uzip::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* bytes, size_t n, size_t limit, unsigned seed) {
  using namespace uzip::fuzz;
  Random random(seed);
  if (below(random, 32) == 0) return LLVMFuzzerMutate(bytes, n, limit);
  const Frame frame = mutated(bytes, n, random);
  if (frame.size() > limit) return LLVMFuzzerMutate(bytes, n, limit);
  std::memcpy(bytes, frame.data(), frame.size());
  return frame.size();
}
