// Folds whose inputs are fetched ahead, by a warp, for plans kPair and kMany of fold_gpu.hpp.
//
// What limits them is how many warps a multiprocessor has room for: a chain of dependent accesses
// decodes a tile. So sums take no registers while a tile is decoded. Of two inputs the first is
// left as values where it was fetched, the second is folded with it from the registers that it ends
// in; of more, sums wait in shared memory.
#pragma once

#include "fold_gpu.hpp"

namespace uzip::gpu {

// The largest types have not the shared memory for it.
template <DType kDType, FoldPlan kPlan>
constexpr bool kFoldsAhead =
    kPlan != FoldPlan::kAny &&
    (kLargeShared ? float_format(kDType).itemsize <= 4
                  : kPlan == FoldPlan::kPair && float_format(kDType).itemsize <= 2);

// Calls code.run<kDType, plan>() for the plan of a fold, of which `rounds` says whether its result
// is to be rounded.
template <DType kDType, typename Code>
const char* with_plan(const Fold& fold, bool rounds, const Code& code) {
  const bool is_power = (fold.divisor & (fold.divisor - 1)) == 0;
  if constexpr (kFoldsAhead<kDType, FoldPlan::kPair>) {
    if (fold.n_inputs == 2 && fold.before == nullptr && rounds && is_power) {
      return code.template run<kDType, FoldPlan::kPair>();
    }
  }
  constexpr bool kMany = kFoldsAhead<kDType, FoldPlan::kMany>;
  return code.template run<kDType, kMany ? FoldPlan::kMany : FoldPlan::kAny>();
}

// Blocks on a multiprocessor, as many as shared memory has room for.
template <DType kDType, FoldPlan kPlan>
constexpr int kFoldResident = float_format(kDType).itemsize > 2 || kPlan == FoldPlan::kAny ? 2
                              : kPlan == FoldPlan::kPair                                   ? 4
                                                                                           : 3;

// A lane's values of a tile, in registers: where decoders put them.
template <DType kDType>
struct RowSink {
  Run<kDType> rows[kRows];

  UZIP_DEVICE void put(int row, const Run<kDType>& run) { rows[row] = run; }
  UZIP_DEVICE void load(const uint8_t* tile, bool aligned, int lane) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      rows[row] = Run<kDType>::load(tile + place(row, lane), aligned);
    }
  }
  UZIP_DEVICE void store(uint8_t* tile, bool aligned, int lane) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) rows[row].store(tile + place(row, lane), aligned);
  }

  UZIP_DEVICE static uint32_t place(int row, int lane) {
    constexpr int kItemsize = float_format(kDType).itemsize;
    return static_cast<uint32_t>(value_index(lane, kLaneRow * row) * kItemsize);
  }
};

// Tiles of the inputs of a fold.
template <DType kDType, FoldPlan kPlan>
class InputTiles {
 public:
  using Tier = TierFrame<kDType>;
  using Directory = typename Tier::Directory;
  using Fetched = typename Tier::Fetched;  // size < 0: it was not
  using Room = FoldRoom<kDType, kPlan>;

  UZIP_DEVICE InputTiles() : lane_(thread_index() % kLanes) {}

  UZIP_DEVICE Directory read_directory(uint32_t tile, int i) const {
    const OpenInput<kDType>& input = input_at(i);
    if (tile >= tiles() || !is_framed(input)) return {0, 0};
    return input.tier.read_directory(tile, lane_);
  }

  // Asks for a tile, of which the directory has been read. Values that are not aligned are read
  // when they are folded.
  UZIP_DEVICE Fetched fetch(const Directory& directory, uint32_t tile, int i,
                            Stage<kDType>& stage) const {
    const OpenInput<kDType>& input = input_at(i);
    Fetched fetched{0, -1};
    if (tile < tiles()) {
      if (input.values != nullptr) {
        fetched.size = 0;
        constexpr int kTileBytes = float_format(kDType).tile_bytes();
        if (input.aligned) {
          copy_chunks_later(stage.chunks, input.values + uint64_t{tile} * kTileBytes,
                            kTileBytes / kAlignment, lane_);
        }
      } else if (is_framed(input)) {
        fetched = input.tier.fetch(directory, tile, stage, lane_);
      }
    }
    commit_copies();
    return fetched;
  }

