// A block's part in writing a tier frame: choice of parameters and layout, then its groups.
//
// In the packed layout a group's place is asked for as soon as all its tiles are coded, and they
// are stored then, heads and all.
#pragma once

#include "warp_encode_gpu.hpp"

namespace uzip::gpu {

template <DType kDType>
class PackedEncoder {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE PackedEncoder(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                            EncodeRoom<kDType>& room, Part part)
      : tensor_(tensor),
        frame_(frame),
        scratch_(scratch),
        room_(room),
        part_(part),
        plan_(room.plan),
        sections_(room.plan.sections),
        warp_(thread_index() / kLanes),
        lane_(thread_index() % kLanes) {}

  // What the room is to have first; by one thread.
  UZIP_DEVICE static void plan(uint64_t count, EncodeRoom<kDType>& room) {
    const auto sections = Sections::of(count, kFormat.itemsize, 0);
    room.plan = {TileCode::of<kDType>(room.choice.parameters), room.choice.digits, sections,
                 TailSection::room_between(sections.tails, bound(count, kDType))};
  }

  UZIP_DEVICE bool has_room() const { return sections_.tails < bound(tensor_.count, kDType); }

  // Codes this block's groups. kAhead: of aligned values, and the first tiles have been asked for.
  // Shared memory is an AheadRoom.
  template <int kMenu, bool kAhead>
  UZIP_DEVICE void run() {
    const auto groups = static_cast<uint32_t>(sections_.groups);
#pragma unroll 1
    for (uint32_t group = part_.block; group < groups; group += part_.blocks) {
      const uint32_t tile = group * kGroupTiles + static_cast<uint32_t>(warp_);
      const bool present = tile < sections_.tiles;
      PackedTile packed{TileKind::kConstant, 0, 0, 0, 0};
      if (present) packed = encode<kMenu, kAhead>(tile);
      if (lane_ == 0) room_.sizes[0][warp_] = static_cast<uint32_t>(packed.size);
      sync_block();
      const uint32_t size = lane_ < kWarps ? room_.sizes[0][lane_] : 0;
      const uint32_t before = sum32(lane_ < warp_ ? size : 0);
      const uint32_t total = sum32(size);
      if (thread_index() == 0) room_.units[0] = place_group(group, total);
      sync_block();
      const uint32_t unit = room_.units[0];
      if (!present || unit == kNoUnit) continue;
      store(tile, packed, frame_ + sections_.tails + uint64_t{unit} * kAlignment + before);
    }
  }

  // Writes what belongs to no group; by one block.
  UZIP_DEVICE void write_remainder() const {
    const auto thread = static_cast<uint64_t>(thread_index());
    uint8_t* remainder = frame_ + sections_.remainder;
    TensorSource<kDType>{tensor_}.write_remainder(remainder);
    zero_bytes(remainder + sections_.remainder_bytes, frame_ + sections_.directory, thread,
               kThreads);
    zero_bytes(frame_ + sections_.tile_entry(sections_.tiles), frame_ + sections_.tails, thread,
               kThreads);
  }

  // Called by all blocks when their groups are done.
  UZIP_DEVICE void finish() {
    const auto complete = [&](bool overflow, uint64_t body) {
      if (overflow) return;
      write_header(frame_, kDType, Codec::kTier, tensor_.count, sections_.tails + body, body,
                   room_.choice.parameters);
      frame_[offsetof(Header, flags)] = kFlagPacked;
    };
    const auto rewrite = [&](Part piece) { write_raw(tensor_, kDType, frame_, piece); };
    finish_frame<false>(tails(), part_, &room_.finish, room_.finish.claims, complete, rewrite);
  }

