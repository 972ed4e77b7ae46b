// What a kernel does to write a frame: raw, or group after group of tier tiles.
//
// A block codes a group of tiles at a time, a warp each tile; heads go to their places at once.
// Tails wait in shared memory until one atomic addition per group has told where they go, and are
// stored while the next group is coded.
#pragma once

#include <utility>

#include "frame_finish_gpu.hpp"
#include "packed_encode_gpu.hpp"
#include "select_gpu.hpp"
#include "tier_encode_gpu.hpp"

namespace uzip::gpu {

// What a block shares while it codes groups.
struct GroupRoom {
  EncodeTables tables;
  Choice choice;
  alignas(16) uint32_t sizes[2][kWarps];  // bytes of the tails of a group
  uint32_t units[2];                      // where these go; kNoUnit: nowhere
  FinishRoom finish;
};

// What an encoder of groups needs to know of a frame.
struct GroupPlan {
  TileCode code;
  DigitTable digits;
  Sections sections;

  template <DType kDType>
  UZIP_DEVICE static GroupPlan of(const Choice& choice, uint64_t count) {
    const auto code = TileCode::of<kDType>(choice.parameters);
    return {code, choice.digits, Sections::of(count, float_format(kDType).itemsize, code.stride)};
  }
};

template <DType kDType>
struct EncodeRoom : GroupRoom {
  struct Dense {
    OffsetRoom<kDType> offsets[kWarps];
    uint32_t tails[2][kWarps][kTailWords<kDType>];  // of two groups in turn
  };
  union {
    SelectRoom<kDType> select;
    Dense dense;
    PackedRoom<kDType> packed[kWarps];
  };

  // Of a warp: to code a tile, and for the tail that it makes.
  UZIP_DEVICE OffsetRoom<kDType>& offsets(int warp) { return dense.offsets[warp]; }
  UZIP_DEVICE uint32_t* tail(int turn, int warp) { return dense.tails[turn][warp]; }
  // Of a tensor of `count` values, with the parameters chosen.
  UZIP_DEVICE GroupPlan plan(uint64_t count) const {
    return GroupPlan::of<kDType>(this->choice, count);
  }
};

// A warp that fetches its next tile while it codes one does not wait for memory. The largest types
// have not the shared memory for it.
template <DType kDType>
constexpr bool kEncodesAhead = float_format(kDType).itemsize <= (kLargeShared ? 4 : 2);

// Blocks on a multiprocessor, as many as shared memory has room for.
template <DType kDType>
constexpr int kEncodeResident = float_format(kDType).itemsize <= 2 ? 4 : 2;

// The same, and each warp's next tile on its way: what shared memory begins with in kernels that
// encode tensors.
template <DType kDType>
struct AheadRoom {
  static constexpr int kStageChunks =
      kEncodesAhead<kDType> ? float_format(kDType).tile_bytes() / kAlignment : 1;
  // A warp's access of 512 bytes that does not begin with a row of all banks takes a turn more.
  static constexpr int kBankRow = 128;

  EncodeRoom<kDType> encode;
  uint8_t padding[kBankRow - sizeof(EncodeRoom<kDType>) % kBankRow];
  Chunk stages[kWarps][kStageChunks];

  UZIP_DEVICE static AheadRoom& get() { return *reinterpret_cast<AheadRoom*>(shared_memory()); }
};
constexpr uint32_t kNoUnit = ~0u;

// Of the values of a tier frame. Places of groups are 32 bits; half of that leaves room for groups
// that are placed beyond the limit.
constexpr uint64_t kMostBytes = uint64_t{1} << 35;

UZIP_DEVICE void write_header(uint8_t* frame, DType dtype, Codec codec, uint64_t count,
                              uint64_t frame_bytes, uint64_t body_bytes,
                              const TierParameters& parameters) {
  Header header{};
  header.magic[0] = 'U';
  header.magic[1] = 'Z';
  header.magic[2] = 'I';
  header.magic[3] = 'P';
  header.version = kVersion;
  header.dtype = static_cast<uint8_t>(dtype);
  header.codec = static_cast<uint8_t>(codec);
  header.count = count;
  header.frame_bytes = frame_bytes;
  header.menu = static_cast<uint8_t>(parameters.menu);
  header.zero_planes = static_cast<uint8_t>(parameters.zero_planes);
  header.base = static_cast<uint16_t>(parameters.base);
  for (int i = 0; i < 8; ++i) {
    header.order[i] = static_cast<uint8_t>(parameters.order[i / 4] >> 8 * (i % 4));
  }
  header.body_bytes = body_bytes;
  *reinterpret_cast<Header*>(frame) = header;
}

template <DType kDType>
UZIP_DEVICE void write_raw_header(uint8_t* frame, uint64_t count) {
  write_header(frame, kDType, Codec::kRaw, count, bound(count, kDType), 0, {});
}

UZIP_DEVICE void write_raw(const Tensor& tensor, DType dtype, uint8_t* frame, Part part) {
  const uint64_t bytes = tensor.count * float_format(dtype).itemsize;
  const auto thread = static_cast<uint64_t>(thread_index());
  copy_bytes(frame + kHeaderBytes, tensor.values, bytes, uint64_t{part.block} * kThreads + thread,
             uint64_t{part.blocks} * kThreads);
  if (part.block == 0 && thread == 0) {
    write_header(frame, dtype, Codec::kRaw, tensor.count, kHeaderBytes + bytes, 0, {});
  }
}

// The tail section of a frame as encoders fill it. Whoever has coded a group or a block asks for
// units of 16 bytes by an atomic addition to scratch->tail_units.
struct TailSection {
  EncodeScratch* scratch;
  uint64_t begin;  // in the frame
  uint64_t limit;  // bytes of a raw frame, below which this one must stay

