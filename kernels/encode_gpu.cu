// Frames from tensors, in one launch.
//
// Every block first chooses the parameters, all the same ones, and then codes its groups.
#include "encode_part_gpu.hpp"

namespace uzip::gpu {
namespace {

template <DType kDType, bool kLarge>
UZIP_KERNEL(kThreads, kEncodeResident<kDType>)
encode_kernel(Tensor tensor, uint8_t* frame, EncodeScratch* scratch, EncodeOptions options) {
  await_earlier();
  encode_part<kDType, kLarge>(tensor, frame, scratch, options, {block_index(), block_count()});
}

}  // namespace

template <DType kDType>
const char* launch_encode(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                          const EncodeOptions& options, void* stream) {
  constexpr size_t kShared = sizeof(AheadRoom<kDType>);
  const uint64_t groups = (tensor.count / kTileValues + kGroupTiles - 1) / kGroupTiles;
  auto kernel = encode_kernel<kDType, false>;
  int blocks = grid_blocks(kernel, kShared, groups, options.max_blocks);
  if constexpr (kEncodesAhead<kDType>) {
    if (groups_alone(tensor.count, {0, static_cast<uint32_t>(blocks)}) != 0) {
      kernel = encode_kernel<kDType, true>;
      blocks = grid_blocks(kernel, kShared, groups, options.max_blocks);
    }
  }
  return launch_early(kernel, blocks, kThreads, kShared, static_cast<Stream>(stream), tensor, frame,
                      scratch, options);
}

#define UZIP_INSTANTIATE(dtype)                                                      \
  template const char* launch_encode<dtype>(const Tensor&, uint8_t*, EncodeScratch*, \
                                            const EncodeOptions&, void*);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
