// A tile of every input, folded by a warp.
//
// The tile's accumulators stay in registers while one frame after the other is decoded, to shared
// memory: each input is read once, only the result is written. That decoding does not end in the
// accumulators themselves costs two accesses per 16 bytes, and keeps the arithmetic of all
// operators out of all the ways to decode a tile.
#pragma once

#include "arithmetic.hpp"
#include "frame_decode_gpu.hpp"
#include "reduce_gpu.hpp"

namespace uzip::gpu {

constexpr int kLaneRow = 8;  // values of a lane in a row

// A row of a lane's values as what the arithmetic takes.
template <DType kDType>
struct Row {
  using Arithmetic = ArithmeticOf<kDType>;
  using Stored = typename Arithmetic::Stored;
  using Accumulator = typename Arithmetic::Accumulator;
  static constexpr int kItemsize = float_format(kDType).itemsize;

  UZIP_DEVICE static Accumulator widen(const Run<kDType>& run, int i) {
    if constexpr (kItemsize == 8) {
      return Arithmetic::widen(
          bit_cast<Stored>(uint64_t{run.words[2 * i + 1]} << 32 | run.words[2 * i]));
    } else if constexpr (kItemsize == 4) {
      return Arithmetic::widen(bit_cast<Stored>(run.words[i]));
    } else {
      const uint32_t word = run.words[i * kItemsize / 4] >> 8 * (i * kItemsize % 4);
      return Arithmetic::widen(static_cast<Stored>(word));
    }
  }

  // Of the types that accumulate: as it is.
  UZIP_DEVICE static void put(Stored value, int i, Run<kDType>& run) {
    if constexpr (kItemsize == 8) {
      const auto bits = bit_cast<uint64_t>(value);
      run.words[2 * i] = static_cast<uint32_t>(bits);
      run.words[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
    } else {
      static_assert(kItemsize == 4);
      run.words[i] = bit_cast<uint32_t>(value);
    }
  }

  // Rounds; `run` is zero before value 0.
  UZIP_DEVICE static void narrow(Accumulator value, int i, Run<kDType>& run) {
    const auto stored = Arithmetic::narrow(value);
    if constexpr (kItemsize == 8) {
      const auto bits = bit_cast<uint64_t>(stored);
      run.words[2 * i] = static_cast<uint32_t>(bits);
      run.words[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
    } else if constexpr (kItemsize == 4) {
      run.words[i] = bit_cast<uint32_t>(stored);
    } else {
      run.words[i * kItemsize / 4] |= static_cast<uint32_t>(stored) << 8 * (i * kItemsize % 4);
    }
  }
};

// The sum of neighbouring values, as a row has them; `scale`: exact.
template <DType kDType>
UZIP_DEVICE Run<kDType> add_runs(const Run<kDType>& mine, const Run<kDType>& theirs,
                                 typename Row<kDType>::Accumulator scale) {
  Run<kDType> sums{};
#if UZIP_PTX
  // A sum that is rounded twice is the same: float32 has more than twice as many bits as these.
  if constexpr (kDType == DType::kBFloat16 || kDType == DType::kFloat16) {
    if (scale == 1) {
#pragma unroll
      for (int i = 0; i < Run<kDType>::kWords; ++i) {
        sums.words[i] = kDType == DType::kBFloat16 ? add_bfloats(mine.words[i], theirs.words[i])
                                                   : add_halves(mine.words[i], theirs.words[i]);
      }
      return sums;
    }
  }
#endif
#pragma unroll
  for (int i = 0; i < kLaneRow; ++i) {
    const auto sum = Sum::apply(Row<kDType>::widen(mine, i), Row<kDType>::widen(theirs, i));
    Row<kDType>::narrow(multiply(sum, scale), i, sums);
  }
  return sums;
}

// What any value is folded with to stay as it is. (A sum of -0 and +0 is +0.)
template <typename T>
UZIP_DEVICE T neutral(ReduceOp op) {
  constexpr auto kInfinity = sizeof(T) == 4 ? uint64_t{0x7F800000} : uint64_t{0x7FF} << 52;
  constexpr uint64_t kSign = uint64_t{1} << (8 * sizeof(T) - 1);
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(-0.0);
    case ReduceOp::kProd:
      return static_cast<T>(1);
    case ReduceOp::kMin:
      return bit_cast<T>(static_cast<BitsOf<T>>(kInfinity));
    default:
      return bit_cast<T>(static_cast<BitsOf<T>>(kInfinity | kSign));
  }
}

// Calls code.run<operator>().
template <typename Code>
UZIP_DEVICE void with_operator(ReduceOp op, Code& code) {
  switch (op) {
    case ReduceOp::kSum:
      return code.template run<Sum>();
    case ReduceOp::kProd:
      return code.template run<Prod>();
    case ReduceOp::kMin:
      return code.template run<Min>();
    default:
      return code.template run<Max>();
  }
}

// The accumulators of a lane's 32 values.
template <DType kDType>
class Accumulators {
 public:
  using Accumulator = typename Row<kDType>::Accumulator;
  static constexpr FloatFormat kFormat = float_format(kDType);

