// Tensors from frames, in one launch. A warp decodes a tile at a time, of codec ans a block of
// tiles, and needs no other.
#include <type_traits>

#include "ans_decode_gpu.hpp"
#include "frame_decode_gpu.hpp"

namespace uzip::gpu {
namespace {

// A warp that fetches its next tile while it decodes one does not wait for memory.
template <DType kDType>
constexpr bool kFetchesAhead = kLargeShared || float_format(kDType).itemsize <= 2;

// Blocks on a multiprocessor, as many as shared memory has room for.
template <DType kDType>
constexpr int kResident = !kFetchesAhead<kDType> || float_format(kDType).itemsize <= 2
                              ? 4
                              : 8 / float_format(kDType).itemsize;

template <DType kDType>
struct DecodeWarpRoom {
  struct NoStage {};
  // Of a tile that is fetched and the one that is decoded, in turn; or of a tail.
  union {
    std::conditional_t<kFetchesAhead<kDType>, Stage<kDType>, NoStage> stages[2];
    TailRoom<kDType> tail;
  };
  LevelRoom<kDType> levels;
  bool all_fetched;
};

template <DType kDType>
struct DecodeRoom {
  DecodeWarpRoom<kDType> warps[kWarps];
  DecodeTables tables;
  TierFrame<kDType> tier;

  UZIP_DEVICE static DecodeRoom& get() { return *reinterpret_cast<DecodeRoom*>(shared_memory()); }
};

// A warp's tiles: each `step`-th.
struct Tiles {
  uint32_t first;
  uint32_t step;
  uint32_t end;
};

template <DType kDType>
UZIP_DEVICE MemorySink<kDType> sink_for(const Destination& destination, uint32_t tile) {
  constexpr int kTileBytes = float_format(kDType).tile_bytes();
  return {destination.values + uint64_t{tile} * kTileBytes, destination.aligned,
          thread_index() % kLanes};
}

// Decodes a tile with the code for any menu and layout. A call, so that the kernel's registers are
// for the others. False: it is malformed.
template <DType kDType>
UZIP_DEVICE_CALL bool decode_any_tile(Destination destination, uint32_t tile) {
  auto& room = DecodeRoom<kDType>::get();
  auto& mine = room.warps[thread_index() / kLanes];
  auto sink = sink_for<kDType>(destination, tile);
  return room.tier.template decode<kAnyMenu>(tile, room.tables, mine.tail, mine.levels,
                                             thread_index() % kLanes, sink);
}

// A warp's tiles on their way to memory. For CompiledMenus::choose().
template <DType kDType>
struct TileDecoder {
  using Tier = TierFrame<kDType>;
  const Destination& destination;
  Tiles tiles;
  uint32_t* status;  // for what was found

  template <int kMenu>
  UZIP_DEVICE void run() const {
    if constexpr (!kFetchesAhead<kDType> || kMenu == kAnyMenu) {
      decode_any();
    } else if (tier().packed()) {
      decode_ahead<kMenu, true>();
    } else {
      decode_ahead<kMenu, false>();
    }
  }

 private:
  // Not all of it has room in registers.
  UZIP_DEVICE static const Tier& tier() { return DecodeRoom<kDType>::get().tier; }
  UZIP_DEVICE static DecodeWarpRoom<kDType>& mine() {
    return DecodeRoom<kDType>::get().warps[thread_index() / kLanes];
  }
  UZIP_DEVICE static int lane() { return thread_index() % kLanes; }

  UZIP_DEVICE void decode_any_of(uint32_t tile) const {
    const bool good = decode_any_tile<kDType>(destination, tile);
    if (!good && lane() == 0) report(status, FrameStatus::kTile);
  }
  UZIP_DEVICE void decode_any() const {
    for (uint32_t tile = tiles.first; tile < tiles.end; tile += tiles.step) decode_any_of(tile);
  }