  // A tile that was fetched, and is there. False: it is malformed.
  UZIP_DEVICE bool decode(const Fetched& fetched, uint32_t tile, int i, const Stage<kDType>& stage,
                          RowSink<kDType>& sink) const {
    const OpenInput<kDType>& input = input_at(i);
    if (input.values != nullptr) {
      const auto* values = reinterpret_cast<const uint8_t*>(stage.chunks);
      if (!input.aligned)
        values = input.values + uint64_t{tile} * float_format(kDType).tile_bytes();
      sink.load(values, input.aligned, lane_);
      return true;
    }
    TileStep step{input.tier, fetched, stage, sink, lane_, true};
    CompiledMenus::choose(input.menu, step);
    return step.good;
  }

  // Whether all inputs' tiles can be fetched.
  UZIP_DEVICE bool can_fetch(uint32_t tile) const {
    bool all = true;
    for (int i = 0; i < Folder<kDType, kPlan>::fold().n_inputs; ++i) {
      const OpenInput<kDType>& input = input_at(i);
      if (input.values != nullptr) continue;
      all = all && is_framed(input) &&
            input.tier.can_fetch(input.tier.read_directory(tile, lane_), tile, lane_);
    }
    return all;
  }

  UZIP_DEVICE int lane() const { return lane_; }

 private:
  // For CompiledMenus::choose().
  struct TileStep {
    const Tier& tier;
    const Fetched& fetched;
    const Stage<kDType>& stage;
    RowSink<kDType>& sink;
    int lane;
    bool good;

    template <int kMenu>
    UZIP_DEVICE void run() {
      if constexpr (kMenu != kAnyMenu) {  // tiles of other menus are not fetched
        good = tier.template decode_fetched<kMenu>(fetched, stage, Room::get().tables,
                                                   Room::warp().third.levels, lane, sink);
      }
    }
  };

  UZIP_DEVICE static const OpenInput<kDType>& input_at(int i) { return Room::get().inputs[i]; }
  UZIP_DEVICE static uint32_t tiles() { return Folder<kDType, kPlan>::tiles(); }
  // Whether it is a frame of which tiles may be fetched.
  UZIP_DEVICE static bool is_framed(const OpenInput<kDType>& input) {
    return input.values == nullptr && CompiledMenus::has(input.menu);
  }

  int lane_;
};

// A warp's tiles of a fold, one after the other: prepare(), then fetch(), then fold() of each.
enum class Folded { kYes, kNotFetched, kMalformed };

template <DType kDType, FoldPlan kPlan>
class TileFolder;

template <DType kDType>
class TileFolder<kDType, FoldPlan::kPair> {
 public:
  using Tiles = InputTiles<kDType, FoldPlan::kPair>;
  using Room = typename Tiles::Room;
  using Accumulator = typename Row<kDType>::Accumulator;

