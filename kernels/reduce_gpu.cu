// Folds of frames and plain values, in one launch: a warp folds a tile at a time.
#include "fold_gpu.hpp"

namespace uzip::gpu {
namespace {

// By one block.
template <DType kDType>
UZIP_DEVICE void store_remainder(const TilePlace& result) {
  using Folding = Folder<kDType>;
  const uint64_t first = uint64_t{Folding::tiles()} * kTileValues;
  for (uint32_t i = static_cast<uint32_t>(thread_index()); i < Folding::remaining();
       i += kThreads) {
    if (result.wide) {
      reinterpret_cast<typename Folding::Accumulator*>(result.memory)[first + i] =
          Folding::fold_value(i);
    } else {
      reinterpret_cast<typename Folding::Stored*>(result.memory)[first + i] =
          Folding::fold_and_round_value(i);
    }
  }
}

// Blocks on a multiprocessor: 80 registers are enough for 16- and 8-bit types only.
template <DType kDType>
constexpr int kResident = float_format(kDType).itemsize > 2 ? 2 : 3;

template <DType kDType>
UZIP_KERNEL(kThreads, kResident<kDType>)
reduce_kernel(Fold fold, TilePlace result, uint32_t* status) {
  using Folding = Folder<kDType>;
  if (!Folding::open(fold, status)) return;
  const auto warp = static_cast<uint32_t>(thread_index() / kLanes);
  const uint64_t tile_bytes = kTileValues * (result.wide ? sizeof(typename Folding::Accumulator)
                                                         : float_format(kDType).itemsize);
  for (uint32_t tile = block_index() * kWarps + warp; tile < Folding::tiles();
       tile += block_count() * kWarps) {
    Folding::fold_tile(tile, {result.memory + tile * tile_bytes, result.aligned, result.wide});
  }
  if (block_index() == block_count() - 1) store_remainder<kDType>(result);
}

}  // namespace

template <DType kDType>
const char* launch_reduce(const Fold& fold, const TilePlace& result, uint32_t* status,
                          const DecodeOptions& options, void* stream) {
  const auto kernel = reduce_kernel<kDType>;
  constexpr size_t kShared = sizeof(FoldRoom<kDType>);
  const uint64_t groups = fold.count / (kTileValues * kGroupTiles) + 1;
  const int blocks = grid_blocks(kernel, kShared, groups, options.max_blocks);
  return launch(kernel, blocks, kThreads, kShared, static_cast<Stream>(stream), fold, result,
                status);
}

#define UZIP_INSTANTIATE(dtype)                                                       \
  template const char* launch_reduce<dtype>(const Fold&, const TilePlace&, uint32_t*, \
                                            const DecodeOptions&, void*);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
