// Damaged frames among the inputs of the fused kernels on the emulated GPU, to be compiled with
// sanitizers: no access out of bounds, no hang, the verdict of the CPU's decoder and the bits of
// its fold.
//
// Everything lies in memory of its own, exactly as large as it is, so that the sanitizer sees the
// first byte beyond. Usage: hostile_reduce [rounds [seed]]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "codec.hpp"
#include "reduce_gpu.hpp"

namespace {

using uzip::DType;
using uzip::ReduceOp;
using uzip::gpu::Fold;
using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

// Aligned to 16 bytes, as all that malloc() returns, and without room behind.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(static_cast<uint8_t*>(std::malloc(bytes)), std::free) {}
  explicit Memory(const Bytes& bytes) : Memory(bytes.size()) {
    if (!bytes.empty()) std::memcpy(get(), bytes.data(), bytes.size());
  }
  uint8_t* get() const { return bytes_.get(); }

 private:
  std::unique_ptr<uint8_t, void (*)(void*)> bytes_;
};

void check(const char* failure) {
  if (failure != nullptr) throw std::runtime_error(failure);
}

// Values whose tiles are of every kind: few symbols, random bits, zeros, constants.
Bytes make_values(DType dtype, uint64_t count, bool zeros, Random& random) {
  const auto itemsize = static_cast<size_t>(uzip::float_format(dtype).itemsize);
  Bytes values(count * itemsize);
  for (uint64_t v = 0; v < count; ++v) {
    uint8_t* value = values.data() + v * itemsize;
    for (size_t i = 0; i < itemsize; ++i) value[i] = static_cast<uint8_t>(random());
    const uint64_t kind = v / 1024 % 5;
    if (kind == 0) continue;
    value[itemsize - 1] = static_cast<uint8_t>(0x38 + (random() & random() & 7));
    if (kind == 1 && random() % 200 == 0) value[itemsize - 1] = static_cast<uint8_t>(random());
    if (zeros && kind == 2 && random() % 10 != 0) std::memset(value, 0, itemsize);
    if (zeros && kind == 3) std::memset(value, v / 5120 % 2 == 0 ? 0 : 7, itemsize);
  }
  return values;
}

Bytes make_frame(const Bytes& values, uint64_t count, DType dtype) {
  Bytes frame(uzip::bound(count, dtype));
  uzip::EncodeOptions options;
  options.codec = uzip::Codec::kTier;
  frame.resize(uzip::encode(values.data(), count, dtype, frame.data(), options));
  return frame;
}

void damage(Bytes* frame, Random& random) {
  uint64_t body_bytes;
  std::memcpy(&body_bytes, frame->data() + 48, sizeof body_bytes);
  const size_t tails = frame->size() - static_cast<size_t>(body_bytes);
  const size_t ranges[4][2] = {{0, 64},
                               {tails > 600 ? tails - 600 : 64, tails},
                               {tails, frame->size()},
                               {64, frame->size()}};
  for (auto flips = 1 + random() % 3; flips > 0; --flips) {
    const auto& range = ranges[random() % 4];
    if (range[0] >= range[1]) continue;
    uint8_t& byte = (*frame)[range[0] + random() % (range[1] - range[0])];
    byte = random() % 2 == 0 ? static_cast<uint8_t>(byte ^ 1u << random() % 8)
                             : static_cast<uint8_t>(random());
  }
  if (random() % 20 == 0) frame->resize(64 + random() % (frame->size() - 63));
}