 private:
  template <int kMenu, bool kAhead>
  UZIP_DEVICE PackedTile encode(uint32_t tile) {
    const uint8_t* values = values_of(tile);
    PackedRoom<kDType>& room = room_.packed[warp_];
    const TileCode code = plan_.code;
    const DigitTable digits = plan_.digits;
    if constexpr (kAhead) {
      Chunk* stage = AheadRoom<kDType>::get().stages[warp_];
      wait_copies<0>();
      sync_lanes();
      const PackedTile packed = encode_packed_tile<kDType, kMenu>(
          code, digits, room_.tables, values, StagedRows<kDType>{stage}, room, lane_);
      sync_lanes();
      TensorSource<kDType>{tensor_}.fetch(tile + part_.blocks * kGroupTiles, stage);
      return packed;
    } else {
      return encode_packed_tile<kDType, kMenu>(code, digits, room_.tables, values,
                                               MemoryRows<kDType>{values, tensor_.aligned}, room,
                                               lane_);
    }
  }

  UZIP_DEVICE const uint8_t* values_of(uint32_t tile) const {
    return tensor_.values + uint64_t{tile} * kFormat.tile_bytes();
  }

  UZIP_DEVICE TailSection tails() const {
    constexpr int kMost = kGroupTiles * kFormat.tile_bytes();
    return {scratch_, plan_.room, static_cast<uint32_t>(sections_.groups),
            TailSection::units_of(kMost)};
  }

  // A place for a group of so many bytes; kNoUnit where the frame would become too large.
  UZIP_DEVICE uint32_t place_group(uint32_t group, uint32_t bytes) {
    const uint32_t units = bytes / kAlignment;
    room_.finish.claims = tails().claim(units);
    return tails().enter(frame_ + sections_.group_entry(group), room_.finish.claims, units);
  }

  UZIP_DEVICE void store(uint32_t tile, const PackedTile& packed, uint8_t* to) {
    const uint8_t* values = values_of(tile);
    const auto lane = static_cast<uint64_t>(lane_);
    if (lane_ == 0) {
      *reinterpret_cast<uint16_t*>(frame_ + sections_.tile_entry(tile)) =
          static_cast<uint16_t>(static_cast<int>(packed.kind) << kTileSizeBits | packed.size);
    }
    if (packed.kind == TileKind::kRaw) {
      copy_bytes(to, values, static_cast<uint64_t>(packed.size), lane, kLanes);
      return;
    }
    if (packed.kind == TileKind::kConstant) {
      if (packed.size != 0 && lane_ < kAlignment) {
        to[lane_] = lane_ < kFormat.itemsize ? values[lane_] : 0;
      }
      return;
    }
    PackedRoom<kDType>& room = room_.packed[warp_];
    uint8_t* begin = to;
    if (packed.kind == TileKind::kMasked) {
      auto* halves = reinterpret_cast<uint16_t*>(to);
      halves[lane_] = static_cast<uint16_t>(gather_half(packed.present));
      halves[kLanes + lane_] = static_cast<uint16_t>(gather_half(packed.present >> 1));
      to += kMaskBytes;
    }
    copy_bytes(to, room.planes, static_cast<uint64_t>(packed.body_bytes), lane, kLanes);
    to += packed.body_bytes;
    store_tail(to, room.coder.tail, packed.tail_bytes, lane_);
    to += packed.tail_bytes;
    if (to + lane_ < begin + packed.size) to[lane_] = 0;
  }

  const Tensor& tensor_;
  uint8_t* frame_;
  EncodeScratch* scratch_;
  EncodeRoom<kDType>& room_;
  Part part_;
  const GroupPlan& plan_;
  const Sections& sections_;
  int warp_;
  int lane_;
};

// After a choice of the packed layout, which is in the room that shared memory begins with. A call,
// so that the kernel's registers are for the loops that need them most.
template <DType kDType, int kMenu, bool kAhead>
UZIP_DEVICE_CALL void call_encode_packed(Tensor tensor, uint8_t* frame, EncodeScratch* scratch,
                                         Part part) {
  auto& room = *reinterpret_cast<EncodeRoom<kDType>*>(shared_memory());
  if (thread_index() == 0) PackedEncoder<kDType>::plan(tensor.count, room);
  sync_block();
  PackedEncoder<kDType> encoder(tensor, frame, scratch, room, part);
  if (!encoder.has_room()) {
    write_raw(tensor, kDType, frame, part);
    return;
  }
  encoder.template run<kMenu, kAhead>();
  let_next_begin();
  if (part.block == 0) encoder.write_remainder();
  encoder.finish();
}

// The menus that packed tiles are compiled for, where their values are fetched ahead.
using PackedMenus = MenuList<2, 3>;

// For PackedMenus::choose().
template <DType kDType>
struct PackedStep {
  const Tensor& tensor;
  uint8_t* frame;
  EncodeScratch* scratch;
  Part part;