  UZIP_DEVICE Accumulators(ReduceOp op, int lane) : op_(op), lane_(lane) {}

  // Begins with nothing, or with the accumulators of a tile.
  UZIP_DEVICE void begin(const uint8_t* before) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      Run<kWide> run{};
      if (before != nullptr) run = Run<kWide>::load(before + wide_place(row), true);
#pragma unroll
      for (int i = 0; i < kLaneRow; ++i) {
        sums_[kLaneRow * row + i] =
            before == nullptr ? neutral<Accumulator>(op_) : Row<kWide>::widen(run, i);
      }
    }
  }

  // Folds with a tile's values.
  UZIP_DEVICE void fold(const uint8_t* values, bool aligned) {
    Step step{values, aligned, *this};
    with_operator(op_, step);
  }

  UZIP_DEVICE void divide_by(int divisor) {
    if (divisor == 1) return;
    const auto by = static_cast<Accumulator>(divisor);
    const bool is_power = (divisor & (divisor - 1)) == 0;  // then its inverse is exact
    if (is_power) {
#pragma unroll
      for (int i = 0; i < kRows * kLaneRow; ++i) sums_[i] = multiply(sums_[i], 1 / by);
    } else {
#pragma unroll
      for (int i = 0; i < kRows * kLaneRow; ++i) sums_[i] = divide(sums_[i], by);
    }
  }

  UZIP_DEVICE void store(uint8_t* to) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) rounded<kWide>(row).store(to + wide_place(row), true);
  }

  template <DType kResult = kDType>
  UZIP_DEVICE Run<kResult> rounded(int row) const {
    Run<kResult> run{};
#pragma unroll
    for (int i = 0; i < kLaneRow; ++i) {
      Row<kResult>::narrow(sums_[kLaneRow * row + i], i, run);
    }
    return run;
  }

 private:
  struct Step {
    const uint8_t* values;
    bool aligned;
    Accumulators& accumulators;

    template <typename Operator>
    UZIP_DEVICE void run() {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const int at = value_index(accumulators.lane_, kLaneRow * row) * kFormat.itemsize;
        const auto run = Run<kDType>::load(values + at, aligned);
#pragma unroll
        for (int i = 0; i < kLaneRow; ++i) {
          Accumulator& sum = accumulators.sums_[kLaneRow * row + i];
          sum = Operator::apply(sum, Row<kDType>::widen(run, i));
        }
      }
    }
  };

  // The type that accumulates, as one of its own.
  static constexpr DType kWide = sizeof(Accumulator) == 8 ? DType::kFloat64 : DType::kFloat32;

  UZIP_DEVICE uint32_t wide_place(int row) const {
    return static_cast<uint32_t>(value_index(lane_, kLaneRow * row)) * sizeof(Accumulator);
  }

  ReduceOp op_;
  int lane_;
  Accumulator sums_[kRows * kLaneRow];
};

// An input whose header holds: in shared memory.
template <DType kDType>
struct OpenInput {
  TierFrame<kDType> tier;
  const uint8_t* values;  // of an input that has them as they are; else null
  const uint8_t* remainder;
  TierParameters parameters;  // of a tier frame
  int menu;                   // for FewMenus::choose()
  bool aligned;               // the values

  UZIP_DEVICE static OpenInput of_values(const uint8_t* values, uint64_t count) {
    constexpr int kTileBytes = float_format(kDType).tile_bytes();
    return {TierFrame<kDType>({values, 0}, Header{}),
            values,
            values + count / kTileValues * kTileBytes,
            {},
            0,
            is_aligned(values, kAlignment)};
  }

  // Checks an input and opens it.
  UZIP_DEVICE static FrameStatus open(const FoldInput& input, uint64_t count, OpenInput* opened) {
    const auto* bytes = static_cast<const uint8_t*>(input.memory);
    if (input.frame_bytes == kPlainValues) {
      *opened = of_values(bytes, count);
      return FrameStatus::kOk;
    }
    const Header header = *reinterpret_cast<const Header*>(bytes);
    const uint64_t frame_bytes = told_size(input.frame_bytes, header);
    const FrameStatus found = check_header(header, frame_bytes, kDType, count);
    if (found != FrameStatus::kOk) return found;
    if (static_cast<Codec>(header.codec) == Codec::kRaw) {
      *opened = of_values(bytes + kHeaderBytes, count);
      return frame_bytes == bound(count, kDType) ? FrameStatus::kOk : FrameStatus::kSections;
    }
    if (static_cast<Codec>(header.codec) != Codec::kTier) return FrameStatus::kCodec;
    const TierFrame<kDType> tier({bytes, frame_bytes}, header);
    *opened = {tier, nullptr, tier.remainder(), parameters_of(header), tier.menu_of(header), false};
    return tier.sizes_add_up() ? FrameStatus::kOk : FrameStatus::kSections;
  }
};

