// The face of codec_gpu.hpp: checks arguments and calls the launch for the data type.
#include "frame_encode_gpu.hpp"

namespace uzip::gpu {
namespace {

UZIP_KERNEL(kThreads, 4)
encode_raw_kernel(Tensor tensor, DType dtype, uint8_t* frame) {
  write_raw(tensor, dtype, frame, {block_index(), block_count()});
}

const char* encode_raw(const Tensor& tensor, DType dtype, uint8_t* frame,
                       const EncodeOptions& options, Stream stream) {
  const uint64_t bytes = tensor.count * float_format(dtype).itemsize;
  constexpr uint64_t kBytesPerBlock = 64 * kThreads;
  const int blocks = grid_blocks(encode_raw_kernel, 0,
                                 (bytes + kBytesPerBlock - 1) / kBytesPerBlock, options.max_blocks);
  return launch(encode_raw_kernel, blocks, kThreads, 0, stream, tensor, dtype, frame);
}

struct Encode {
  const Tensor& tensor;
  uint8_t* frame;
  EncodeScratch* scratch;
  const EncodeOptions& options;
  void* stream;

  template <DType kDType>
  const char* run() const {
    return options.ans ? launch_encode_ans<kDType>(tensor, frame, scratch, options, stream)
                       : launch_encode<kDType>(tensor, frame, scratch, options, stream);
  }
};

struct Decode {
  const Frame& frame;
  DType dtype;
  const Destination& destination;
  uint32_t* status;
  const DecodeOptions& options;
  void* stream;

  template <DType kDType>
  const char* run() const {
    return launch_decode<kDType>(frame, dtype, destination, status, options, stream);
  }
};

}  // namespace

const char* encode(const void* values, uint64_t count, DType dtype, void* frame,
                   EncodeScratch* scratch, const EncodeOptions& options, void* stream) {
  if (!is_aligned(frame, kAlignment) || !is_aligned(scratch, kAlignment)) {
    return "expected a frame and scratch aligned to 16 bytes";
  }
  if (!is_aligned(values, float_format(dtype).itemsize)) {
    return "expected values aligned to their own size";
  }
  const Tensor tensor{static_cast<const uint8_t*>(values), count, is_aligned(values, kAlignment)};
  auto* out = static_cast<uint8_t*>(frame);
  if (options.raw || dtype == DType::kBytes || count < kTileValues ||
      bound(count, dtype) > kMostBytes) {
    return encode_raw(tensor, dtype, out, options, static_cast<Stream>(stream));
  }
  return with_type(dtype, Encode{tensor, out, scratch, options, stream});
}

const char* decode(const void* frame, uint64_t frame_bytes, DType dtype, uint64_t count,
                   void* values, uint32_t* status, const DecodeOptions& options, void* stream) {
  if (frame_bytes < kHeaderBytes) return "expected at least the 64 bytes of a header";
  if (!is_aligned(frame, kAlignment)) return "expected a frame aligned to 16 bytes";
  if (!is_aligned(values, float_format(dtype).itemsize)) {
    return "expected room for values aligned to their own size";
  }
  if (count >= uint64_t{1} << 41)
    return "expected less than 2^41 values";  // tiles have 32-bit numbers
  const Frame source{static_cast<const uint8_t*>(frame), frame_bytes};
  const Destination destination{static_cast<uint8_t*>(values), count,
                                is_aligned(values, kAlignment)};
  return with_type(dtype, Decode{source, dtype, destination, status, options, stream});
}

}  // namespace uzip::gpu