  template <int kMenu>
  UZIP_DEVICE void run() {
    constexpr bool kAhead = kEncodesAhead<kDType> && kMenu != kAnyMenu;
    call_encode_packed<kDType, kMenu, kAhead>(tensor, frame, scratch, part);
  }
};

// kFetched: the first tiles have been asked for, if they are aligned, and shared memory is an
// AheadRoom.
template <DType kDType, bool kFetched>
UZIP_DEVICE void encode_packed(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                               Part part, int menu) {
  PackedStep<kDType> step{tensor, frame, scratch, part};
  if constexpr (kFetched) {
    PackedMenus::choose(tensor.aligned ? menu : kAnyMenu, step);
  } else {
    step.template run<kAnyMenu>();
  }
}

// Codes this block's groups of the dense layout.
template <DType kDType, int kMenu, typename Encoder>
UZIP_DEVICE void encode_groups(Encoder& encoder) {
  if constexpr (kEncodesAhead<kDType> && kMenu != kAnyMenu) {
    encoder.template run_ahead<kMenu>();
  } else {
    encoder.template run<kMenu>();
  }
  let_next_begin();
  encoder.take_no_more();
}

// The same as a call, likewise.
template <DType kDType, int kMenu>
UZIP_DEVICE_CALL void call_encode_groups(Tensor tensor, uint8_t* frame, EncodeScratch* scratch,
                                         Part part) {
  auto& room = *reinterpret_cast<EncodeRoom<kDType>*>(shared_memory());
  TensorSource<kDType> source{tensor};
  GroupEncoder<kDType, TensorSource<kDType>> encoder(source, frame, scratch, room, part);
  encode_groups<kDType, kMenu>(encoder);
}

// For CompiledMenus::choose(). With kAnyMenu values may have any alignment.
template <DType kDType, typename Encoder>
struct GroupsStep {
  Encoder& encoder;
  const Tensor& tensor;
  uint8_t* frame;
  EncodeScratch* scratch;
  Part part;

  template <int kMenu>
  UZIP_DEVICE void run() {
    if constexpr (FewMenus::has(kMenu)) {
      encode_groups<kDType, kMenu>(encoder);
    } else {
      call_encode_groups<kDType, kMenu>(tensor, frame, scratch, part);
    }
  }
};

// Codes this block's groups where warps have some of their own. A call for each menu.
template <DType kDType, int kMenu>
UZIP_DEVICE_CALL void call_encode_alone(Tensor tensor, uint8_t* frame, EncodeScratch* scratch,
                                        Part part) {
  auto& room = *reinterpret_cast<EncodeRoom<kDType>*>(shared_memory());
  WarpEncoder<kDType>(tensor, frame, scratch, part).template run<kMenu>();
  TensorSource<kDType> source{tensor};
  GroupEncoder<kDType, TensorSource<kDType>> encoder(source, frame, scratch, room, part);
  encoder.template run_rest<kMenu>();
  let_next_begin();
  encoder.take_no_more();
}

// For CompiledMenus::choose().
template <DType kDType>
struct AloneStep {
  const Tensor& tensor;
  uint8_t* frame;
  EncodeScratch* scratch;
  Part part;

