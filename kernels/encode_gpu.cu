// Frames from tensors, in one launch.
//
// Every block first chooses the parameters, all the same ones, and then codes its groups.
#include "encode_part_gpu.hpp"

namespace uzip::gpu {
namespace {

template <DType kDType>
UZIP_KERNEL(kThreads, 4)
encode_kernel(Tensor tensor, uint8_t* frame, EncodeScratch* scratch, EncodeOptions options) {
  auto& room = *reinterpret_cast<EncodeRoom<kDType>*>(shared_memory());
  encode_part(tensor, frame, scratch, options, room, {block_index(), block_count()});
}

UZIP_KERNEL(kThreads, 4)
encode_raw_kernel(Tensor tensor, DType dtype, uint8_t* frame) {
  write_raw(tensor, dtype, frame, {block_index(), block_count()});
}

template <DType kDType>
const char* encode_tier(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                        const EncodeOptions& options, Stream stream) {
  const auto kernel = encode_kernel<kDType>;
  constexpr size_t kShared = sizeof(EncodeRoom<kDType>);
  const uint64_t groups = (tensor.count / kTileValues + kGroupTiles - 1) / kGroupTiles;
  const int blocks = grid_blocks(kernel, kShared, groups, options.max_blocks);
  return launch(kernel, blocks, kThreads, kShared, stream, tensor, frame, scratch, options);
}

const char* encode_raw(const Tensor& tensor, DType dtype, uint8_t* frame,
                       const EncodeOptions& options, Stream stream) {
  const uint64_t bytes = tensor.count * float_format(dtype).itemsize;
  constexpr uint64_t kBytesPerBlock = 64 * kThreads;
  const int blocks = grid_blocks(encode_raw_kernel, 0,
                                 (bytes + kBytesPerBlock - 1) / kBytesPerBlock, options.max_blocks);
  return launch(encode_raw_kernel, blocks, kThreads, 0, stream, tensor, dtype, frame);
}

}  // namespace

const char* encode(const void* values, uint64_t count, DType dtype, void* frame,
                   EncodeScratch* scratch, const EncodeOptions& options, void* stream) {
  const auto queue = static_cast<Stream>(stream);
  if (!is_aligned(frame, kAlignment) || !is_aligned(scratch, kAlignment)) {
    return "expected a frame and scratch aligned to 16 bytes";
  }
  if (!is_aligned(values, float_format(dtype).itemsize)) {
    return "expected values aligned to their own size";
  }
  const Tensor tensor{static_cast<const uint8_t*>(values), count, is_aligned(values, kAlignment)};
  auto* out = static_cast<uint8_t*>(frame);
  if (options.raw || count < kTileValues || bound(count, dtype) > kMostBytes) {
    return encode_raw(tensor, dtype, out, options, queue);
  }
  if (options.ans && dtype != DType::kBytes) {
    return encode_ans(tensor, dtype, out, scratch, options, stream);
  }
  switch (dtype) {
    case DType::kBFloat16:
      return encode_tier<DType::kBFloat16>(tensor, out, scratch, options, queue);
#if UZIP_ALL_TYPES
    case DType::kFloat64:
      return encode_tier<DType::kFloat64>(tensor, out, scratch, options, queue);
    case DType::kFloat16:
      return encode_tier<DType::kFloat16>(tensor, out, scratch, options, queue);
    case DType::kFloat32:
      return encode_tier<DType::kFloat32>(tensor, out, scratch, options, queue);
    case DType::kFloat8E4M3FN:
      return encode_tier<DType::kFloat8E4M3FN>(tensor, out, scratch, options, queue);
    case DType::kFloat8E5M2:
      return encode_tier<DType::kFloat8E5M2>(tensor, out, scratch, options, queue);
#endif
    default:
      return encode_raw(tensor, dtype, out, options, queue);
  }
}

}  // namespace uzip::gpu