// How a kernel folds. A warp that decodes has room for little more than what it decodes from, so
// what two tensors need and what any number needs are different things.
enum class FoldPlan {
  kPair,  // of two inputs, the second of which is folded from registers with the first
  kMany,  // sums wait in shared memory for the next input
  kAny,   // sums are in registers; nothing is fetched ahead
};

template <DType kDType>
constexpr size_t kSumsBytes = kTileValues * sizeof(typename Row<kDType>::Accumulator);

// Of a warp. An encoder of the result takes the place of what has been decoded: it reads values,
// and makes a tail where the second half was.
template <DType kDType, FoldPlan kPlan>
struct alignas(16) FoldWarpRoom {
  static constexpr bool kPair = kPlan == FoldPlan::kPair;
  static constexpr bool kMany = kPlan == FoldPlan::kMany;

  union First {
    Stage<kDType> stage;
    uint8_t values[float_format(kDType).tile_bytes()];
  };
  union Second {
    TailRoom<kDType> tail;
    uint32_t made_tail[kTailWords<kDType>];
    uint8_t stage[kPair ? sizeof(Stage<kDType>) : 1];
    uint8_t sums[kMany ? kSumsBytes<kDType> : 1];
  };
  union Third {
    LevelRoom<kDType> levels;
    OffsetRoom<kDType> offsets;
  };
  // Of an input's tile that is fetched, and of the one after. In registers they would be in the
  // way.
  struct Fetching {
    DirectoryRoom next;
    typename TierFrame<kDType>::Fetched fetched;
  };
  First first;
  alignas(16) Second second;
  Third third;
  Fetching fetching[kPair ? 2 : 1];
};

// The first in a block's shared memory, so that functions which are called need no pointer to it,
// and know what memory it is.
template <DType kDType, FoldPlan kFoldPlan>
struct FoldRoom {
  static constexpr FoldPlan kPlan = kFoldPlan;
  static constexpr int kInputs = kPlan == FoldPlan::kPair ? 2 : kMaxInputs;

  FoldWarpRoom<kDType, kPlan> warps[kWarps];
  OpenInput<kDType> inputs[kInputs];
  DecodeTables tables;
  Fold fold;         // the arguments of the launch
  uint32_t* status;  // for what was found
  uint32_t found;    // the worst status of the inputs

  UZIP_DEVICE static FoldRoom& get() { return *reinterpret_cast<FoldRoom*>(shared_memory()); }
  UZIP_DEVICE static FoldWarpRoom<kDType, kPlan>& warp() {
    return get().warps[thread_index() / kLanes];
  }
};

// What a block does to fold any tile. All it knows is in its room.
template <DType kDType, FoldPlan kPlan>
class Folder {
 public:
  using Room = FoldRoom<kDType, kPlan>;
  using Accumulator = typename Accumulators<kDType>::Accumulator;
  using Stored = typename ArithmeticOf<kDType>::Stored;
  static constexpr FloatFormat kFormat = float_format(kDType);

  // By the whole block, before anything else. False: an input is malformed; that is reported.
  UZIP_DEVICE static bool open(const Fold& fold, uint32_t* status) {
    Room& room = Room::get();
    const int thread = thread_index();
    room.tables.fill(thread);
    if (thread == 0) {
      room.fold = fold;
      room.status = status;
      room.found = 0;
    }
    sync_block();
    if (thread < fold.n_inputs) {
      const auto found =
          OpenInput<kDType>::open(room.fold.inputs[thread], fold.count, &room.inputs[thread]);
      if (found != FrameStatus::kOk) atomic_max(&room.found, static_cast<uint32_t>(found));
    }
    sync_block();
    if (room.found == 0) return true;
    if (block_index() == 0 && thread == 0) report(status, static_cast<FrameStatus>(room.found));
    return false;
  }

  UZIP_DEVICE static const Fold& fold() { return Room::get().fold; }
  UZIP_DEVICE static uint32_t tiles() { return static_cast<uint32_t>(fold().count / kTileValues); }
  UZIP_DEVICE static uint32_t remaining() {
    return static_cast<uint32_t>(fold().count % kTileValues);
  }

