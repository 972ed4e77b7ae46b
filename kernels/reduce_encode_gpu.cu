// Folds that become a frame in the same launch.
//
// As encode_gpu.cu, but for where values come from: a warp folds its tile of a group to its own
// shared memory, and codes it from there, in the memory that the fold needs no more. The parameters
// are foretold, as nobody has seen the values before.
#include "fold_ahead_gpu.hpp"
#include "frame_encode_gpu.hpp"

namespace uzip::gpu {
namespace {

template <DType kDType, FoldPlan kPlan>
struct ReduceEncodeRoom : GroupRoom {
  UZIP_DEVICE OffsetRoom<kDType>& offsets(int warp) { return rooms().warps[warp].third.offsets; }
  UZIP_DEVICE uint32_t* tail(int, int warp) { return rooms().warps[warp].second.made_tail; }

 private:
  UZIP_DEVICE static FoldRoom<kDType, kPlan>& rooms() { return FoldRoom<kDType, kPlan>::get(); }
};

template <DType kDType, FoldPlan kPlan>
struct AllRooms {
  FoldRoom<kDType, kPlan> fold;
  ReduceEncodeRoom<kDType, kPlan> encode;

  UZIP_DEVICE static AllRooms& get() { return *reinterpret_cast<AllRooms*>(shared_memory()); }
};

// The values of a fold, for GroupEncoder: in the warp's room; and in `out`, unless that is null.
template <DType kDType, FoldPlan kPlan>
class FoldSource {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);
  static constexpr bool kMayFail = true;

  using Folding = Folder<kDType, kPlan>;
  using Room = FoldRoom<kDType, kPlan>;

  UZIP_DEVICE explicit FoldSource(uint8_t* out) : out_(out) {}

  UZIP_DEVICE uint64_t count() const { return Folding::fold().count; }
  UZIP_DEVICE bool aligned() const { return true; }

  // Asks for the tile that values() is to fold next.
  UZIP_DEVICE void fetch(uint32_t tile) {
    if constexpr (kFoldsAhead<kDType, kPlan>) TileFolder<kDType, kPlan>().fetch(tile);
  }
  UZIP_DEVICE void prepare(uint32_t tile) {
    if constexpr (kFoldsAhead<kDType, kPlan>) TileFolder<kDType, kPlan>().prepare(tile);
  }
  // The values of a tile, to be asked for once; `next`: the tile to prepare.
  UZIP_DEVICE const uint8_t* values(uint32_t tile, uint32_t next) {
    fold_to_room(out_, tile, next);
    sync_lanes();
    return room();
  }
  UZIP_DEVICE const uint8_t* values_again(uint32_t) { return room(); }
  UZIP_DEVICE bool sound() const { return load_relaxed_system(Room::get().status) == 0; }

  UZIP_DEVICE void write_remainder(uint8_t* to) {
    using Stored = typename ArithmeticOf<kDType>::Stored;
    auto* out = reinterpret_cast<Stored*>(out_) + uint64_t{Folding::tiles()} * kTileValues;
    for (auto i = static_cast<uint32_t>(thread_index()); i < Folding::remaining(); i += kThreads) {
      const Stored value = Folding::fold_and_round_value(i);
      reinterpret_cast<Stored*>(to)[i] = value;
      if (out_ != nullptr) out[i] = value;
    }
  }

  // Of values that were all made; without `out` they are made again.
  UZIP_DEVICE void write_raw_frame(uint8_t* frame, Part part) { write_again(out_, frame, part); }

  // Values that were not made yet.
  UZIP_DEVICE void write_values(uint8_t* to, Part part) {
    const int lane = thread_index() % kLanes;
    const int warp = thread_index() / kLanes;
    constexpr uint64_t kTileBytes = kFormat.tile_bytes();
    for (uint32_t tile = part.block * kWarps + static_cast<uint32_t>(warp); tile < Folding::tiles();
         tile += part.blocks * kWarps) {
      Folding::call_fold_tile(tile, {to + tile * kTileBytes, true, false});
      if (out_ == nullptr) continue;
      sync_lanes();
      copy_bytes(out_ + tile * kTileBytes, to + tile * kTileBytes, kTileBytes,
                 static_cast<uint64_t>(lane), kLanes);
    }
    if (part.block == 0) write_remainder(to + Folding::tiles() * kTileBytes);
  }

