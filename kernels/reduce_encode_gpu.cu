// Folds that become a frame in the same launch.
//
// As encode_gpu.cu, but for where values come from: a warp folds its tile of a group to memory, and
// codes it from there. The parameters are foretold, as nobody has seen the values before.
#include "fold_gpu.hpp"
#include "frame_encode_gpu.hpp"

namespace uzip::gpu {
namespace {

template <DType kDType>
struct ReduceEncodeRoom {
  FoldRoom<kDType> fold;
  EncodeRoom<kDType> encode;
};

// The values of a fold, for GroupEncoder: in `out`, or where there is none in the warp's room.
template <DType kDType>
class FoldSource {
 public:
  static constexpr FloatFormat kFormat = float_format(kDType);

  using Folding = Folder<kDType>;

  UZIP_DEVICE explicit FoldSource(uint8_t* out) : out_(out) {}

  UZIP_DEVICE uint64_t count() const { return Folding::fold().count; }
  UZIP_DEVICE bool aligned() const { return is_aligned(out_, kAlignment); }

  UZIP_DEVICE const uint8_t* values(uint32_t tile) {
    uint8_t* to = place(tile);
    Folding::call_fold_tile(tile, {to, aligned(), false});
    sync_lanes();
    return to;
  }
  UZIP_DEVICE const uint8_t* values_again(uint32_t tile) {
    uint8_t* to = place(tile);
    if (out_ == nullptr) {
      Folding::call_fold_tile(tile, {to, true, false});
      sync_lanes();
    }
    return to;
  }
  UZIP_DEVICE bool sound() const {
    return load_relaxed_system(FoldRoom<kDType>::get().status) == 0;
  }

  UZIP_DEVICE void write_remainder(uint8_t* to) {
    using Stored = typename ArithmeticOf<kDType>::Stored;
    auto* out = reinterpret_cast<Stored*>(out_) + uint64_t{Folding::tiles()} * kTileValues;
    for (auto i = static_cast<uint32_t>(thread_index()); i < Folding::remaining(); i += kThreads) {
      const Stored value = Folding::fold_and_round_value(i);
      reinterpret_cast<Stored*>(to)[i] = value;
      if (out_ != nullptr) out[i] = value;
    }
  }

  // By one block, of values that were all made; without `out` they are made again.
  UZIP_DEVICE void write_raw_frame(uint8_t* frame, Part part) {
    if (out_ != nullptr) {
      write_raw({out_, count(), aligned()}, kDType, frame, part);
      return;
    }
    write_values(frame + kHeaderBytes, part);
    if (thread_index() == 0) write_raw_header<kDType>(frame, count());
  }

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
  UZIP_DEVICE uint8_t* place(uint32_t tile) {
    return out_ != nullptr ? out_ + uint64_t{tile} * kFormat.tile_bytes()
                           : FoldRoom<kDType>::get().warps[thread_index() / kLanes].values;
  }
  uint8_t* out_;
};

// Sets the choice to what is foretold, by one warp.
template <DType kDType>
UZIP_DEVICE void foretell(const Forecast& forecast, int lane, Choice* choice) {
  using Folding = Folder<kDType>;
  constexpr FloatFormat kFormat = float_format(kDType);
  if (lane == 0) {
    choice->raw = true;
    if (forecast.like != nullptr) {
      const Header header = *static_cast<const Header*>(forecast.like);
      const FrameStatus found = check_header(header, header.frame_bytes, kDType, header.count);
      choice->raw = found != FrameStatus::kOk || static_cast<Codec>(header.codec) != Codec::kTier;
      choice->parameters = parameters_of(header);
    } else if (const OpenInput<kDType>* input = Folding::first_frame()) {
      choice->raw = false;
      choice->parameters = input->parameters;
      // Sums of values that end in zeros need not do so.
      const bool is_one_of_them =
          Folding::fold().op == ReduceOp::kMin || Folding::fold().op == ReduceOp::kMax;
      if (!is_one_of_them || Folding::fold().divisor != 1) choice->parameters.zero_planes = 0;
    }
    if (choice->raw) choice->parameters = {};
    choice->parameters.base += static_cast<uint32_t>(forecast.base_shift);
    choice->parameters.base %= static_cast<uint32_t>(kFormat.symbols());
  }
  sync_lanes();
  if (lane < kWindow) {
    const auto offset = static_cast<int>(nibble(choice->parameters.order, lane));
    set_digits(Menu::of(choice->parameters.menu), offset, lane, &choice->digits);
  }
}

// A tile whose values are there, on its way to the encoder for its menu.
template <typename Encoder>
struct TileStep {
  Encoder& encoder;
  const uint8_t* values;
  typename Encoder::CodedTile tile;

