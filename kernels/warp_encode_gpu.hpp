// Groups of tier tiles that a warp codes alone, tile after tile.
//
// Their tails follow each other in the warp's room as in the frame, so they are stored together,
// and no warp waits for others. Where there are not enough groups for all warps, blocks code groups
// together (frame_encode_gpu.hpp).
#pragma once

#include "frame_encode_gpu.hpp"

namespace uzip::gpu {

// Of aligned values in memory that are fetched ahead. Shared memory is an AheadRoom.
template <DType kDType>
class WarpEncoder {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE WarpEncoder(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch, Part part)
      : tensor_(tensor),
        frame_(frame),
        scratch_(scratch),
        room_(AheadRoom<kDType>::get().encode),
        part_(part),
        warp_(thread_index() / kLanes),
        lane_(thread_index() % kLanes) {}

  // Codes this warp's groups. Where the room is too small for one, that and those behind it are
  // left to the block. The block's room has what became of it.
  template <int kMenu>
  UZIP_DEVICE void run() {
    const uint32_t step = part_.blocks * kWarps;
    uint32_t tile = (part_.block * kWarps + static_cast<uint32_t>(warp_)) * kGroupTiles;
    int bytes = 0;  // of the tails in the room
    if (lane_ == 0) room_.claims[warp_] = Claims{};
    wait_copies<0>();  // of a tile that the block would code first
    sync_lanes();
    TensorSource<kDType>{tensor_}.fetch(tile, AheadRoom<kDType>::get().stages[warp_]);
#pragma unroll 1
    while (tile < room_.plan.alone * kGroupTiles) {
      const bool is_last = (tile + 1) % kGroupTiles == 0;
      const uint32_t next = tile + 1 + (is_last ? (step - 1) * kGroupTiles : 0);
      const int size = code_tile<kMenu>(tile, next, bytes);
      if (size == kNoRoom) break;
      bytes += size;
      if (is_last) {
        store_group(tile / kGroupTiles, bytes);
        bytes = 0;
      }
      tile = next;
    }
    if (lane_ == 0) room_.stops[warp_] = tile / kGroupTiles;
  }

 private:
  static constexpr int kNoRoom = -2;
  static constexpr int kRoomBytes = sizeof(EncodeRoom<kDType>::Dense::tails[0]);
  static constexpr int kMostTail = 4 * kTailWords<kDType>;

  UZIP_DEVICE const GroupPlan& plan() const { return room_.plan; }
  UZIP_DEVICE uint32_t* tails() const { return room_.tail(0, warp_); }
  UZIP_DEVICE int raw_tail_bytes() const { return kFormat.tile_bytes() - plan().code.stride; }

  // Codes the tile that was fetched, its tail to a place in the room, and asks for the next one.
  // Returns the bytes of the tail.
  template <int kMenu>
  UZIP_DEVICE int code_tile(uint32_t tile, uint32_t next, int place) {
    const uint8_t* values = tensor_.values + uint64_t{tile} * kFormat.tile_bytes();
    uint8_t* head =
        frame_ + kHeaderBytes + uint64_t{tile} * static_cast<uint32_t>(plan().code.stride);
    Chunk* stage = AheadRoom<kDType>::get().stages[warp_];
    // Loaded once: what the coder stores might be these.
    const TileCode code = plan().code;
    const DigitTable digit_table = plan().digits;
    uint32_t* tail = tails() + (place >> 2);
    const int begin = place & 3;
    wait_copies<0>();
    sync_lanes();  // for the tail before, and others' copies
    if (place + kMostTail > kRoomBytes) return kNoRoom;
    if (lane_ == 0 && begin != 0) *tail &= (1u << 8 * begin) - 1;
    uint32_t digits[kQuads];
    const bool codable = split_rows<kDType, kMenu>(code, digit_table, StagedRows<kDType>{stage},
                                                   head, room_.offsets(warp_), lane_, digits);
    sync_lanes();
    TensorSource<kDType>{tensor_}.fetch(next, stage);
    int bytes = kNotCodable;
    if (codable) {
      bytes = encode_digits<kDType, kMenu>(code, room_.tables, values, digits, head,
                                           room_.offsets(warp_), tail, lane_, begin);
    }
    const TileKind kind = bytes != kNotCodable ? TileKind::kCoded : TileKind::kRaw;
    if (kind == TileKind::kRaw) {
      bytes = raw_tail_bytes();
      if (place + bytes > kRoomBytes) return kNoRoom;
      copy_raw(values, head, place);
    }
    if (lane_ == 0) {
      room_.entries[warp_][tile % kGroupTiles] =
          static_cast<uint16_t>(static_cast<int>(kind) << kTileSizeBits | bytes);
    }
    return bytes;
  }

  // A call, as it is seldom wanted.
  UZIP_DEVICE_CALL static void copy_raw_parts(uint8_t* head, uint8_t* tail, const uint8_t* values,
                                              int stride) {
    const auto lane = static_cast<uint64_t>(thread_index() % kLanes);
    sync_lanes();  // others may still write there
    copy_bytes(head, values, static_cast<uint64_t>(stride), lane, kLanes);
    copy_bytes(tail, values + stride, static_cast<uint64_t>(kFormat.tile_bytes() - stride), lane,
               kLanes);
  }
  UZIP_DEVICE void copy_raw(const uint8_t* values, uint8_t* head, int place) const {
    copy_raw_parts(head, reinterpret_cast<uint8_t*>(tails()) + place, values, plan().code.stride);
  }

  UZIP_DEVICE TailSection section() const {
    const int most = kGroupTiles * raw_tail_bytes();
    return {scratch_, plan().room, static_cast<uint32_t>(plan().sections.groups),
            TailSection::units_of(most)};
  }

  // Stores the tails that are in the room, and what the directory says of them.
  UZIP_DEVICE void store_group(uint32_t group, int bytes) {
    auto* all = reinterpret_cast<uint8_t*>(tails());
    if (lane_ < (-bytes & (kAlignment - 1))) all[bytes + lane_] = 0;
    uint32_t unit = 0;
    if (lane_ == 0) {
      const uint32_t units = TailSection::units_of(bytes);
      const Claims claims = section().claim(units);
      room_.claims[warp_] = claims;
      unit = section().enter(frame_ + plan().sections.group_entry(group), claims, units);
    }
    sync_lanes();
    if (lane_ < kGroupTiles) {
      const uint32_t tile = group * kGroupTiles + static_cast<uint32_t>(lane_);
      *reinterpret_cast<uint16_t*>(frame_ + plan().sections.tile_entry(tile)) =
          room_.entries[warp_][lane_];
    }
    unit = shuffle32(unit, 0);
    if (unit == kNoUnit) return;
    auto* to =
        reinterpret_cast<Chunk*>(frame_ + plan().sections.tails + uint64_t{unit} * kAlignment);
    const auto* from = reinterpret_cast<const Chunk*>(all);
#pragma unroll 1
    for (int i = lane_; i * kAlignment < bytes; i += kLanes) to[i] = from[i];
  }

  const Tensor& tensor_;
  uint8_t* frame_;
  EncodeScratch* scratch_;
  EncodeRoom<kDType>& room_;
  Part part_;
  int warp_;
  int lane_;
};

}  // namespace uzip::gpu