 private:
  UZIP_DEVICE static uint8_t* room() { return Room::warp().first.values; }

  // A call, as it is seldom wanted.
  UZIP_DEVICE_CALL static void write_again(uint8_t* out, uint8_t* frame, Part part) {
    FoldSource source(out);
    if (out == nullptr) {
      source.write_values(frame + kHeaderBytes, part);
    } else {
      write_raw({out, source.count(), is_aligned(out, kAlignment)}, kDType, frame, part);
    }
  }

  // A call, as coding is: the registers of both together would be too many.
  UZIP_DEVICE_CALL static void fold_to_room(uint8_t* out, uint32_t tile, uint32_t next) {
    const int lane = thread_index() % kLanes;
    const auto keep = [&](const RowSink<kDType>& rows) {
      if (out == nullptr) return;
      rows.store(out + uint64_t{tile} * kFormat.tile_bytes(), is_aligned(out, kAlignment), lane);
    };
    if constexpr (kFoldsAhead<kDType, kPlan>) {
      TileFolder<kDType, kPlan> folder;
      const Folded folded = folder.fold(tile, next, [&](const RowSink<kDType>& rows) {
        sync_lanes();  // others may still decode from there
        rows.store(room(), true, lane);
        keep(rows);
      });
      if (folded == Folded::kMalformed && lane == 0) report(Room::get().status, FrameStatus::kTile);
      if (folded != Folded::kNotFetched) return;
      wait_copies<0>();  // to what is used now
      sync_lanes();
    }
    Folding::call_fold_tile(tile, {room(), true, false});
    RowSink<kDType> rows;
    rows.load(room(), true, lane);
    keep(rows);
  }

  uint8_t* out_;
};

// Sets the choice to what is foretold, by one warp.
template <DType kDType, FoldPlan kPlan>
UZIP_DEVICE void foretell(const Forecast& forecast, int lane, Choice* choice) {
  using Folding = Folder<kDType, kPlan>;
  constexpr FloatFormat kFormat = float_format(kDType);
  if (lane == 0) {
    choice->raw = true;
    if (forecast.like != nullptr) {
      const Header header = *static_cast<const Header*>(forecast.like);
      const FrameStatus found = check_header(header, header.frame_bytes, kDType, header.count);
      choice->raw = found != FrameStatus::kOk || static_cast<Codec>(header.codec) != Codec::kTier;
      choice->parameters = parameters_of(header);
    } else if (const OpenInput<kDType>* input = Folding::largest_frame()) {
      choice->raw = false;
      choice->parameters = input->parameters;
      // Sums of values that end in zeros need not do so.
      const bool is_one_of_them =
          Folding::fold().op == ReduceOp::kMin || Folding::fold().op == ReduceOp::kMax;
      if (!is_one_of_them || Folding::fold().divisor != 1) choice->parameters.zero_planes = 0;
    }
    if (choice->raw) choice->parameters = {0, 0, 0, {0x76543210u, 0xFEDCBA98u}};
    choice->parameters.base += static_cast<uint32_t>(forecast.base_shift);
    choice->parameters.base %= static_cast<uint32_t>(kFormat.symbols());
  }
  sync_lanes();
  if (lane < kWindow) {
    const auto offset = static_cast<int>(nibble(choice->parameters.order, lane));
    set_digits(Menu::of(choice->parameters.menu), offset, lane, &choice->digits);
  }
}

// Codes the values in the warp's room.
template <DType kDType, FoldPlan kPlan>
struct RoomCoder {
  uint8_t* head;
  int bytes;  // of the tail

  template <int kMenu>
  UZIP_DEVICE void run() {
    auto& room = AllRooms<kDType, kPlan>::get().encode;
    auto& mine = FoldRoom<kDType, kPlan>::warp();
    const GroupPlan& plan = room.plan;
    bytes = encode_dense_tile<kDType, kMenu>(plan.code, plan.digits, room.tables, mine.first.values,
                                             true, head, mine.third.offsets, mine.second.made_tail,
                                             thread_index() % kLanes);
  }

