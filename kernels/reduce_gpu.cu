// Folds of frames and plain values, in one launch: a warp folds a tile at a time.
#include "fold_ahead_gpu.hpp"

namespace uzip::gpu {
namespace {

// By one block.
template <DType kDType, FoldPlan kPlan>
UZIP_DEVICE void store_remainder(const TilePlace& result) {
  using Folding = Folder<kDType, kPlan>;
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

// A warp's tiles: each `step`-th. And where their results go.
template <DType kDType, FoldPlan kPlan>
struct FoldTiles {
  using Folding = Folder<kDType, kPlan>;
  uint32_t first;
  uint32_t step;
  TilePlace result;

  UZIP_DEVICE TilePlace place_of(uint32_t tile) const {
    const uint64_t bytes = result.wide ? kSumsBytes<kDType> : float_format(kDType).tile_bytes();
    return {result.memory + tile * bytes, result.aligned, result.wide};
  }

  UZIP_DEVICE void run() const {
    for (uint32_t tile = first; tile < Folding::tiles(); tile += step) {
      Folding::fold_tile(tile, place_of(tile));
    }
  }

  // The same with inputs that are fetched ahead. Tiles that cannot be fetched are folded after all
  // others, as a call within the loop would take registers from it.
  UZIP_DEVICE void run_ahead() const {
    TileFolder<kDType, kPlan> folder;
    folder.prepare(first);
    folder.fetch(first);
    bool all_fetched = true;
    bool all_good = true;
#pragma unroll 1
    for (uint32_t tile = first; tile < Folding::tiles(); tile += step) {
      const Folded folded = fold(folder, tile);
      all_fetched = all_fetched && folded != Folded::kNotFetched;
      all_good = all_good && folded != Folded::kMalformed;
      folder.fetch(tile + step);
    }
    const int lane = thread_index() % kLanes;
    if (!all_good && lane == 0) report(FoldRoom<kDType, kPlan>::get().status, FrameStatus::kTile);
    if (all_fetched) return;
    for (uint32_t tile = first; tile < Folding::tiles(); tile += step) {
      if (!folder.can_fetch(tile)) Folding::call_fold_tile(tile, place_of(tile));
    }
  }

 private:
  UZIP_DEVICE Folded fold(TileFolder<kDType, kPlan>& folder, uint32_t tile) const {
    const auto store = [&](const RowSink<kDType>& rows) {
      const TilePlace to = place_of(tile);
      rows.store(to.memory, to.aligned, thread_index() % kLanes);
    };
    if constexpr (kPlan == FoldPlan::kMany) {
      const Folded folded = folder.fold(tile, tile + step);
      if (folded == Folded::kNotFetched) return folded;
      if (result.wide) {
        folder.store_wide(place_of(tile).memory);
      } else {
        folder.round(store);
      }
      return folded;
    } else {
      return folder.fold(tile, tile + step, store);
    }
  }
};

template <DType kDType, FoldPlan kPlan>
UZIP_KERNEL(kThreads, (kFoldResident<kDType, kPlan>))
reduce_kernel(Fold fold, TilePlace result, uint32_t* status) {
  if (!Folder<kDType, kPlan>::open(fold, status)) return;
  const auto warp = static_cast<uint32_t>(thread_index() / kLanes);
  const FoldTiles<kDType, kPlan> tiles{block_index() * kWarps + warp, block_count() * kWarps,
                                       result};
  if constexpr (kFoldsAhead<kDType, kPlan>) {
    tiles.run_ahead();
  } else {
    tiles.run();
  }
  if (block_index() == block_count() - 1) store_remainder<kDType, kPlan>(result);
}

struct ReduceLaunch {
  const Fold& fold;
  const TilePlace& result;
  uint32_t* status;
  const DecodeOptions& options;
  void* stream;

  template <DType kDType, FoldPlan kPlan>
  const char* run() const {
    const auto kernel = reduce_kernel<kDType, kPlan>;
    constexpr size_t kShared = sizeof(FoldRoom<kDType, kPlan>);
    const uint64_t groups = fold.count / (kTileValues * kGroupTiles) + 1;
    const int blocks = grid_blocks(kernel, kShared, groups, options.max_blocks);
    return launch(kernel, blocks, kThreads, kShared, static_cast<Stream>(stream), fold, result,
                  status);
  }
};

}  // namespace

template <DType kDType>
const char* launch_reduce(const Fold& fold, const TilePlace& result, uint32_t* status,
                          const DecodeOptions& options, void* stream) {
  const ReduceLaunch launch{fold, result, status, options, stream};
  return with_plan<kDType>(fold, !result.wide, launch);
}

#define UZIP_INSTANTIATE(dtype)                                                       \
  template const char* launch_reduce<dtype>(const Fold&, const TilePlace&, uint32_t*, \
                                            const DecodeOptions&, void*);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