  UZIP_DEVICE static uint32_t units_of(int bytes) {
    return static_cast<uint32_t>((bytes + kAlignment - 1) / kAlignment);
  }

  // Enters a place in the directory; kNoUnit where the frame would become too large.
  UZIP_DEVICE uint32_t enter(uint8_t* entry, uint32_t unit, uint32_t units) const {
    *reinterpret_cast<uint32_t*>(entry) = unit;
    if (begin + (uint64_t{unit} + units) * kAlignment < limit) return unit;
    atomic_or(&scratch->overflow, 1);
    return kNoUnit;
  }
};

// Where an encoder takes values from: a tensor in memory.
template <DType kDType>
struct TensorSource {
  static constexpr FloatFormat kFormat = float_format(kDType);
  Tensor tensor;

  UZIP_DEVICE uint64_t count() const { return tensor.count; }
  UZIP_DEVICE bool aligned() const { return tensor.aligned; }

  // A tile's values, for its warp. They stay where they are until the next tile is asked for.
  UZIP_DEVICE const uint8_t* values(uint32_t tile) const {
    return tensor.values + uint64_t{tile} * kFormat.tile_bytes();
  }
  // Asks for a tile of aligned values, if there is such a tile.
  UZIP_DEVICE void fetch(uint32_t tile, Chunk* stage) const {
    if (tile < tensor.count / kTileValues) {
      constexpr int kChunks = kFormat.tile_bytes() / kAlignment;
      const int lane = thread_index() % kLanes;
      const auto* chunks = reinterpret_cast<const Chunk*>(values(tile)) + lane;
#pragma unroll
      for (int i = 0; i < kChunks; i += kLanes) copy_later(stage + lane + i, chunks + i);
    }
    commit_copies();
  }
  // Of a tile that was asked for before.
  UZIP_DEVICE const uint8_t* values_again(uint32_t tile) { return values(tile); }
  // Whether all values could be made; asked for when all were.
  UZIP_DEVICE bool sound() const { return true; }
  // By one block.
  UZIP_DEVICE void write_remainder(uint8_t* to) {
    const uint64_t tiles_bytes = tensor.count / kTileValues * kFormat.tile_bytes();
    copy_bytes(to, tensor.values + tiles_bytes, tensor.count * kFormat.itemsize - tiles_bytes,
               static_cast<uint64_t>(thread_index()), kThreads);
  }
  UZIP_DEVICE void write_raw_frame(uint8_t* frame, Part part) {
    write_raw(tensor, kDType, frame, part);
  }
};

// Whether a frame smaller than a raw one has room for tails at all.
template <DType kDType>
UZIP_DEVICE bool has_room_for_tails(uint64_t count, const TierParameters& parameters) {
  const int stride = TileCode::of<kDType>(parameters).stride;
  const uint64_t raw_bytes = bound(count, kDType);
  return Sections::of(count, float_format(kDType).itemsize, stride).tails < raw_bytes &&
         raw_bytes <= kMostBytes;
}

// Codes the groups of a frame with several blocks. `Source` has the face of TensorSource, `Room`
// what EncodeRoom has for dense tiles.
template <DType kDType, typename Source, typename Room = EncodeRoom<kDType>>
class GroupEncoder {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE GroupEncoder(Source& source, uint8_t* frame, EncodeScratch* scratch, Room& room,
                           Part part)
      : source_(source),
        frame_(frame),
        scratch_(scratch),
        room_(room),
        part_(part),
        plan_(room.plan(source.count())),
        warp_(thread_index() / kLanes),
        lane_(thread_index() % kLanes) {}

