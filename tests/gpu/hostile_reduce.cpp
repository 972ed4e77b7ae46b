// Damaged frames among the inputs of the fused kernels on the emulated GPU, to be compiled with
// sanitizers: no access out of bounds, no hang, the verdict of the CPU's decoder and the bits of
// its fold.
//
// Usage: hostile_reduce [rounds [seed]]
#include <cstdio>

#include "hostile.hpp"
#include "reduce_gpu.hpp"

namespace {

using namespace uzip::hostile;
using uzip::Codec;
using uzip::DType;
using uzip::ReduceOp;
using uzip::gpu::Fold;

// One fold of a frame, damaged perhaps, a sound one and plain values.
class Case {
 public:
  Case(DType dtype, uint64_t count, Random& random) : dtype_(dtype), count_(count) {
    for (Bytes& values : values_) values = make_values(dtype, count, random() % 2 == 0, random);
    frame_ = cpu_frame(values_[0], count, dtype, Codec::kTier);
    sound_ = cpu_frame(values_[1], count, dtype, Codec::kTier);
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
    const Bytes bytes = frame_at(frame.get());
    if (!good) return bytes.empty();
    Bytes values(expected.size());
    return decodes(bytes, count_, dtype_, &values) && values == expected;
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
    const Bytes frame = frame_at(memories[2 * i + 1].get());
    Bytes out(values[i].size());
    if (!decodes(frame, counts[i], dtype, &out) || out != values[i]) return false;
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