  // Reads where a tile is.
  UZIP_DEVICE void prepare(uint32_t tile) {
    directory_[0] = tiles_.read_directory(tile, 0);
    directory_[1] = tiles_.read_directory(tile, 1);
  }
  // Asks for it.
  UZIP_DEVICE void fetch(uint32_t tile) {
    fetched_[0] = tiles_.fetch(directory_[0], tile, 0, first());
    fetched_[1] = tiles_.fetch(directory_[1], tile, 1, second());
  }
  // Folds it, to a lane's rows. The memory it was fetched to is free for all lanes then. `next`:
  // the tile to prepare.
  UZIP_DEVICE Folded fold(uint32_t tile, uint32_t next, RowSink<kDType>& rows) {
    const bool present = fetched_[0].size >= 0 && fetched_[1].size >= 0;
    bool good = true;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      if (i == 0) {
        wait_copies<1>();
      } else {
        prepare(next);
        wait_copies<0>();
      }
      sync_lanes();
      if (!present) continue;
      const auto fetched = i == 0 ? fetched_[0] : fetched_[1];
      good = tiles_.decode(fetched, tile, i, i == 0 ? first() : second(), rows) && good;
      sync_lanes();  // what was fetched has been read
      if (i == 0) rows.store(values(), true, tiles_.lane());
    }
    if (!present) return Folded::kNotFetched;
    const Fold& fold = Folder<kDType, FoldPlan::kPair>::fold();
    PairStep step{values(), rows, 1 / static_cast<Accumulator>(fold.divisor), tiles_.lane()};
    with_operator(fold.op, step);
    sync_lanes();
    return good ? Folded::kYes : Folded::kMalformed;
  }
  UZIP_DEVICE bool can_fetch(uint32_t tile) const { return tiles_.can_fetch(tile); }

 private:
  // Folds the rows with those before them, and rounds.
  struct PairStep {
    const uint8_t* before;
    RowSink<kDType>& rows;
    Accumulator scale;
    int lane;

    template <typename Operator>
    UZIP_DEVICE void run() {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const auto a = Run<kDType>::load(before + RowSink<kDType>::place(row, lane), true);
        Run<kDType> result{};
#pragma unroll
        for (int i = 0; i < kLaneRow; ++i) {
          const auto sum =
              Operator::apply(Row<kDType>::widen(a, i), Row<kDType>::widen(rows.rows[row], i));
          Row<kDType>::narrow(multiply(sum, scale), i, result);
        }
        rows.rows[row] = result;
      }
    }
  };

  UZIP_DEVICE static Stage<kDType>& first() { return Room::warp().first.stage; }
  UZIP_DEVICE static Stage<kDType>& second() {
    return *reinterpret_cast<Stage<kDType>*>(Room::warp().second.stage);
  }
  UZIP_DEVICE static uint8_t* values() { return Room::warp().first.values; }

  Tiles tiles_;
  typename Tiles::Directory directory_[2];
  typename Tiles::Fetched fetched_[2];
};

template <DType kDType>
class TileFolder<kDType, FoldPlan::kMany> {
 public:
  using Tiles = InputTiles<kDType, FoldPlan::kMany>;
  using Room = typename Tiles::Room;
  using Accumulator = typename Row<kDType>::Accumulator;

  UZIP_DEVICE void prepare(uint32_t tile) { directory_ = tiles_.read_directory(tile, 0); }
  UZIP_DEVICE void fetch(uint32_t tile) {
    fetched_ = tiles_.fetch(directory_, tile, 0, stage());
    directory_ = tiles_.read_directory(tile, 1 % inputs());
  }
  UZIP_DEVICE Folded fold(uint32_t tile, uint32_t next, RowSink<kDType>& rows) {
    bool good = true;
    bool present = true;
#pragma unroll 1
    for (int i = 0; i < inputs(); ++i) {
      wait_copies<0>();
      sync_lanes();
      const bool here = fetched_.size >= 0;
      if (here) good = tiles_.decode(fetched_, tile, i, stage(), rows) && good;
      present = here && present;
      sync_lanes();  // what was fetched has been read
      if (i + 1 < inputs()) {
        fetched_ = tiles_.fetch(directory_, tile, i + 1, stage());
        const bool is_last = i + 2 == inputs();
        directory_ = tiles_.read_directory(is_last ? next : tile, is_last ? 0 : i + 2);
      } else if (i == 0) {
        directory_ = tiles_.read_directory(next, 0);
      }
      SumStep step{rows, i == 0, before(tile), tiles_.lane()};
      with_operator(Folder<kDType, FoldPlan::kMany>::fold().op, step);
    }
    if (!present) return Folded::kNotFetched;
    return good ? Folded::kYes : Folded::kMalformed;
  }
  UZIP_DEVICE bool can_fetch(uint32_t tile) const { return tiles_.can_fetch(tile); }

