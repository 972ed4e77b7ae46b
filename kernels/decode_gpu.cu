// Tensors from frames, in one launch. A warp decodes a tile at a time, of codec ans a block of
// tiles, and needs no other.
#include "ans_decode_gpu.hpp"
#include "frame_decode_gpu.hpp"

namespace uzip::gpu {
namespace {

struct Destination {
  uint8_t* values;
  uint64_t count;
  bool aligned;
};

template <DType kDType>
struct DecodeRoom {
  TailRoom<kDType> warps[kWarps];
  DecodeTables tables;
};

// Decodes a warp's tiles to memory. False: one is malformed.
template <DType kDType, int kMenu>
UZIP_DEVICE bool decode_tiles(const TierFrame<kDType>& frame, const Destination& destination) {
  auto& room = *reinterpret_cast<DecodeRoom<kDType>*>(shared_memory());
  const auto tiles = static_cast<uint32_t>(frame.sections().tiles);
  const int warp = thread_index() / kLanes;
  const int lane = thread_index() % kLanes;
  constexpr int kTileBytes = float_format(kDType).tile_bytes();
  bool all_good = true;
  for (uint32_t tile = block_index() * kWarps + static_cast<uint32_t>(warp); tile < tiles;
       tile += block_count() * kWarps) {
    MemorySink<kDType> sink{destination.values + uint64_t{tile} * kTileBytes, destination.aligned,
                            lane};
    all_good =
        frame.template decode<kMenu>(tile, room.tables, room.warps[warp], lane, sink) && all_good;
  }
  return all_good;
}

// With the code for any menu and layout. A call, so that the kernel's registers are for the others.
template <DType kDType>
UZIP_DEVICE_CALL bool decode_any_tiles(Frame frame, Destination destination) {
  const TierFrame<kDType> tier(frame, *reinterpret_cast<const Header*>(frame.bytes));
  return decode_tiles<kDType, kAnyMenu>(tier, destination);
}

// For with_menu().
template <DType kDType>
struct TileDecoder {
  const TierFrame<kDType>& tier;
  const Frame& frame;
  const Destination& destination;
  bool all_good;