  // Folds a tile, by a warp; what it finds wrong it reports. Lanes write what they alone have read
  // of plain values.
  UZIP_DEVICE static void fold_tile(uint32_t tile, TilePlace to) {
    const Fold& args = fold();
    const int lane = thread_index() % kLanes;
    Accumulators<kDType> sums(args.op, lane);
    const auto* before = static_cast<const uint8_t*>(args.before);
    sums.begin(before == nullptr ? nullptr : before + tile * kSumsBytes<kDType>);
    bool good = true;
#pragma unroll 1
    for (int i = 0; i < args.n_inputs; ++i) good = fold_input(tile, i, sums) && good;
    if (!good && lane == 0) report(Room::get().status, FrameStatus::kTile);
    if (to.wide) {
      sums.store(to.memory);
      return;
    }
    sums.divide_by(args.divisor);
    MemorySink<kDType> memory{to.memory, to.aligned, lane};
#pragma unroll
    for (int row = 0; row < kRows; ++row) memory.put(row, sums.rounded(row));
  }

  // The same, for callers that need the registers for something else.
  UZIP_DEVICE_CALL static void call_fold_tile(uint32_t tile, TilePlace to) { fold_tile(tile, to); }

  // Folds value i of those behind the last whole tile.
  UZIP_DEVICE static Accumulator fold_value(uint32_t i) {
    ValueFold value{i, {}};
    with_operator(fold().op, value);
    return value.sum;
  }
  UZIP_DEVICE static Stored fold_and_round_value(uint32_t i) {
    const Accumulator sum = fold_value(i);
    const int divisor = fold().divisor;
    return ArithmeticOf<kDType>::narrow(
        divisor == 1 ? sum : divide(sum, static_cast<Accumulator>(divisor)));
  }

  // Of the frames among the inputs that of the largest values, which say how large a sum is;
  // nullptr where all are plain.
  UZIP_DEVICE static const OpenInput<kDType>* largest_frame() {
    const OpenInput<kDType>* largest = nullptr;
    uint32_t most = 0;
    for (int i = 0; i < fold().n_inputs; ++i) {
      const OpenInput<kDType>& input = Room::get().inputs[i];
      if (input.values != nullptr) continue;
      const uint32_t highest = (input.parameters.base + kWindow - 1) % kFormat.symbols();
      if (largest != nullptr && highest <= most) continue;
      largest = &input;
      most = highest;
    }
    return largest;
  }

 private:
  // False: the input is malformed in the tile.
  UZIP_DEVICE static bool fold_input(uint32_t tile, int i, Accumulators<kDType>& sums) {
    const OpenInput<kDType>& input = Room::get().inputs[i];
    if (input.values != nullptr) {
      sums.fold(input.values + uint64_t{tile} * kFormat.tile_bytes(), input.aligned);
      return true;
    }
    TileStep step{tile, i, true};
    FewMenus::choose(input.menu, step);
    sync_lanes();  // raw tiles are copied by other lanes
    sums.fold(Room::warp().first.values, true);
    sync_lanes();
    return step.good;
  }

  // Decodes a tile of an input to the warp's room. False: it is malformed.
  template <int kMenu>
  UZIP_DEVICE static bool decode_tile(uint32_t tile, int input) {
    auto& mine = Room::warp();
    const int lane = thread_index() % kLanes;
    MemorySink<kDType> sink{mine.first.values, true, lane};
    return Room::get().inputs[input].tier.template decode<kMenu>(
        tile, Room::get().tables, mine.second.tail, mine.third.levels, lane, sink);
  }
  // The same with the code for any menu and layout.
  UZIP_DEVICE_CALL static bool decode_any_tile(uint32_t tile, int input) {
    return decode_tile<kAnyMenu>(tile, input);
  }

  // For FewMenus::choose(). Where tiles are fetched ahead, those that come here are few.
  struct TileStep {
    uint32_t tile;
    int input;
    bool good;

    template <int kMenu>
    UZIP_DEVICE void run() {
      if constexpr (kMenu == kAnyMenu || kPlan != FoldPlan::kAny) {
        good = decode_any_tile(tile, input);
      } else {
        good = decode_tile<kMenu>(tile, input);
      }
    }
  };

  struct ValueFold {
    uint32_t i;
    Accumulator sum;

    template <typename Operator>
    UZIP_DEVICE void run() {
      const Room& room = Room::get();
      const auto* before = static_cast<const Accumulator*>(room.fold.before);
      sum = before == nullptr ? neutral<Accumulator>(room.fold.op)
                              : before[uint64_t{tiles()} * kTileValues + i];
      for (int k = 0; k < room.fold.n_inputs; ++k) {
        const auto* values = reinterpret_cast<const Stored*>(room.inputs[k].remainder);
        sum = Operator::apply(sum, ArithmeticOf<kDType>::widen(values[i]));
      }
    }
  };
};

}  // namespace uzip::gpu