  // A tile is decoded while the next one is fetched and the directory is read for the one after.
  // Tiles that cannot be fetched are decoded after all others.
  template <int kMenu, bool kPacked>
  UZIP_DEVICE void decode_ahead() const {
    if (tiles.first >= tiles.end) return;
    if (lane() == 0) mine().all_fetched = true;
    auto directory = tier().read_directory(tiles.first, lane());
    auto next = fetch<kPacked>(directory, tiles.first, 0);
    commit_copies();
    uint32_t ahead = tiles.first + tiles.step;
    if (ahead < tiles.end) directory = tier().read_directory(ahead, lane());
    int turn = 0;
#pragma unroll 1
    for (uint32_t tile = tiles.first; tile < tiles.end; tile = ahead, ahead += tiles.step) {
      const auto fetched = next;
      if (ahead < tiles.end) {
        next = fetch<kPacked>(directory, ahead, turn ^ 1);
        const uint32_t later = ahead + tiles.step;
        if (later < tiles.end) directory = tier().read_directory(later, lane());
      }
      commit_copies();
      wait_copies<1>();
      sync_lanes();
      if (fetched.size < 0) {
        if (lane() == 0) mine().all_fetched = false;
      } else if (!decode_fetched<kMenu, kPacked>(fetched, tile, turn) && lane() == 0) {
        report(status, FrameStatus::kTile);
      }
      sync_lanes();  // the memory is free for the tile after the next
      turn ^= 1;
    }
    if (mine().all_fetched) return;
    // A call within the loop would take registers from it.
    for (uint32_t tile = tiles.first; tile < tiles.end; tile += tiles.step) {
      directory = tier().read_directory(tile, lane());
      const bool could = kPacked ? tier().can_fetch_packed(directory, tile, lane())
                                 : tier().can_fetch(directory, tile, lane());
      if (!could) decode_any_of(tile);
    }
  }

  template <bool kPacked>
  UZIP_DEVICE static typename Tier::Fetched fetch(const typename Tier::Directory& directory,
                                                  uint32_t tile, int turn) {
    Stage<kDType>& stage = mine().stages[turn];
    return kPacked ? tier().fetch_packed(directory, tile, stage, lane())
                   : tier().fetch(directory, tile, stage, lane());
  }

  template <int kMenu, bool kPacked>
  UZIP_DEVICE bool decode_fetched(const typename Tier::Fetched& fetched, uint32_t tile,
                                  int turn) const {
    const Stage<kDType>& stage = mine().stages[turn];
    const DecodeTables& tables = DecodeRoom<kDType>::get().tables;
    auto sink = sink_for<kDType>(destination, tile);
    if constexpr (kPacked) {
      return tier().template decode_fetched_packed<kMenu>(fetched, stage, tables, mine().levels,
                                                          lane(), sink);
    } else {
      return tier().template decode_fetched<kMenu>(fetched, stage, tables, mine().levels, lane(),
                                                   sink);
    }
  }
};

UZIP_DEVICE void copy_raw(const Frame& frame, DType dtype, const Destination& destination,
                          uint32_t* status) {
  const auto index = uint64_t{block_index()} * kThreads + static_cast<uint64_t>(thread_index());
  if (frame.size != bound(destination.count, dtype)) {
    if (index == 0) report(status, FrameStatus::kSections);
    return;
  }
  copy_bytes(destination.values, frame.bytes + kHeaderBytes, frame.size - kHeaderBytes, index,
             uint64_t{block_count()} * kThreads);
}

template <DType kDType>
UZIP_DEVICE void decode_tier(const Header& header, const Frame& frame,
                             const Destination& destination, uint32_t* status) {
  auto& room = DecodeRoom<kDType>::get();
  const bool first = block_index() == 0 && thread_index() == 0;
  room.tables.fill(thread_index());
  if (thread_index() == 0) room.tier = TierFrame<kDType>(frame, header);
  sync_block();
  const TierFrame<kDType>& tier = room.tier;
  if (!tier.sizes_add_up()) {
    if (first) report(status, FrameStatus::kSections);
    return;
  }
  const TileDecoder<kDType> decoder{
      destination,
      {block_index() * kWarps + static_cast<uint32_t>(thread_index() / kLanes),
       block_count() * kWarps, static_cast<uint32_t>(tier.sections().tiles)},
      status};
  CompiledMenus::choose(header.menu, decoder);
  if (block_index() == block_count() - 1) {
    copy_bytes(destination.values + tier.sections().tiles * float_format(kDType).tile_bytes(),
               tier.remainder(), tier.sections().remainder_bytes,
               static_cast<uint64_t>(thread_index()), kThreads);
  }
}

template <DType kDType>
struct AnsRoom {
  AnsDecodeRoom<kDType> decoder;
  // What has no room in registers.
  AnsFrame<kDType> frame;
  Destination destination;