  // After fold(): divides and rounds the sums.
  UZIP_DEVICE void round(int divisor, RowSink<kDType>& rows) const {
    const auto by = static_cast<Accumulator>(divisor);
    const bool is_power = (divisor & (divisor - 1)) == 0;  // then its inverse is exact
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const auto sums = load(row, tiles_.lane());
      Run<kDType> result{};
#pragma unroll
      for (int i = 0; i < kLaneRow; ++i) {
        const Accumulator sum = Row<kWide>::widen(sums, i);
        Row<kDType>::narrow(is_power ? multiply(sum, 1 / by) : divide(sum, by), i, result);
      }
      rows.rows[row] = result;
    }
  }
  // After fold(): stores the sums as they are.
  UZIP_DEVICE void store_wide(uint8_t* to) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      load(row, tiles_.lane()).store(to + RowSink<kWide>::place(row, tiles_.lane()), true);
    }
  }

 private:
  // The type that accumulates, as one of its own.
  static constexpr DType kWide = sizeof(Accumulator) == 8 ? DType::kFloat64 : DType::kFloat32;

  // Each lane's sums are read by that lane only, so they lie where no two lanes meet in a bank.
  UZIP_DEVICE static Chunk* chunk(int row, int i, int lane) {
    return reinterpret_cast<Chunk*>(Room::warp().second.sums) +
           (row * Run<kWide>::kWords / 4 + i) * kLanes + lane;
  }
  UZIP_DEVICE static Run<kWide> load(int row, int lane) {
    Run<kWide> run;
#pragma unroll
    for (int i = 0; i < Run<kWide>::kWords / 4; ++i) {
      const Chunk words = *chunk(row, i, lane);
#pragma unroll
      for (int k = 0; k < 4; ++k) run.words[4 * i + k] = words.words[k];
    }
    return run;
  }

  // Folds the sums, or what there was before, with rows.
  struct SumStep {
    const RowSink<kDType>& rows;
    bool is_first;
    const uint8_t* before;
    int lane;

    template <typename Operator>
    UZIP_DEVICE void run() {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        Run<kWide> sums;
        if (!is_first) {
          sums = load(row, lane);
        } else if (before != nullptr) {
          sums = Run<kWide>::load(before + RowSink<kWide>::place(row, lane), true);
        }
        Run<kWide> result{};
#pragma unroll
        for (int i = 0; i < kLaneRow; ++i) {
          const Accumulator value = Row<kDType>::widen(rows.rows[row], i);
          Accumulator sum = value;
          if (!is_first || before != nullptr) {
            sum = Operator::apply(Row<kWide>::widen(sums, i), value);
          }
          set(result, i, sum);
        }
#pragma unroll
        for (int i = 0; i < Run<kWide>::kWords / 4; ++i) {
          Chunk words;
#pragma unroll
          for (int k = 0; k < 4; ++k) words.words[k] = result.words[4 * i + k];
          *chunk(row, i, lane) = words;
        }
      }
    }
    UZIP_DEVICE static void set(Run<kWide>& run, int i, Accumulator sum) {
      static_assert(sizeof(Accumulator) == 4);  // of the types that are fetched ahead
      run.words[i] = bit_cast<uint32_t>(sum);
    }
  };

  UZIP_DEVICE static int inputs() { return Folder<kDType, FoldPlan::kMany>::fold().n_inputs; }
  UZIP_DEVICE static const uint8_t* before(uint32_t tile) {
    const auto* sums = static_cast<const uint8_t*>(Folder<kDType, FoldPlan::kMany>::fold().before);
    return sums == nullptr ? nullptr : sums + tile * kSumsBytes<kDType>;
  }
  UZIP_DEVICE static Stage<kDType>& stage() { return Room::warp().first.stage; }

  Tiles tiles_;
  typename Tiles::Directory directory_;
  typename Tiles::Fetched fetched_;
};

}  // namespace uzip::gpu
