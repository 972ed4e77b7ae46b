// What a kernel does to write a frame: raw, or group after group of tier tiles.
//
// A block codes a group of tiles at a time, a warp each tile; heads go to their places at once.
// Tails wait in shared memory until one atomic addition per group has told where they go, and are
// stored while the next group is coded.
#pragma once

#include "frame_finish_gpu.hpp"
#include "packed_encode_gpu.hpp"
#include "select_gpu.hpp"
#include "tier_encode_gpu.hpp"

namespace uzip::gpu {

// What an encoder of groups needs to know of a frame. In shared memory: as much in registers would
// leave too few for coding.
struct GroupPlan {
  TileCode code;
  DigitTable digits;
  Sections sections;
  uint32_t room;       // of the tail section: see TailSection
  uint32_t alone = 0;  // the first groups, which warps code alone

  template <DType kDType>
  UZIP_DEVICE static GroupPlan of(const Choice& choice, uint64_t count) {
    const auto code = TileCode::of<kDType>(choice.parameters);
    const auto sections = Sections::of(count, float_format(kDType).itemsize, code.stride);
    return {code, choice.digits, sections,
            TailSection::room_between(sections.tails, bound(count, kDType))};
  }
};

// The groups that warps code alone where values are fetched ahead, the first ones of a frame: as
// many for each warp.
UZIP_HD uint32_t groups_alone(uint64_t count, Part part) {
  const auto whole = static_cast<uint32_t>(count / (kTileValues * kGroupTiles));
  const uint32_t warps = part.blocks * kWarps;
  return whole < warps ? 0 : whole / warps * warps;
}

// What a block shares while it codes groups.
struct GroupRoom {
  GroupPlan plan;
  EncodeTables tables;
  Choice choice;
  alignas(16) uint32_t sizes[2][kWarps];  // bytes of the tails of a group
  uint32_t units[2];                      // where these go; kNoUnit: nowhere
  // Of warps that code groups alone: when they asked last, the first group of theirs that they have
  // not coded, and what the directory is to have of a group.
  Claims claims[kWarps];
  uint32_t stops[kWarps];
  uint16_t entries[kWarps][kGroupTiles];
  FinishRoom finish;
};

template <DType kDType>
struct EncodeRoom : GroupRoom {
  struct Dense {
    OffsetRoom<kDType> offsets[kWarps];
    // Of each warp, for two groups in turn, or for one that it codes alone.
    alignas(16) uint32_t tails[kWarps][2][kTailWords<kDType>];
  };
  union {
    SelectRoom<kDType> select;
    Dense dense;
    PackedRoom<kDType> packed[kWarps];
  };