  template <int kMenu>
  UZIP_DEVICE void run() {
    encoder.template code_values<kMenu>(values, &tile);
  }
};

template <DType kDType, typename Encoder>
UZIP_DEVICE void code_groups(FoldSource<kDType>& source, Encoder& encoder, int menu, Part part) {
  int turn = 0;
#pragma unroll 1
  for (uint32_t group = part.block; group < encoder.groups(); group += part.blocks, turn ^= 1) {
    TileStep<Encoder> step{encoder, nullptr, encoder.begin_tile(group, turn)};
    if (step.tile.present) {
      step.values = source.values(encoder.tile_of(group));
      FewMenus::choose(menu, step);
    }
    encoder.take(step.tile);
  }
  encoder.take_no_more();
}

template <DType kDType>
UZIP_KERNEL(kThreads, 2)
reduce_encode_kernel(Fold fold, Forecast forecast, uint8_t* out, uint8_t* frame,
                     EncodeScratch* scratch, uint32_t* status) {
  auto& room = *reinterpret_cast<ReduceEncodeRoom<kDType>*>(shared_memory());
  const Part part{block_index(), block_count()};
  using Folding = Folder<kDType>;
  if (!Folding::open(fold, status)) {
    if (part.block == 0 && thread_index() == 0) *reinterpret_cast<Header*>(frame) = Header{};
    return;
  }
  Choice& choice = room.encode.choice;
  if (thread_index() < kLanes) foretell<kDType>(forecast, thread_index(), &choice);
  sync_block();
  room.encode.tables.fill(Menu::of(choice.parameters.menu), choice.digits, thread_index());
  sync_block();
  FoldSource<kDType> source(out);
  GroupEncoder encoder(source, frame, scratch, room.encode, part);
  const bool raw = choice.raw || Folding::tiles() == 0 ||
                   !has_room_for_tails<kDType>(source.count(), choice.parameters);
  if (raw) {
    source.write_values(frame + kHeaderBytes, part);
  } else {
    code_groups<kDType>(source, encoder, choice.parameters.menu, part);
    if (part.block == 0) encoder.write_remainder();
  }
  encoder.finish(raw);
}

}  // namespace

template <DType kDType>
const char* launch_reduce_encode(const Fold& fold, const Forecast& forecast,
                                 const ReduceEncodeOutput& output, const DecodeOptions& options,
                                 void* stream) {
  const auto kernel = reduce_encode_kernel<kDType>;
  constexpr size_t kShared = sizeof(ReduceEncodeRoom<kDType>);
  const uint64_t groups = (fold.count / kTileValues + kGroupTiles - 1) / kGroupTiles;
  const int blocks = grid_blocks(kernel, kShared, groups, options.max_blocks);
  return launch(kernel, blocks, kThreads, kShared, static_cast<Stream>(stream), fold, forecast,
                output.values, output.frame, output.scratch, output.status);
}

#define UZIP_INSTANTIATE(dtype)                     \
  template const char* launch_reduce_encode<dtype>( \
      const Fold&, const Forecast&, const ReduceEncodeOutput&, const DecodeOptions&, void*);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