  template <int kMenu>
  UZIP_DEVICE void run() {
    if constexpr (kMenu != kAnyMenu) call_encode_alone<kDType, kMenu>(tensor, frame, scratch, part);
  }
};

// The groups of a tensor that has some for all warps, and what is behind them. A call, so that all
// else has its own registers.
template <DType kDType>
UZIP_DEVICE_CALL void call_encode_large(Tensor tensor, uint8_t* frame, EncodeScratch* scratch,
                                        Part part) {
  auto& room = *reinterpret_cast<EncodeRoom<kDType>*>(shared_memory());
  AloneStep<kDType> step{tensor, frame, scratch, part};
  CompiledMenus::choose(room.choice.parameters.menu, step);
  TensorSource<kDType> source{tensor};
  GroupEncoder<kDType, TensorSource<kDType>> encoder(source, frame, scratch, room, part);
  if (part.block == 0) encoder.write_remainder();
  encoder.finish();
}

// Chooses the parameters, with the tables that they ask for; by a block. Those of the
// menus that are likely are made while one warp chooses.
template <DType kDType>
UZIP_DEVICE void choose_with_tables(const Drawn<kDType>& drawn, const EncodeOptions& options,
                                    EncodeRoom<kDType>& room) {
  const Choice& choice = room.choice;
  const int thread = thread_index();
  choose<kDType>(drawn, options, room.select, &room.choice,
                 [&] { room.tables.foresee(thread - kLanes); });
  if (thread < kLanes) {
    room.tables.fill_digits(Menu::of(choice.parameters.menu), choice.digits, thread);
  }
  sync_block();
  if (!ForeseenMenus::has(choice.parameters.menu)) {
    room.tables.gathers.fill(Menu::of(choice.parameters.menu), thread);
    sync_block();
  }
}

// Writes a part of the frame of a tensor; all blocks of the frame call it. Shared memory is an
// AheadRoom. kLarge: groups_alone() are some; small tensors would wait for the registers that this
// takes, and for its instructions.
template <DType kDType, bool kLarge = false>
UZIP_DEVICE void encode_part(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                             const EncodeOptions& options, Part part) {
  EncodeRoom<kDType>& room = AheadRoom<kDType>::get().encode;
  TensorSource<kDType> source{tensor};
  // All blocks ask for the same values, so these come before all tiles.
  const auto drawn = Drawn<kDType>::of(tensor.values, tensor.count, tensor.aligned);
  if (kEncodesAhead<kDType> && tensor.aligned) {
    const int warp = thread_index() / kLanes;
    source.fetch(part.block * kGroupTiles + static_cast<uint32_t>(warp),
                 AheadRoom<kDType>::get().stages[warp]);
  }
  choose_with_tables<kDType>(drawn, options, room);
  if (room.choice.packed && !room.choice.raw) {
    encode_packed<kDType, kEncodesAhead<kDType>>(tensor, frame, scratch, part,
                                                 room.choice.parameters.menu);
    return;
  }
  if (room.choice.raw || !has_room_for_tails<kDType>(tensor.count, room.choice.parameters)) {
    write_raw(tensor, kDType, frame, part);
    return;
  }
  if (thread_index() == 0) {
    room.plan = GroupPlan::of<kDType>(room.choice, tensor.count);
    const bool ahead = tensor.aligned && CompiledMenus::has(room.choice.parameters.menu);
    if (kLarge && ahead) room.plan.alone = groups_alone(tensor.count, part);
  }
  sync_block();
  if constexpr (kLarge) {
    if (room.plan.alone != 0) {
      call_encode_large<kDType>(tensor, frame, scratch, part);
      return;
    }
  }
  GroupEncoder<kDType, TensorSource<kDType>> encoder(source, frame, scratch, room, part);
  GroupsStep<kDType, decltype(encoder)> step{encoder, tensor, frame, scratch, part};
  CompiledMenus::choose(tensor.aligned ? room.choice.parameters.menu : kAnyMenu, step);
  if (part.block == 0) encoder.write_remainder();
  encoder.finish();
}

}  // namespace uzip::gpu