  // Codes this block's groups; take_no_more() is to follow.
  template <int kMenu>
  UZIP_DEVICE void run() {
    int turn = 0;
    for (uint32_t group = part_.block; group < groups(); group += part_.blocks, turn ^= 1) {
      take(code_tile<kMenu>(group, turn));
    }
  }

  // The same, of aligned values in memory; the first tiles have been asked for. Shared memory is an
  // AheadRoom.
  template <int kMenu>
  UZIP_DEVICE void run_ahead() {
    int turn = 0;
#pragma unroll 1
    for (uint32_t group = part_.block; group < groups(); group += part_.blocks, turn ^= 1) {
      CodedTile tile = begin_tile(group, turn);
      if (tile.present) code_fetched<kMenu>(&tile);
      take(tile);
    }
  }

  // A tile whose tail is still in the room, or, if not coded, with the source.
  struct CodedTile {
    uint32_t group;
    int turn;
    int bytes;   // of the tail
    int before;  // of the tails of the group's tiles before
    int total;   // of all tails of the group
    bool coded;
    bool present;
  };

  UZIP_DEVICE uint32_t tile_of(uint32_t group) const {
    return group * kGroupTiles + static_cast<uint32_t>(warp_);
  }
  // Where the head of this warp's tile of a group goes.
  UZIP_DEVICE uint8_t* head_of(uint32_t group) const {
    return frame_ + kHeaderBytes +
           uint64_t{tile_of(group)} * static_cast<uint32_t>(plan_.code.stride);
  }
  UZIP_DEVICE uint32_t groups() const { return static_cast<uint32_t>(plan_.sections.groups); }

  // Codes this warp's tile of a group; its head goes to its place. Two groups in turn use the room.
  template <int kMenu>
  UZIP_DEVICE CodedTile code_tile(uint32_t group, int turn) {
    CodedTile result = begin_tile(group, turn);
    if (result.present) code_values<kMenu>(source_.values(tile_of(group)), &result);
    return result;
  }
  UZIP_DEVICE CodedTile begin_tile(uint32_t group, int turn) const {
    return {
        group, turn, 0, 0, 0, true, tile_of(group) < static_cast<uint32_t>(plan_.sections.tiles)};
  }

  // Codes the values of the tile that `result` says.
  template <int kMenu>
  UZIP_DEVICE void code_values(const uint8_t* values, CodedTile* result) {
    uint8_t* head = head_of(result->group);
    note(encode_dense_tile<kDType, kMenu>(plan_.code, plan_.digits, room_.tables, values,
                                          source_.aligned(), head, offsets(), tail(result->turn),
                                          lane_),
         values, result);
  }
  // Takes a coder's result. Makes a tile that cannot be coded a raw one.
  UZIP_DEVICE void note(int bytes, const uint8_t* values, CodedTile* result) const {
    result->bytes = bytes;
    if (bytes != kNotCodable) return;
    result->coded = false;
    result->bytes = kFormat.tile_bytes() - plan_.code.stride;
    copy_bytes(head_of(result->group), values, static_cast<uint64_t>(plan_.code.stride),
               static_cast<uint64_t>(lane_), kLanes);
  }

  // The same, of the fetched tile. Asks for the warp's next one.
  template <int kMenu>
  UZIP_DEVICE void code_fetched(CodedTile* result) {
    const uint8_t* values = source_.values(tile_of(result->group));
    uint8_t* head = head_of(result->group);
    Chunk* stage = AheadRoom<kDType>::get().stages[warp_];
    // A lane has fetched the very chunks that it loads only where 8 values are one.
    constexpr bool kShared = 8 * kFormat.itemsize != kAlignment;
    wait_copies<0>();
    if constexpr (kShared) sync_lanes();
    uint32_t digits[kQuads];
    const bool codable = split_rows<kDType, kMenu>(
        plan_.code, plan_.digits, StagedRows<kDType>{stage}, head, offsets(), lane_, digits);
    if constexpr (kShared) sync_lanes();
    source_.fetch(tile_of(result->group + part_.blocks), stage);
    int bytes = kNotCodable;
    if (codable) {
      bytes = encode_digits<kDType, kMenu>(plan_.code, room_.tables, values, digits, head,
                                           offsets(), tail(result->turn), lane_);
    }
    note(bytes, values, result);
  }

  // Called by all warps with their tiles of a group.
  UZIP_DEVICE void take(const CodedTile& tile) {
    if (lane_ == 0) room_.sizes[tile.turn][warp_] = static_cast<uint32_t>(tile.bytes);
    finish_last();
    last_ = tile;
    measure_group(tile.turn);
  }
  // Has the tail of the last one stored.
  UZIP_DEVICE void take_no_more() {
    finish_last();
    has_last_ = false;
  }