  UZIP_DEVICE static AnsRoom& get() { return *reinterpret_cast<AnsRoom*>(shared_memory()); }
};

// Blocks of ans are dealt out to the warps such that few blocks are spread over many processors.
template <DType kDType>
UZIP_DEVICE void decode_ans(Frame frame, Destination destination, uint32_t* status) {
  constexpr FloatFormat kFormat = float_format(kDType);
  auto& room = AnsRoom<kDType>::get();
  const bool first = block_index() == 0 && thread_index() == 0;
  if (thread_index() == 0) {
    room.frame = AnsFrame<kDType>(frame, *reinterpret_cast<const Header*>(frame.bytes));
    room.destination = destination;
  }
  sync_block();
  const AnsFrame<kDType>& ans = room.frame;
  if (!ans.sizes_add_up()) {
    if (first) report(status, FrameStatus::kSections);
    return;
  }
  const int warp = thread_index() / kLanes;
  const int lane = thread_index() % kLanes;
  const auto blocks = static_cast<uint32_t>(ans.sections().blocks);
  const uint32_t step = kWarps * block_count();
  const auto block_at = [&](uint32_t index) {
    return typename AnsFrame<kDType>::Block{index, index < blocks ? ans.place_of(index) : 0};
  };
  auto next = block_at(block_index() + static_cast<uint32_t>(warp) * block_count());
  if (!fill_slots<kDType>(ans.frequencies(), room.decoder)) {
    if (first) report(status, FrameStatus::kTable);
    return;
  }
  const auto sink_of = [](uint32_t tile) {
    return sink_for<kDType>(AnsRoom<kDType>::get().destination, tile);
  };
  bool all_good = true;
  while (next.index < blocks) {
    const auto here = next;
    next = block_at(here.index + step);
    all_good = ans.decode(here, next, room.decoder.warps[warp], lane, sink_of) && all_good;
  }
  if (!all_good && lane == 0) report(status, FrameStatus::kTile);
  if (block_index() == block_count() - 1) {
    copy_bytes(destination.values + ans.sections().tiles * kFormat.tile_bytes(), ans.remainder(),
               ans.sections().remainder_bytes, static_cast<uint64_t>(thread_index()), kThreads);
  }
}

template <DType kDType>
UZIP_KERNEL(kThreads, kResident<kDType>)
decode_kernel(Frame given, DType dtype, Destination destination, uint32_t* status) {
  const Header header = *reinterpret_cast<const Header*>(given.bytes);
  const Frame frame{given.bytes, told_size(given.size, header)};
  const FrameStatus found = check_header(header, frame.size, dtype, destination.count);
  if (found != FrameStatus::kOk) {
    if (block_index() == 0 && thread_index() == 0) report(status, found);
    return;
  }
  switch (static_cast<Codec>(header.codec)) {
    case Codec::kAns:
      return decode_ans<kDType>(frame, destination, status);
    case Codec::kTier:
      return decode_tier<kDType>(header, frame, destination, status);
    default:
      return copy_raw(frame, dtype, destination, status);
  }
}

}  // namespace

template <DType kDType>
const char* launch_decode(const Frame& frame, DType dtype, const Destination& destination,
                          uint32_t* status, const DecodeOptions& options, void* stream) {
  const auto kernel = decode_kernel<kDType>;
  constexpr size_t kShared = sizeof(DecodeRoom<kDType>) > sizeof(AnsRoom<kDType>)
                                 ? sizeof(DecodeRoom<kDType>)
                                 : sizeof(AnsRoom<kDType>);
  const uint64_t groups = destination.count / (kTileValues * kGroupTiles) + 1;
  const int blocks = grid_blocks(kernel, kShared, groups, options.max_blocks);
  return launch(kernel, blocks, kThreads, kShared, static_cast<Stream>(stream), frame, dtype,
                destination, status);
}

#define UZIP_INSTANTIATE(dtype)                                                                 \
  template const char* launch_decode<dtype>(const Frame&, DType, const Destination&, uint32_t*, \
                                            const DecodeOptions&, void*);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