  // Of a warp: to code a tile, and for the tail that it makes.
  UZIP_DEVICE OffsetRoom<kDType>& offsets(int warp) { return dense.offsets[warp]; }
  UZIP_DEVICE uint32_t* tail(int turn, int warp) { return dense.tails[warp][turn]; }
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

// Where an encoder takes values from: a tensor in memory.
template <DType kDType>
struct TensorSource {
  static constexpr FloatFormat kFormat = float_format(kDType);
  static constexpr bool kMayFail = false;
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
      stage += static_cast<uint32_t>(lane);
#pragma unroll
      for (int i = 0; i < kChunks; i += kLanes) copy_later(stage + i, chunks + i);
    }
    commit_copies();
  }
  // Of a tile that was asked for before.
  UZIP_DEVICE const uint8_t* values_again(uint32_t tile) { return values(tile); }
  // Whether all values could be made; asked for when all were, if the source may fail.
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

// Whether a frame of whole tiles that is smaller than a raw one has room for tails at all. If a
// head is smaller than the values, then by a plane or more, of 128 bytes at least, while the
// directory takes 2.5 bytes of each tile and all padding 34.
template <DType kDType>
UZIP_DEVICE bool has_room_for_tails(uint64_t count, const TierParameters& parameters) {
  return TileCode::of<kDType>(parameters).stride < float_format(kDType).tile_bytes() &&
         bound(count, kDType) <= kMostBytes;
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
        plan_(room.plan),
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
      if (tile.present()) code_fetched<kMenu>(&tile, group + part_.blocks);
      take(tile);
    }
  }

  // The same but for the groups that this block's warps have coded alone, by all of them when they
  // have.
  template <int kMenu>
  UZIP_DEVICE void run_rest() {
    take_claims();
    GroupTurn next = after({0, -1});
    wait_copies<0>();  // to where the next tile goes
    sync_lanes();
    source_.fetch(tile_of(next.group), AheadRoom<kDType>::get().stages[warp_]);
    int turn = 0;
#pragma unroll 1
    while (next.group < groups()) {
      CodedTile tile = begin_tile(next.group, turn);
      next = after(next);
      if (tile.present()) code_fetched<kMenu>(&tile, next.group);
      take(tile);
      turn ^= 1;
    }
  }

  // A tile whose tail is still in the room, or, if not coded, with the source.
  struct CodedTile {
    uint32_t group;
    int turn;
    uint32_t entry;  // in the directory; kAbsent: there is no such tile

    static constexpr uint32_t kAbsent = 1u << 31;
    UZIP_DEVICE bool present() const { return entry != kAbsent; }
    UZIP_DEVICE int bytes() const {  // of the tail
      return static_cast<int>(entry & ((1u << kTileSizeBits) - 1));
    }
    UZIP_DEVICE bool is_raw() const { return entry >> kTileSizeBits != 0; }
    UZIP_DEVICE void set(TileKind kind, int bytes) {
      entry = static_cast<uint32_t>(static_cast<int>(kind) << kTileSizeBits | bytes);
    }
  };
  static_assert(static_cast<int>(TileKind::kCoded) == 0);

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
    if (result.present()) code_values<kMenu>(source_.values(tile_of(group)), &result);
    return result;
  }
  UZIP_DEVICE CodedTile begin_tile(uint32_t group, int turn) const {
    const bool present = tile_of(group) < static_cast<uint32_t>(plan_.sections.tiles);
    return {group, turn, present ? 0 : CodedTile::kAbsent};
  }

  // Codes the values of the tile that `result` says.
  template <int kMenu>
  UZIP_DEVICE void code_values(const uint8_t* values, CodedTile* result) {
    uint8_t* head = head_of(result->group);
    sync_lanes();  // for the tail that the room had before
    note(encode_dense_tile<kDType, kMenu>(plan_.code, plan_.digits, room_.tables, values,
                                          source_.aligned(), head, offsets(), tail(result->turn),
                                          lane_),
         values, result);
  }
  // Takes a coder's result. Makes a tile that cannot be coded a raw one.
  UZIP_DEVICE void note(int bytes, const uint8_t* values, CodedTile* result) const {
    result->set(TileKind::kCoded, bytes);
    if (bytes != kNotCodable) return;
    result->set(TileKind::kRaw, kFormat.tile_bytes() - plan_.code.stride);
    copy_bytes(head_of(result->group), values, static_cast<uint64_t>(plan_.code.stride),
               static_cast<uint64_t>(lane_), kLanes);
  }

  // The same, of the fetched tile. Asks for the warp's next one.
  template <int kMenu>
  UZIP_DEVICE void code_fetched(CodedTile* result, uint32_t next) {
    const uint8_t* values = source_.values(tile_of(result->group));
    uint8_t* head = head_of(result->group);
    Chunk* stage = AheadRoom<kDType>::get().stages[warp_];
    // A lane has fetched the very chunks that it loads only where 8 values are one.
    constexpr bool kShared = 8 * kFormat.itemsize != kAlignment;
    // Loaded once: what the coder stores might be these.
    const TileCode code = plan_.code;
    const DigitTable digit_table = plan_.digits;
    wait_copies<0>();
    sync_lanes();  // also for the tail that the room had before
    uint32_t digits[kQuads];
    const bool codable = split_rows<kDType, kMenu>(code, digit_table, StagedRows<kDType>{stage},
                                                   head, offsets(), lane_, digits);
    if constexpr (kShared) sync_lanes();
    source_.fetch(tile_of(next), stage);
    int bytes = kNotCodable;
    if (codable) {
      bytes = encode_digits<kDType, kMenu>(code, room_.tables, values, digits, head, offsets(),
                                           tail(result->turn), lane_);
    }
    note(bytes, values, result);
  }

  // Called by all warps with their tiles of a group.
  UZIP_DEVICE void take(const CodedTile& tile) {
    if (lane_ == 0) room_.sizes[tile.turn][warp_] = static_cast<uint32_t>(tile.bytes());
    finish_last();
    last_ = tile;
    measure_group(tile.turn);
  }
  // Has the tail of the last one stored.
  UZIP_DEVICE void take_no_more() {
    finish_last();
    last_.turn = kNoTurn;
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

  // Called by all blocks when their groups are done. `raw`: instead of groups the values were
  // written.
  UZIP_DEVICE void finish(bool raw = false) {
    const auto complete = [&](bool overflow, uint64_t body) {
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
    const Claims claims = raw ? Claims{} : room_.finish.claims;
    finish_frame<Source::kMayFail>(tails(), part_, &room_.finish, claims, complete, rewrite);
  }

 private:
  // A group that the block codes: one that its warp `warp` has left, or one of those behind,
  // kWarps.
  struct GroupTurn {
    uint32_t group;
    int warp;
  };
  UZIP_DEVICE GroupTurn after(GroupTurn turn) const {
    if (turn.warp == kWarps) return {turn.group + part_.blocks, kWarps};
    turn.group += part_.blocks * kWarps;
    while (turn.warp < 0 || turn.group >= plan_.alone) {
      ++turn.warp;
      if (turn.warp == kWarps) return {plan_.alone + part_.block, kWarps};
      turn.group = room_.stops[turn.warp];
    }
    return turn;
  }
  // Knows of the claims of warps that coded groups alone. By all of them when they have.
  UZIP_DEVICE void take_claims() {
    sync_block();
    if (thread_index() != 0) return;
#pragma unroll
    for (const Claims& claims : room_.claims) {
      if (claims.groups() > claims_.groups()) claims_ = claims;
    }
    room_.finish.claims = claims_;
  }

  UZIP_DEVICE bool has_last() const { return last_.turn != kNoTurn; }
  UZIP_DEVICE OffsetRoom<kDType>& offsets() { return room_.offsets(warp_); }
  UZIP_DEVICE uint32_t* tail(int turn) { return room_.tail(turn, warp_); }

  // Meets the other warps, and stores the tail of the last tile, whose place is known by now.
  UZIP_DEVICE void finish_last() {
    if (thread_index() == 0 && has_last()) {
      room_.units[last_.turn] = place_last();
      room_.finish.claims = claims_;
    }
    sync_block();
    if (!has_last()) return;
    const uint32_t unit = room_.units[last_.turn];
    if (unit == kNoUnit) return;
    uint8_t* tails = frame_ + plan_.sections.tails + uint64_t{unit} * kAlignment;
    if (last_.present()) store_last(tails + (last_sums_ & 0xFFFF));
    const int total = last_total();
    if (warp_ == 0 && lane_ < (-total & (kAlignment - 1))) tails[total + lane_] = 0;
  }

  UZIP_DEVICE void store_last(uint8_t* to) {
    const uint32_t tile = tile_of(last_.group);
    if (!last_.is_raw()) {
      store_tail(to, tail(last_.turn), last_.bytes(), lane_);
    } else {
      copy_bytes(to, source_.values_again(tile) + plan_.code.stride,
                 static_cast<uint64_t>(last_.bytes()), static_cast<uint64_t>(lane_), kLanes);
    }
    if (lane_ == 0) {
      *reinterpret_cast<uint16_t*>(frame_ + plan_.sections.tile_entry(tile)) =
          static_cast<uint16_t>(last_.entry);
    }
  }

  // Adds up the group's tails, all of which are coded, and asks for their place.
  UZIP_DEVICE void measure_group(int turn) {
    const uint32_t size = lane_ < kWarps ? room_.sizes[turn][lane_] : 0;
    last_sums_ = sum32(lane_ < warp_ ? size : 0) | sum32(size) << 16;
    // The sum is not looked at before the next group is coded.
    if (thread_index() == 0) {
      claims_ = tails().claim(TailSection::units_of(last_total()));
    }
  }

  UZIP_DEVICE TailSection tails() const {
    const int most = kGroupTiles * (kFormat.tile_bytes() - plan_.code.stride);
    return {scratch_, plan_.room, groups(), TailSection::units_of(most)};
  }

  UZIP_DEVICE int last_total() const { return static_cast<int>(last_sums_ >> 16); }
  UZIP_DEVICE uint32_t place_last() const {
    return tails().enter(frame_ + plan_.sections.group_entry(last_.group), claims_,
                         TailSection::units_of(last_total()));
  }

  Source& source_;
  uint8_t* frame_;
  EncodeScratch* scratch_;
  Room& room_;
  Part part_;
  const GroupPlan& plan_;
  int warp_;
  int lane_;
  static constexpr int kNoTurn = -1;
  CodedTile last_{0, kNoTurn, 0};
  // Bytes of the tails of the group's tiles before, and << 16 of all.
  uint32_t last_sums_ = 0;
  static_assert(kGroupTiles * kFormat.tile_bytes() <= 1 << 16);
  Claims claims_{};  // thread 0: when the last group asked for room
};

}  // namespace uzip::gpu