  // Writes what belongs to no group; by one block.
  UZIP_DEVICE void write_remainder() {
    const auto thread = static_cast<uint64_t>(thread_index());
    uint8_t* remainder = frame_ + plan_.sections.remainder;
    source_.write_remainder(remainder);
    zero_bytes(remainder + plan_.sections.remainder_bytes, frame_ + plan_.sections.directory,
               thread, kThreads);
    zero_bytes(frame_ + plan_.sections.tile_entry(plan_.sections.tiles),
               frame_ + plan_.sections.tails, thread, kThreads);
  }

  // Called by all blocks when their groups are done; the last one writes the header. `raw`: instead
  // of groups the values were written.
  UZIP_DEVICE void finish(bool raw = false) {
    const auto complete = [&](bool overflow, uint64_t body) {
      if (thread_index() != 0) return;
      if (!source_.sound()) {
        *reinterpret_cast<Header*>(frame_) = Header{};
      } else if (raw || overflow) {
        write_raw_header<kDType>(frame_, source_.count());
      } else {
        write_header(frame_, kDType, Codec::kTier, source_.count(), plan_.sections.tails + body,
                     body, room_.choice.parameters);
      }
    };
    const auto rewrite = [&](Part piece) { source_.write_raw_frame(frame_, piece); };
    finish_frame(scratch_, part_, &room_.finish, !raw && is_near_raw(), complete, rewrite);
  }

 private:
  UZIP_DEVICE OffsetRoom<kDType>& offsets() { return room_.offsets(warp_); }
  UZIP_DEVICE uint32_t* tail(int turn) { return room_.tail(turn, warp_); }

  // Meets the other warps, and stores the tail of the last tile, whose place is known by now.
  UZIP_DEVICE void finish_last() {
    if (thread_index() == 0 && has_last_) room_.units[last_.turn] = place_last();
    sync_block();
    if (!has_last_) return;
    const uint32_t unit = room_.units[last_.turn];
    if (unit == kNoUnit) return;
    uint8_t* tails = frame_ + plan_.sections.tails + uint64_t{unit} * kAlignment;
    if (last_.present) store_last(tails + last_.before);
    if (warp_ == 0 && lane_ < (-last_.total & (kAlignment - 1))) tails[last_.total + lane_] = 0;
  }

  UZIP_DEVICE void store_last(uint8_t* to) {
    const uint32_t tile = tile_of(last_.group);
    if (last_.coded) {
      store_tail(to, tail(last_.turn), last_.bytes, lane_);
    } else {
      copy_bytes(to, source_.values_again(tile) + plan_.code.stride,
                 static_cast<uint64_t>(last_.bytes), static_cast<uint64_t>(lane_), kLanes);
    }
    if (lane_ == 0) {
      const auto kind = static_cast<int>(last_.coded ? TileKind::kCoded : TileKind::kRaw);
      *reinterpret_cast<uint16_t*>(frame_ + plan_.sections.tile_entry(tile)) =
          static_cast<uint16_t>(kind << kTileSizeBits | last_.bytes);
    }
  }

  // Adds up the group's tails, all of which are coded, and asks for their place.
  UZIP_DEVICE void measure_group(int turn) {
    const uint32_t size = lane_ < kWarps ? room_.sizes[turn][lane_] : 0;
    last_.before = static_cast<int>(sum32(lane_ < warp_ ? size : 0));
    last_.total = static_cast<int>(sum32(size));
    has_last_ = true;
    // The sum is not looked at before the next group is coded.
    if (thread_index() == 0) {
      unit_ = atomic_add(&scratch_->tail_units, TailSection::units_of(last_.total));
    }
  }

  UZIP_DEVICE uint64_t raw_bytes() const { return bound(source_.count(), kDType); }
  // Whether this block's last group is.
  UZIP_DEVICE bool is_near_raw() const {
    const int heads = kGroupTiles * plan_.code.stride;
    return gpu::is_near_raw(static_cast<uint64_t>(heads + last_.total),
                            kGroupTiles * kFormat.tile_bytes());
  }

  UZIP_DEVICE uint32_t place_last() const {
    const TailSection tails{scratch_, plan_.sections.tails, raw_bytes()};
    return tails.enter(frame_ + plan_.sections.group_entry(last_.group), unit_,
                       TailSection::units_of(last_.total));
  }

  Source& source_;
  uint8_t* frame_;
  EncodeScratch* scratch_;
  Room& room_;
  Part part_;
  decltype(std::declval<Room&>().plan(0)) plan_;
  int warp_;
  int lane_;
  CodedTile last_{};
  bool has_last_ = false;
  uint32_t unit_ = 0;  // thread 0: of the last group
};

}  // namespace uzip::gpu