  UZIP_DEVICE_CALL static int code(uint8_t* head) {
    RoomCoder coder{head, 0};
    FewMenus::choose(AllRooms<kDType, kPlan>::get().encode.choice.parameters.menu, coder);
    return coder.bytes;
  }
};

template <DType kDType, FoldPlan kPlan, typename Encoder>
UZIP_DEVICE void code_groups(FoldSource<kDType, kPlan>& source, Encoder& encoder, Part part) {
  source.prepare(encoder.tile_of(part.block));
#pragma unroll 1
  for (uint32_t group = part.block; group < encoder.groups(); group += part.blocks) {
    const uint32_t index = encoder.tile_of(group);
    source.fetch(index);
    auto tile = encoder.begin_tile(group, 0);
    if (tile.present()) {
      const uint8_t* values = source.values(index, encoder.tile_of(group + part.blocks));
      encoder.note(RoomCoder<kDType, kPlan>::code(encoder.head_of(group)), values, &tile);
    }
    encoder.take(tile);
    encoder.take_no_more();  // the tail is where tiles are fetched to
  }
}

// Blocks on a multiprocessor: what is to be known of both halves takes registers.
template <DType kDType, FoldPlan kPlan>
constexpr int kCoderResident = kFoldResident<kDType, kPlan> < 3 ? 2 : 3;

template <DType kDType, FoldPlan kPlan>
UZIP_KERNEL(kThreads, (kCoderResident<kDType, kPlan>))
reduce_encode_kernel(Fold fold, Forecast forecast, uint8_t* out, uint8_t* frame,
                     EncodeScratch* scratch, uint32_t* status) {
  auto& room = AllRooms<kDType, kPlan>::get().encode;
  const Part part{block_index(), block_count()};
  using Folding = Folder<kDType, kPlan>;
  if (!Folding::open(fold, status)) {
    if (part.block == 0 && thread_index() == 0) *reinterpret_cast<Header*>(frame) = Header{};
    return;
  }
  Choice& choice = room.choice;
  if (thread_index() < kLanes) foretell<kDType, kPlan>(forecast, thread_index(), &choice);
  sync_block();
  room.tables.fill(Menu::of(choice.parameters.menu), choice.digits, thread_index());
  if (thread_index() == 0) room.plan = GroupPlan::of<kDType>(choice, fold.count);
  sync_block();
  using Source = FoldSource<kDType, kPlan>;
  Source source(out);
  GroupEncoder<kDType, Source, ReduceEncodeRoom<kDType, kPlan>> encoder(source, frame, scratch,
                                                                        room, part);
  const bool raw = choice.raw || Folding::tiles() == 0 ||
                   !has_room_for_tails<kDType>(source.count(), choice.parameters);
  if (raw) {
    source.write_values(frame + kHeaderBytes, part);
  } else {
    code_groups<kDType, kPlan>(source, encoder, part);
    if (part.block == 0) encoder.write_remainder();
  }
  encoder.finish(raw);
}

struct ReduceEncodeLaunch {
  const Fold& fold;
  const Forecast& forecast;
  const ReduceEncodeOutput& output;
  const DecodeOptions& options;
  void* stream;

  template <DType kDType, FoldPlan kPlan>
  const char* run() const {
    const auto kernel = reduce_encode_kernel<kDType, kPlan>;
    constexpr size_t kShared = sizeof(AllRooms<kDType, kPlan>);
    const uint64_t groups = (fold.count / kTileValues + kGroupTiles - 1) / kGroupTiles;
    const int blocks = grid_blocks(kernel, kShared, groups, options.max_blocks);
    return launch_together(kernel, blocks, kThreads, kShared, static_cast<Stream>(stream), fold,
                           forecast, output.values, output.frame, output.scratch, output.status);
  }
};

}  // namespace

template <DType kDType>
const char* launch_reduce_encode(const Fold& fold, const Forecast& forecast,
                                 const ReduceEncodeOutput& output, const DecodeOptions& options,
                                 void* stream) {
  const ReduceEncodeLaunch launch{fold, forecast, output, options, stream};
  return with_plan<kDType>(fold, true, launch);
}

#define UZIP_INSTANTIATE(dtype)                     \
  template const char* launch_reduce_encode<dtype>( \
      const Fold&, const Forecast&, const ReduceEncodeOutput&, const DecodeOptions&, void*);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
