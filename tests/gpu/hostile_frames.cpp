// Damaged frames on the emulated GPU, to be compiled with sanitizers: no access out of bounds, no
// hang, and the same verdict as the CPU's decoder.
//
// Usage: hostile_frames [rounds [seed]]
#include <cstdio>

#include "codec_gpu.hpp"
#include "hostile.hpp"

namespace {

using namespace uzip::hostile;
using uzip::Codec;
using uzip::DType;

Bytes gpu_frame(const Bytes& values, uint64_t count, DType dtype, bool ans) {
  const Memory source(values);
  const Memory frame((uzip::bound(count, dtype) + 15) / 16 * 16);
  alignas(16) uzip::gpu::EncodeScratch scratch{};
  uzip::gpu::EncodeOptions options;
  options.ans = ans;
  options.always = true;
  check(uzip::gpu::encode(source.get(), count, dtype, frame.get(), &scratch, options, nullptr));
  return frame_at(frame.get());
}

// Whether both decoders think the same of a frame, and of its values.
bool agree(const Bytes& bytes, DType dtype, uint64_t count, uint64_t* reported) {
  const size_t size = count * uzip::float_format(dtype).itemsize;
  Bytes theirs(size);
  const bool sound = decodes(bytes, count, dtype, &theirs);
  const Memory frame(bytes);
  const Memory values(size);
  std::vector<uint32_t> status(1);
  check(uzip::gpu::decode(frame.get(), bytes.size(), dtype, count, values.get(), status.data(),
                          uzip::gpu::DecodeOptions{}, nullptr));
  *reported += status[0] != 0 ? 1 : 0;
  if (sound != (status[0] == 0)) return false;
  return !sound || std::memcmp(values.get(), theirs.data(), size) == 0;
}

}  // namespace

int main(int n_arguments, char** arguments) {
  const int rounds = n_arguments > 1 ? std::atoi(arguments[1]) : 20;
  Random random(n_arguments > 2 ? static_cast<uint64_t>(std::atoll(arguments[2])) : 1);
  uint64_t frames = 0;
  uint64_t reported = 0;
  for (int code = 1; code < uzip::kDTypes; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (const uint64_t count : {uint64_t{9 * 1024 + 5}, uint64_t{40 * 1024}}) {
      const Bytes values = make_values(dtype, count, true, random);
      const Bytes sound[] = {cpu_frame(values, count, dtype, Codec::kTier),
                             cpu_frame(values, count, dtype, Codec::kAns),
                             gpu_frame(values, count, dtype, false),
                             gpu_frame(values, count, dtype, true)};
      for (const Bytes& frame : sound) {
        for (int round = 0; round <= rounds; ++round, ++frames) {
          Bytes bytes = frame;
          if (round > 0) damage(&bytes, random);
          if (agree(bytes, dtype, count, &reported)) continue;
          std::printf("dtype %d, %zu bytes, frame %llu: decoders disagree\n", code, bytes.size(),
                      static_cast<unsigned long long>(frames));
          return 1;
        }
      }
    }
  }
  std::printf("%llu frames, %llu reported\n", static_cast<unsigned long long>(frames),
              static_cast<unsigned long long>(reported));
  return reported > frames / 4 ? 0 : 1;
}
