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

// A warp that fetches a tile of the next frame while it decodes one does not wait for memory.
// Larger types have not the shared memory for it.
template <DType kDType>
constexpr bool kFoldsAhead = kLargeShared && float_format(kDType).itemsize <= 2;

template <DType kDType>
struct ReduceRoom {
  FoldRoom<kDType> fold;
  Stage<kDType> stages[kWarps][kFoldsAhead<kDType> ? 2 : 1];

  UZIP_DEVICE static ReduceRoom& get() { return *reinterpret_cast<ReduceRoom*>(shared_memory()); }
};

// The inputs of a warp's tiles, one after the other: a frame's tile is decoded while the next one
// is fetched and the directory is read for the one after.
template <DType kDType>
class InputsAhead {
 public:
  using Folding = Folder<kDType>;
  using Tier = TierFrame<kDType>;

  // Of the tiles `first`, `first + step`, ..
  UZIP_DEVICE InputsAhead(uint32_t first, uint32_t step)
      : step_(step),
        warp_(thread_index() / kLanes),
        lane_(thread_index() % kLanes),
        place_{first, 0},
        later_(after(place_)) {
    directory_ = read(place_);
    fetched_ = fetch(place_);
    commit_copies();
    directory_ = read(later_);
  }

  // Folds the next input. False: it is malformed.
  UZIP_DEVICE bool fold(Accumulators<kDType>& sums) {
    const Place place = place_;
    const auto fetched = fetched_;
    const Stage<kDType>& stage = ReduceRoom<kDType>::get().stages[warp_][turn_];
    turn_ ^= 1;
    place_ = later_;
    fetched_ = fetch(place_);
    later_ = after(place_);
    directory_ = read(later_);
    commit_copies();
    wait_copies<1>();
    sync_lanes();
    const OpenInput<kDType>& input = room().inputs[place.input];
    if (input.values != nullptr) {
      constexpr int kTileBytes = float_format(kDType).tile_bytes();
      sums.fold(input.values + uint64_t{place.tile} * kTileBytes, input.aligned);
      return true;
    }
    auto& mine = room().warps[warp_];
    TileStep step{input.tier, fetched, stage, mine.levels, {mine.values, true, lane_}, true};
    if (fetched.size >= 0) {
      FewMenus::choose(input.menu, step);
    } else {
      step.good = Folding::decode_any_tile(place.tile, place.input);
    }
    sync_lanes();  // raw tiles are copied by other lanes
    sums.fold(mine.values, true);
    sync_lanes();  // the room is free for the next
    return step.good;
  }

 private:
  struct Place {
    uint32_t tile;
    int input;
  };

  // For FewMenus::choose().
  struct TileStep {
    const Tier& tier;
    const typename Tier::Fetched& fetched;
    const Stage<kDType>& stage;
    LevelRoom<kDType>& levels;
    MemorySink<kDType> sink;
    bool good;

    template <int kMenu>
    UZIP_DEVICE void run() {
      if constexpr (kMenu != kAnyMenu) {  // tiles of other menus are not fetched
        good = tier.template decode_fetched<kMenu>(fetched, stage, room().tables, levels, sink.lane,
                                                   sink);
      }
    }
  };

  UZIP_DEVICE static FoldRoom<kDType>& room() { return FoldRoom<kDType>::get(); }

  UZIP_DEVICE Place after(const Place& place) const {
    if (place.input + 1 < Folding::fold().n_inputs) return {place.tile, place.input + 1};
    return {place.tile + step_, 0};
  }
  // Whether there is such a tile, of a frame that may be fetched.
  UZIP_DEVICE static bool is_framed(const Place& place) {
    const OpenInput<kDType>& input = room().inputs[place.input];
    return place.tile < Folding::tiles() && input.values == nullptr && FewMenus::has(input.menu);
  }
  UZIP_DEVICE typename Tier::Directory read(const Place& place) const {
    if (!is_framed(place)) return {0, 0};
    return room().inputs[place.input].tier.read_directory(place.tile, lane_);
  }
  // Asks for a tile, of which the directory has been read.
  UZIP_DEVICE typename Tier::Fetched fetch(const Place& place) {
    if (!is_framed(place)) return {0, -1};
    Stage<kDType>& stage = ReduceRoom<kDType>::get().stages[warp_][turn_];
    return room().inputs[place.input].tier.fetch(directory_, place.tile, stage, lane_);
  }

  uint32_t step_;
  int warp_;
  int lane_;
  int turn_ = 0;
  Place place_;
  Place later_;
  typename Tier::Directory directory_;
  typename Tier::Fetched fetched_;
};

template <DType kDType>
UZIP_KERNEL(kThreads, 2)
reduce_kernel(Fold fold, TilePlace result, uint32_t* status) {
  using Folding = Folder<kDType>;
  if (!Folding::open(fold, status)) return;
  const auto warp = static_cast<uint32_t>(thread_index() / kLanes);
  const uint64_t tile_bytes = kTileValues * (result.wide ? sizeof(typename Folding::Accumulator)
                                                         : float_format(kDType).itemsize);
  const uint32_t first = block_index() * kWarps + warp;
  const uint32_t step = block_count() * kWarps;
  const auto place_of = [&](uint32_t tile) -> TilePlace {
    return {result.memory + tile * tile_bytes, result.aligned, result.wide};
  };
  if constexpr (kFoldsAhead<kDType>) {
    InputsAhead<kDType> inputs(first, step);
    for (uint32_t tile = first; tile < Folding::tiles(); tile += step) {
      Folding::fold_tile(tile, place_of(tile),
                         [&](Accumulators<kDType>& sums, int) { return inputs.fold(sums); });
    }
  } else {
    for (uint32_t tile = first; tile < Folding::tiles(); tile += step) {
      Folding::fold_tile(tile, place_of(tile));
    }
  }
  if (block_index() == block_count() - 1) store_remainder<kDType>(result);
}

}  // namespace

template <DType kDType>
const char* launch_reduce(const Fold& fold, const TilePlace& result, uint32_t* status,
                          const DecodeOptions& options, void* stream) {
  const auto kernel = reduce_kernel<kDType>;
  constexpr size_t kShared = sizeof(ReduceRoom<kDType>);
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
