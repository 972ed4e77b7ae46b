// Folds whose inputs are fetched ahead, by a warp, for plans kPair and kMany of fold_gpu.hpp.
//
// What limits them is how many warps a multiprocessor has room for: a chain of dependent accesses
// decodes a tile. So sums take no registers while a tile is decoded. Of two inputs the first is
// left as values where it was fetched, the second is folded with it from the registers that it ends
// in; of more, sums wait in shared memory.
#pragma once

#include "fold_gpu.hpp"

namespace uzip::gpu {

// The largest types have not the shared memory for it. HIP's devices have neither that much nor
// copies that go on by themselves.
template <DType kDType, FoldPlan kPlan>
constexpr bool kFoldsAhead =
    kLargeShared && kPlan != FoldPlan::kAny && float_format(kDType).itemsize <= 4;

// Calls code.run<kDType, plan>() for the plan of a fold, of which `rounds` says whether its result
// is to be rounded.
template <DType kDType, typename Code>
const char* with_plan(const Fold& fold, bool rounds, const Code& code) {
  if constexpr (kFoldsAhead<kDType, FoldPlan::kPair>) {
    if (fold.n_inputs == 2 && fold.before == nullptr && fold.divisor == 1 && rounds) {
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
  using Fetched = typename Tier::Fetched;  // size < 0: it was not
  using Room = FoldRoom<kDType, kPlan>;
  using Fetching = typename FoldWarpRoom<kDType, kPlan>::Fetching;

  UZIP_DEVICE InputTiles() : lane_(thread_index() % kLanes) {}

  // Asks where a tile is. Like fetch() this is a group of copies.
  UZIP_DEVICE void prepare(uint32_t tile, int i, Fetching& fetching) const {
    const OpenInput<kDType>& input = input_at(i);
    if (tile < tiles() && is_framed(input)) {
      input.tier.fetch_directory(tile, fetching.next, lane_);
    }
    commit_copies();
  }

  // Asks for a tile; where it is must be there. Values that are not aligned are read when they are
  // folded.
  UZIP_DEVICE void fetch(uint32_t tile, int i, Stage<kDType>& stage, Fetching& fetching) const {
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
        fetched =
            input.tier.fetch(Tier::directory_in(fetching.next, tile, lane_), tile, stage, lane_);
      }
    }
    fetching.fetched = fetched;
    commit_copies();
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

// What became of a tile.
enum class Folded { kYes, kNotFetched, kMalformed };

// A warp's tiles, one after the other: prepare(tile), then fetch(tile), then fold(tile, next),
// which prepares the next one; and so on from fetch(). What it knows of its inputs is in shared
// memory.
template <DType kDType, FoldPlan kPlan>
class TileFolder;

template <DType kDType>
class TileFolder<kDType, FoldPlan::kPair> {
 public:
  using Tiles = InputTiles<kDType, FoldPlan::kPair>;
  using Room = typename Tiles::Room;
  using Accumulator = typename Row<kDType>::Accumulator;

  // Asks where a tile is.
  UZIP_DEVICE void prepare(uint32_t tile) {
    tiles_.prepare(tile, 0, fetching(0));
    tiles_.prepare(tile, 1, fetching(1));
  }
  // Asks for it. Nothing that was fetched before is needed any more.
  UZIP_DEVICE void fetch(uint32_t tile) {
    wait_copies<0>();
    sync_lanes();
    tiles_.fetch(tile, 0, first(), fetching(0));
    tiles_.fetch(tile, 1, second(), fetching(1));
  }
  // Folds it, and calls finish(a lane's rows of the result) unless it could not be fetched.
  template <typename Finish>
  UZIP_DEVICE Folded fold(uint32_t tile, uint32_t next, const Finish& finish) {
    sync_lanes();  // all know where the tile was
    prepare(next);
    wait_copies<3>();
    bool good = true;
    // One loop, as the decoder is large.
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      sync_lanes();
      const auto fetched = fetching(i).fetched;
      if (fetched.size < 0) return Folded::kNotFetched;
      RowSink<kDType> rows;
      good = tiles_.decode(fetched, tile, i, i == 0 ? first() : second(), rows) && good;
      if (i == 0) {
        sync_lanes();  // what was fetched has been read
        rows.store(values(), true, tiles_.lane());
        wait_copies<2>();
      } else {
        PairStep step{values(), rows, tiles_.lane()};
        with_operator(Folder<kDType, FoldPlan::kPair>::fold().op, step);
        finish(rows);
      }
    }
    return good ? Folded::kYes : Folded::kMalformed;
  }
  UZIP_DEVICE bool can_fetch(uint32_t tile) const { return tiles_.can_fetch(tile); }

 private:
  // Folds the rows with those before them, and rounds.
  struct PairStep {
    const uint8_t* before;
    RowSink<kDType>& rows;
    int lane;

    template <typename Operator>
    UZIP_DEVICE void run() {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const auto a = Run<kDType>::load(before + RowSink<kDType>::place(row, lane), true);
        // Two at a time, where there is an instruction for that.
        if constexpr (std::is_same_v<Operator, Sum> && Row<kDType>::kItemsize == 2) {
          rows.rows[row] = add_runs<kDType>(a, rows.rows[row], 1);
          continue;
        }
        Run<kDType> result{};
#pragma unroll
        for (int i = 0; i < kLaneRow; ++i) {
          const auto sum =
              Operator::apply(Row<kDType>::widen(a, i), Row<kDType>::widen(rows.rows[row], i));
          Row<kDType>::narrow(sum, i, result);
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
  UZIP_DEVICE static typename Tiles::Fetching& fetching(int i) { return Room::warp().fetching[i]; }

  Tiles tiles_;
};

template <DType kDType>
class TileFolder<kDType, FoldPlan::kMany> {
 public:
  using Tiles = InputTiles<kDType, FoldPlan::kMany>;
  using Room = typename Tiles::Room;
  using Accumulator = typename Row<kDType>::Accumulator;

  UZIP_DEVICE void prepare(uint32_t tile) { tiles_.prepare(tile, 0, fetching()); }
  UZIP_DEVICE void fetch(uint32_t tile) { fetch_input(tile, 0); }
  // Folds it; the sums are for round() or store_wide() then.
  UZIP_DEVICE Folded fold(uint32_t tile, uint32_t next) {
    begin(tile);
    bool good = true;
    bool present = true;
#pragma unroll 1
    for (int i = 0; i < inputs(); ++i) {
      sync_lanes();  // all know where the tile was
      const bool is_last = i + 1 == inputs();
      tiles_.prepare(is_last ? next : tile, is_last ? 0 : i + 1, fetching());
      wait_copies<1>();
      sync_lanes();
      const auto fetched = fetching().fetched;
      if (fetched.size >= 0) {
        RowSink<kDType> rows;
        good = tiles_.decode(fetched, tile, i, stage(), rows) && good;
        SumStep step{rows, tiles_.lane()};
        with_operator(Folder<kDType, FoldPlan::kMany>::fold().op, step);
      } else {
        present = false;
      }
      if (!is_last) fetch_input(tile, i + 1);
    }
    if (!present) return Folded::kNotFetched;
    return good ? Folded::kYes : Folded::kMalformed;
  }
  template <typename Finish>
  UZIP_DEVICE Folded fold(uint32_t tile, uint32_t next, const Finish& finish) {
    const Folded folded = fold(tile, next);
    if (folded != Folded::kNotFetched) round(finish);
    return folded;
  }
  UZIP_DEVICE bool can_fetch(uint32_t tile) const { return tiles_.can_fetch(tile); }

  // After fold(): divides and rounds the sums, and calls finish(rows).
  template <typename Finish>
  UZIP_DEVICE void round(const Finish& finish) const {
    if (Folder<kDType, FoldPlan::kMany>::fold().divisor != 1) divide_sums();
    RowSink<kDType> rows;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const auto sums = load(row, tiles_.lane());
      Run<kDType> result{};
#pragma unroll
      for (int i = 0; i < kLaneRow; ++i) {
        Row<kDType>::narrow(Row<kWide>::widen(sums, i), i, result);
      }
      rows.rows[row] = result;
    }
    finish(rows);
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

  UZIP_DEVICE static void store(const Run<kWide>& run, int row, int lane) {
#pragma unroll
    for (int i = 0; i < Run<kWide>::kWords / 4; ++i) {
      Chunk words;
#pragma unroll
      for (int k = 0; k < 4; ++k) words.words[k] = run.words[4 * i + k];
      *chunk(row, i, lane) = words;
    }
  }

  // Begins with nothing, or with the sums of the inputs before.
  UZIP_DEVICE void begin(uint32_t tile) const {
    const Fold& fold = Folder<kDType, FoldPlan::kMany>::fold();
    const auto* before = static_cast<const uint8_t*>(fold.before);
    const auto nothing = neutral<Accumulator>(fold.op);
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      Run<kWide> sums{};
      if (before != nullptr) {
        const uint8_t* from = before + tile * kSumsBytes<kDType>;
        sums = Run<kWide>::load(from + RowSink<kWide>::place(row, tiles_.lane()), true);
      } else {
#pragma unroll
        for (int i = 0; i < kLaneRow; ++i) Row<kWide>::put(nothing, i, sums);
      }
      store(sums, row, tiles_.lane());
    }
  }

  // Folds the sums with rows.
  struct SumStep {
    const RowSink<kDType>& rows;
    int lane;

    template <typename Operator>
    UZIP_DEVICE void run() {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        Run<kWide> sums = load(row, lane);
#pragma unroll
        for (int i = 0; i < kLaneRow; ++i) {
          const Accumulator value = Row<kDType>::widen(rows.rows[row], i);
          Row<kWide>::put(Operator::apply(Row<kWide>::widen(sums, i), value), i, sums);
        }
        store(sums, row, lane);
      }
    }
  };

  // A call, as it is seldom wanted.
  UZIP_DEVICE_CALL static void divide_sums() {
    const int lane = thread_index() % kLanes;
    const int divisor = Folder<kDType, FoldPlan::kMany>::fold().divisor;
    const auto by = static_cast<Accumulator>(divisor);
    const bool is_power = (divisor & (divisor - 1)) == 0;  // then its inverse is exact
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      Run<kWide> sums = load(row, lane);
#pragma unroll
      for (int i = 0; i < kLaneRow; ++i) {
        const Accumulator sum = Row<kWide>::widen(sums, i);
        Row<kWide>::put(is_power ? multiply(sum, 1 / by) : divide(sum, by), i, sums);
      }
      store(sums, row, lane);
    }
  }

  UZIP_DEVICE static int inputs() { return Folder<kDType, FoldPlan::kMany>::fold().n_inputs; }
  UZIP_DEVICE static Stage<kDType>& stage() { return Room::warp().first.stage; }
  UZIP_DEVICE static typename Tiles::Fetching& fetching() { return Room::warp().fetching[0]; }
  UZIP_DEVICE void fetch_input(uint32_t tile, int i) {
    wait_copies<0>();
    sync_lanes();  // what was fetched before has been read, and all know where this is
    tiles_.fetch(tile, i, stage(), fetching());
  }

  Tiles tiles_;
};

}  // namespace uzip::gpu