  template <int kMenu>
  UZIP_DEVICE void run() {
    if constexpr (kMenu == kAnyMenu) {
      all_good = decode_any_tiles<kDType>(frame, destination);
    } else {
      all_good = decode_tiles<kDType, kMenu>(tier, destination);
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
  auto& room = *reinterpret_cast<DecodeRoom<kDType>*>(shared_memory());
  const bool first = block_index() == 0 && thread_index() == 0;
  room.tables.fill(thread_index());
  sync_block();
  const TierFrame<kDType> tier(frame, header);
  if (!tier.sizes_add_up()) {
    if (first) report(status, FrameStatus::kSections);
    return;
  }
  TileDecoder<kDType> decoder{tier, frame, destination, true};
  with_menu<1, 2, 3>(tier.menu_of(header), decoder);
  if (!decoder.all_good && thread_index() % kLanes == 0) report(status, FrameStatus::kTile);
  if (block_index() == block_count() - 1) {
    copy_bytes(destination.values + tier.sections().tiles * float_format(kDType).tile_bytes(),
               tier.remainder(), tier.sections().remainder_bytes,
               static_cast<uint64_t>(thread_index()), kThreads);
  }
}

// Blocks of ans are dealt out to the warps such that few blocks are spread over many processors. A
// call: what it needs of registers and what tier needs have nothing to do with each other.
template <DType kDType>
UZIP_DEVICE_CALL void decode_ans(Frame frame, Destination destination, uint32_t* status) {
  constexpr FloatFormat kFormat = float_format(kDType);
  auto& room = *reinterpret_cast<AnsDecodeRoom<kDType>*>(shared_memory());
  const bool first = block_index() == 0 && thread_index() == 0;
  const AnsFrame<kDType> ans(frame, *reinterpret_cast<const Header*>(frame.bytes));
  if (!ans.sizes_add_up()) {
    if (first) report(status, FrameStatus::kSections);
    return;
  }
  if (!fill_slots<kDType>(ans.frequencies(), room)) {
    if (first) report(status, FrameStatus::kTable);
    return;
  }
  const int warp = thread_index() / kLanes;
  const int lane = thread_index() % kLanes;
  const auto sink_of = [&](uint32_t tile) {
    return MemorySink<kDType>{destination.values + uint64_t{tile} * kFormat.tile_bytes(),
                              destination.aligned, lane};
  };
  const auto blocks = static_cast<uint32_t>(ans.sections().blocks);
  bool all_good = true;
  for (uint32_t block = block_index() + static_cast<uint32_t>(warp) * block_count(); block < blocks;
       block += kWarps * block_count()) {
    all_good = ans.decode(block, room.table, room.windows[warp], lane, sink_of) && all_good;
  }
  if (!all_good && lane == 0) report(status, FrameStatus::kTile);
  if (block_index() == block_count() - 1) {
    copy_bytes(destination.values + ans.sections().tiles * kFormat.tile_bytes(), ans.remainder(),
               ans.sections().remainder_bytes, static_cast<uint64_t>(thread_index()), kThreads);
  }
}

template <DType kDType>
UZIP_KERNEL(kThreads, 4)
decode_kernel(Frame frame, Destination destination, uint32_t* status) {
  const Header header = *reinterpret_cast<const Header*>(frame.bytes);
  const FrameStatus found = check_header(header, frame.size, kDType, destination.count);
  if (found != FrameStatus::kOk) {
    if (block_index() == 0 && thread_index() == 0) report(status, found);
    return;
  }
  if (static_cast<Codec>(header.codec) == Codec::kRaw) {
    copy_raw(frame, kDType, destination, status);
    return;
  }
  if constexpr (kDType != DType::kBytes) {
    if (static_cast<Codec>(header.codec) == Codec::kAns) {
      decode_ans<kDType>(frame, destination, status);
    } else {
      decode_tier<kDType>(header, frame, destination, status);
    }
  }
}

template <DType kDType>
constexpr size_t decode_shared() {
  if constexpr (kDType == DType::kBytes)
    return 0;
  else
    return sizeof(DecodeRoom<kDType>) > sizeof(AnsDecodeRoom<kDType>)
               ? sizeof(DecodeRoom<kDType>)
               : sizeof(AnsDecodeRoom<kDType>);
}

template <DType kDType>
const char* decode_as(const Frame& frame, const Destination& destination, uint32_t* status,
                      const DecodeOptions& options, Stream stream) {
  const auto kernel = decode_kernel<kDType>;
  const uint64_t groups = destination.count / (kTileValues * kGroupTiles) + 1;
  const int blocks = grid_blocks(kernel, decode_shared<kDType>(), groups, options.max_blocks);
  return launch(kernel, blocks, kThreads, decode_shared<kDType>(), stream, frame, destination,
                status);
}

}  // namespace

const char* decode(const void* frame, uint64_t frame_bytes, DType dtype, uint64_t count,
                   void* values, uint32_t* status, const DecodeOptions& options, void* stream) {
  const auto queue = static_cast<Stream>(stream);
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
  switch (dtype) {
    case DType::kBFloat16:
      return decode_as<DType::kBFloat16>(source, destination, status, options, queue);
#if UZIP_ALL_TYPES
    case DType::kFloat64:
      return decode_as<DType::kFloat64>(source, destination, status, options, queue);
    case DType::kFloat16:
      return decode_as<DType::kFloat16>(source, destination, status, options, queue);
    case DType::kFloat32:
      return decode_as<DType::kFloat32>(source, destination, status, options, queue);
    case DType::kFloat8E4M3FN:
      return decode_as<DType::kFloat8E4M3FN>(source, destination, status, options, queue);
    case DType::kFloat8E5M2:
      return decode_as<DType::kFloat8E5M2>(source, destination, status, options, queue);
#endif
    default:
      return decode_as<DType::kBytes>(source, destination, status, options, queue);
  }
}

}  // namespace uzip::gpu