bool decodes(const Bytes& frame, uint64_t count, DType dtype, Bytes* values) {
  try {
    uzip::decode(frame.data(), frame.size(), dtype, count, values->data(), uzip::DecodeOptions{});
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// One fold of a frame, damaged perhaps, a sound one and plain values.
class Case {
 public:
  Case(DType dtype, uint64_t count, Random& random) : dtype_(dtype), count_(count) {
    for (Bytes& values : values_) values = make_values(dtype, count, random() % 2 == 0, random);
    frame_ = make_frame(values_[0], count, dtype);
    sound_ = make_frame(values_[1], count, dtype);
  }

  // Whether all kernels and the CPU agree.
  bool agrees(bool damaged, Random& random, uint64_t* reported) {
    Bytes bytes = frame_;
    if (damaged) damage(&bytes, random);
    Bytes first = values_[0];
    const bool good = decodes(bytes, count_, dtype_, &first);
    const Memory inputs[] = {Memory(bytes), Memory(sound_), Memory(values_[2])};
    const auto op = static_cast<ReduceOp>(random() % 4);
    Fold fold{op, dtype_, count_, 1, nullptr, 3, {}};
    fold.inputs[0] = {inputs[0].get(), bytes.size()};
    fold.inputs[1] = {inputs[1].get(), sound_.size()};
    fold.inputs[2] = {inputs[2].get(), uzip::gpu::kPlainValues};
    const void* all[] = {first.data(), values_[1].data(), values_[2].data()};
    Bytes expected(values_[0].size());
    uzip::fold(op, dtype_, all, 3, expected.data(), count_, 1);
    *reported += good ? 0 : 1;
    return reduce(fold, good, expected) && reduce_encode(fold, good, expected, random() % 2 == 0);
  }

 private:
  bool reduce(const Fold& fold, bool good, const Bytes& expected) const {
    const Memory out(expected.size());
    const std::unique_ptr<uint32_t> status(new uint32_t(0));
    check(decode_reduce(fold, out.get(), status.get(), {}, nullptr));
    if (good != (*status == 0)) return false;
    return !good || std::memcmp(out.get(), expected.data(), expected.size()) == 0;
  }

  bool reduce_encode(const Fold& fold, bool good, const Bytes& expected, bool keep) const {
    const Memory out(expected.size());
    const Memory frame(uzip::bound(count_, dtype_));
    const std::unique_ptr<uint32_t> status(new uint32_t(0));
    alignas(16) uzip::gpu::EncodeScratch scratch{};
    check(decode_reduce_encode(fold, {nullptr, 1}, keep ? out.get() : nullptr, frame.get(),
                               &scratch, status.get(), {}, nullptr));
    if (good != (*status == 0)) return false;
    uint64_t bytes;
    std::memcpy(&bytes, frame.get() + 16, sizeof bytes);
    if (!good) return bytes == 0;
    Bytes values(expected.size());
    return decodes(Bytes(frame.get(), frame.get() + bytes), count_, dtype_, &values) &&
           values == expected;
  }

  DType dtype_;
  uint64_t count_;
  Bytes values_[3];
  Bytes frame_;
  Bytes sound_;
};

// Whether shards at odd places of one tensor become frames of their values.
bool encodes_shards(DType dtype, Random& random) {
  const uint64_t counts[] = {9 * 1024 + 5, 0, 3, 1024, 2050};
  uzip::gpu::Shard shards[5];
  std::vector<Memory> memories;
  std::vector<Bytes> values;
  for (int i = 0; i < 5; ++i) {
    values.push_back(make_values(dtype, counts[i], i % 2 == 0, random));
    memories.emplace_back(values.back());
    memories.emplace_back(uzip::bound(counts[i], dtype));
    shards[i] = {memories[2 * i].get(), counts[i], memories[2 * i + 1].get()};
  }
  alignas(16) uzip::gpu::EncodeScratch scratch[5] = {};
  check(encode_shards(shards, 5, dtype, scratch, {}, nullptr));
  for (int i = 0; i < 5; ++i) {
    uint64_t bytes;
    const uint8_t* frame = memories[2 * i + 1].get();
    std::memcpy(&bytes, frame + 16, sizeof bytes);
    Bytes out(values[i].size());
    if (!decodes(Bytes(frame, frame + bytes), counts[i], dtype, &out) || out != values[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int n_arguments, char** arguments) {
  const int rounds = n_arguments > 1 ? std::atoi(arguments[1]) : 20;
  Random random(n_arguments > 2 ? static_cast<uint64_t>(std::atoll(arguments[2])) : 1);
  uint64_t folds = 0;
  uint64_t reported = 0;
  for (int code = 1; code < uzip::kDTypes; ++code) {
    const auto dtype = static_cast<DType>(code);
    if (!encodes_shards(dtype, random)) {
      std::printf("dtype %d: a shard's frame is wrong\n", code);
      return 1;
    }
    for (const uint64_t count : {9 * 1024 + 5, 3 * 1024}) {
      Case folded(dtype, count, random);
      for (int round = 0; round <= rounds; ++round, ++folds) {
        if (folded.agrees(round > 0, random, &reported)) continue;
        std::printf("dtype %d, fold %llu: the kernels and the CPU disagree\n", code,
                    static_cast<unsigned long long>(folds));
        return 1;
      }
    }
  }
  std::printf("%llu folds, %llu reported\n", static_cast<unsigned long long>(folds),
              static_cast<unsigned long long>(reported));
  return reported > folds / 4 ? 0 : 1;
}
