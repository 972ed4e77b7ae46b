// The folding part of a block: a warp folds a tile of every rank, in rank order.
//
// As fold_gpu.hpp, but that the others' tiles come through links. What lies behind the last whole
// tile is folded as a tile of which only the first values are stored.
#pragma once

#include "link_receive_gpu.hpp"

namespace uzip::gpu {

template <DType kDType>
UZIP_DEVICE_CALL bool call_decode_to_room(ArrivedTile tile) {
  uint8_t* values = ReceiveRoom<kDType>::get().warps[thread_index() / kLanes].values;
  const int lane = thread_index() % kLanes;
  RoomSink<kDType> sink{{values, true, lane}};
  return decode_any_arrived<kDType>(tile, sink, lane);
}

// What folds of two tensors and of more have in common; all of it is in shared memory. `turn`: of a
// warp's rooms for own tiles.
template <DType kDType>
struct FoldTiles {
  static constexpr int kTileBytes = float_format(kDType).tile_bytes();

  UZIP_DEVICE static const LinkFold& fold() { return LinkFoldRoom<kDType>::get().fold; }
  UZIP_DEVICE static const Records& records() { return ReceiveRoom<kDType>::get().records; }
  UZIP_DEVICE static int lane() { return thread_index() % kLanes; }
  UZIP_DEVICE static uint8_t* own_room(int turn) {
    return LinkFoldRoom<kDType>::get().own[thread_index() / kLanes][turn];
  }
  UZIP_DEVICE static bool has_aligned_own() { return is_aligned(fold().own, kAlignment); }

  // The values of another rank's tile. Null: it is malformed.
  UZIP_DEVICE static const uint8_t* values_of(const ArrivedTile& tile, bool partial) {
    if (partial || is_plain<kDType>(tile.entry)) return tile.bytes;
    const bool good = call_decode_to_room<kDType>(tile);
    sync_lanes();
    return good ? ReceiveRoom<kDType>::get().warps[thread_index() / kLanes].values : nullptr;
  }
  UZIP_DEVICE static bool complain() {
    if (lane() == 0) LinkBlock::get().fail(LinkStatus::kDamaged);
    return false;
  }

  // Where own values are aligned, asks for a whole tile of them, which comes with what is asked for
  // next.
  UZIP_DEVICE static void ask_for_own(uint32_t tile, int turn) {
    if (tile >= records().tiles || !has_aligned_own()) return;
    copy_tile_later<kDType>(reinterpret_cast<Chunk*>(own_room(turn)),
                            fold().own + uint64_t{tile} * kTileBytes, lane());
  }
  // This rank's own tile, once others' have been taken, with which it comes; and whether it is
  // aligned. Lanes write what they alone have read, so the result may be stored there.
  UZIP_DEVICE static const uint8_t* own(uint32_t tile, bool partial, int turn, bool* aligned) {
    const uint8_t* values = fold().own + uint64_t{tile} * kTileBytes;
    *aligned = partial || has_aligned_own();
    if (partial) {
      sync_lanes();  // the room may still be read
      copy_values<kDType>(own_room(turn), values, records().remaining, lane());
      sync_lanes();
    }
    return *aligned ? own_room(turn) : values;
  }

  // Where a tile of the result goes; one that is partial is to be finished.
  UZIP_DEVICE static MemorySink<kDType> result(uint32_t tile, bool partial, int turn) {
    uint8_t* out = fold().out + uint64_t{tile} * kTileBytes;
    return {partial ? own_room(turn) : out, partial || is_aligned(fold().out, kAlignment), lane()};
  }
  UZIP_DEVICE static void finish_partial(uint32_t tile, int turn) {
    sync_lanes();
    copy_values<kDType>(fold().out + uint64_t{tile} * kTileBytes, own_room(turn),
                        records().remaining, lane());
  }
};

// Adds this rank's own rows to those of another: of two the order does not matter.
template <DType kDType>
struct SumSink {
  const uint8_t* own;
  typename Row<kDType>::Accumulator scale;  // exact
  MemorySink<kDType> result;

  UZIP_DEVICE void put(int row, const Run<kDType>& theirs) {
    const int at = value_index(result.lane, kLaneRow * row) * float_format(kDType).itemsize;
    result.put(row, add_runs<kDType>(Run<kDType>::load(own + at, true), theirs, scale));
  }
};

// Folds a row of 8 values of each of two tensors at a time, so that few sums are to be held.
template <DType kDType>
struct RowPairs {
  const uint8_t* first;
  const uint8_t* second;
  bool first_aligned;
  bool second_aligned;
  int divisor;
  MemorySink<kDType> sink;

  template <typename Operator>
  UZIP_DEVICE void run() {
    using Accumulator = typename Row<kDType>::Accumulator;
    const auto by = static_cast<Accumulator>(divisor);
    const bool is_power = (divisor & (divisor - 1)) == 0;  // then its inverse is exact
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      const int at = value_index(sink.lane, kLaneRow * row) * float_format(kDType).itemsize;
      const auto a = Run<kDType>::load(first + at, first_aligned);
      const auto b = Run<kDType>::load(second + at, second_aligned);
      Run<kDType> result{};
#pragma unroll
      for (int i = 0; i < kLaneRow; ++i) {
        auto sum = Operator::apply(Row<kDType>::widen(a, i), Row<kDType>::widen(b, i));
        sum = is_power ? multiply(sum, 1 / by) : divide(sum, by);
        Row<kDType>::narrow(sum, i, result);
      }
      sink.put(row, result);
    }
  }
};

// All but sums of whole tiles.
template <DType kDType>
UZIP_DEVICE bool fold_any(const ArrivedTile& arrived, uint32_t tile, bool partial, int own_turn) {
  using Tiles = FoldTiles<kDType>;
  const LinkFold& fold = Tiles::fold();
  const uint8_t* theirs = Tiles::values_of(arrived, partial);
  if (theirs == nullptr) return false;
  bool aligned;
  const uint8_t* own = Tiles::own(tile, partial, own_turn, &aligned);
  const bool own_first = fold.position == 0;
  RowPairs<kDType> rows{own_first ? own : theirs,
                        own_first ? theirs : own,
                        !own_first || aligned,
                        own_first || aligned,
                        fold.divisor,
                        Tiles::result(tile, partial, own_turn)};
  with_operator(fold.op, rows);
  if (partial) Tiles::finish_partial(tile, own_turn);
  return true;
}

// What has become of a warp's tiles.
enum class Folded { kAll, kFailed, kOther };

// Folds the tiles of this rank and one other. Sums of tiles of the message's menu, of which there
// are most, are made row by row as the other's tile is decoded; all else is made of what both have
// in shared memory.
template <DType kDType>
class PairFolder {
 public:
  using Tiles = FoldTiles<kDType>;

  UZIP_DEVICE explicit PairFolder(const WorkerTurns& turns)
      : fetcher_(turns, 1), record_(turns.first) {
    if (is_done()) return;
    tile_ = Tiles::records().first_tile(record_);
    left_ = Tiles::records().tiles_of(record_);
    Tiles::ask_for_own(tile_, 0);
  }

  UZIP_DEVICE static bool adds() {
    const LinkFold& fold = Tiles::fold();
    return fold.op == ReduceOp::kSum && (fold.divisor & (fold.divisor - 1)) == 0 &&
           Tiles::has_aligned_own();
  }

  // Adds tiles until there is one of another kind, which is then fold_taken()'s.
  template <int kMenu>
  UZIP_DEVICE Folded add() {
    while (!is_done()) {
      if (!take()) return Folded::kFailed;
      if (is_partial()) return Folded::kOther;
      const Folded added = add_tile<kMenu>(fetcher_.taken());
      if (added != Folded::kAll) return added;
      pass();
    }
    return Folded::kAll;
  }
  UZIP_DEVICE bool fold_taken() {
    if (!fold_any<kDType>(fetcher_.taken(), tile_, is_partial(), own_turn_)) {
      fail();
      return false;
    }
    pass();
    return true;
  }
  UZIP_DEVICE void fold_all() {
    while (!is_done()) {
      if (!take() || !fold_taken()) return;
    }
  }

 private:
  UZIP_DEVICE bool is_done() const { return record_ >= Tiles::records().all(); }
  UZIP_DEVICE bool is_partial() const { return record_ == Tiles::records().whole; }
  UZIP_DEVICE static int turn_after(int turn) { return (turn + 1) % kStages<kDType>; }
  UZIP_DEVICE static Folded fail() {
    Tiles::complain();
    return Folded::kFailed;
  }

  // Waits for the other's tile. Where there is room, this rank's own next one is on its way.
  UZIP_DEVICE bool take() {
    if (left_ == 1) next_ = Tiles::records().first_tile(record_ + fetcher_.step());
    if (kStages<kDType> > 1) ask_for_next();
    return fetcher_.take(record_, left_ == 1);
  }
  UZIP_DEVICE void pass() {
    fetcher_.release();
    if (kStages<kDType> == 1) ask_for_next();
    own_turn_ = turn_after(own_turn_);
    tile_ = next_tile();
    if (--left_ != 0) return;
    record_ += fetcher_.step();
    left_ = Tiles::records().tiles_of(record_);
  }
  UZIP_DEVICE uint32_t next_tile() const { return left_ == 1 ? next_ : tile_ + 1; }
  UZIP_DEVICE void ask_for_next() const { Tiles::ask_for_own(next_tile(), turn_after(own_turn_)); }

  template <int kMenu>
  UZIP_DEVICE Folded add_tile(const ArrivedTile& arrived) const {
    SumSink<kDType> sink{Tiles::own_room(own_turn_), LinkFoldRoom<kDType>::get().scale,
                         Tiles::result(tile_, false, own_turn_)};
    if constexpr (kMenu != kAnyMenu) {
      if (is_dense<kDType>(arrived)) {
        return decode_dense_arrived<kDType, kMenu>(arrived, sink) ? Folded::kAll : fail();
      }
    }
    if (is_plain<kDType>(arrived.entry)) {
      put_plain<kDType>(arrived.bytes, sink, sink.result.lane);
    } else if (is_constant(arrived.entry)) {
      put_constant_arrived<kDType>(arrived, sink);
    } else {
      return Folded::kOther;
    }
    return Folded::kAll;
  }

  Fetcher<kDType, true, true> fetcher_;
  uint32_t record_;
  uint32_t tile_ = 0;
  uint32_t next_ = 0;  // first tile of the next record, while the last of this one is folded
  int left_ = 0;       // tiles of the record
  int own_turn_ = 0;
};

// Calls, so that the loop over tiles of a certain menu has the registers to itself, and no call in
// it, around which what it knows would go to memory.
template <DType kDType, int kMenu>
UZIP_DEVICE_CALL Folded add_pairs(PairFolder<kDType>* folder) {
  PairFolder<kDType> mine = *folder;
  const Folded end = mine.template add<kMenu>();
  *folder = mine;
  return end;
}
template <DType kDType>
UZIP_DEVICE_CALL bool fold_taken_pair(PairFolder<kDType>* folder) {
  return folder->fold_taken();
}
template <DType kDType>
UZIP_DEVICE_CALL void fold_any_pairs(WorkerTurns turns) {
  PairFolder<kDType>(turns).fold_all();
}

// For CompiledMenus::choose().
template <DType kDType>
struct PairAdder {
  PairFolder<kDType> folder;
  Folded end;

  template <int kMenu>
  UZIP_DEVICE void run() {
    end = add_pairs<kDType, kMenu>(&folder);
  }
};

// Folds this warp's records of two ranks.
template <DType kDType>
UZIP_DEVICE void fold_pairs(const WorkerTurns& turns) {
  if (!PairFolder<kDType>::adds()) return fold_any_pairs<kDType>(turns);
  PairAdder<kDType> adder{PairFolder<kDType>(turns), Folded::kAll};
  do {
    CompiledMenus::choose(menu_of_incoming<kDType>(), adder);
  } while (adder.end == Folded::kOther && fold_taken_pair<kDType>(&adder.folder));
}

// A tile to be folded.
struct FoldTurn {
  uint32_t record;
  uint32_t tile;
  bool is_last;  // of the record
  bool partial;  // the values behind the last whole tile
};

template <DType kDType>
class ManyFolder {
 public:
  using Tiles = FoldTiles<kDType>;

  UZIP_DEVICE explicit ManyFolder(const WorkerTurns& turns)
      : fetcher_(turns, Tiles::fold().n_peers) {}

  // False: it has failed.
  UZIP_DEVICE bool fold(const FoldTurn& turn) {
    const LinkFold& fold = Tiles::fold();
    Accumulators<kDType> sums(fold.op, Tiles::lane());
    sums.begin(nullptr);
    sync_lanes();  // the room may still be read
    Tiles::ask_for_own(turn.tile, 0);
    commit_copies();
#pragma unroll 1
    for (int rank = 0; rank <= fold.n_peers; ++rank) {
      if (!(rank == fold.position ? fold_own(turn, sums) : fold_next(turn, sums))) return false;
    }
    sums.divide_by(fold.divisor);
    auto sink = Tiles::result(turn.tile, turn.partial, 0);
#pragma unroll
    for (int row = 0; row < kRows; ++row) sink.put(row, sums.rounded(row));
    if (turn.partial) Tiles::finish_partial(turn.tile, 0);
    return true;
  }

 private:
  UZIP_DEVICE bool fold_own(const FoldTurn& turn, Accumulators<kDType>& sums) const {
    // Others' tiles are waited for together with what was asked for before.
    if (Tiles::fold().position == 0) {
      wait_copies<0>();
      sync_lanes();
    }
    bool aligned;
    const uint8_t* values = Tiles::own(turn.tile, turn.partial, 0, &aligned);
    sums.fold(values, aligned);
    return true;
  }
  UZIP_DEVICE bool fold_next(const FoldTurn& turn, Accumulators<kDType>& sums) {
    if (!fetcher_.take(turn.record, turn.is_last)) return false;
    const uint8_t* values = Tiles::values_of(fetcher_.taken(), turn.partial);
    if (values == nullptr) return Tiles::complain();
    sums.fold(values, true);
    fetcher_.release();
    return true;
  }

  Fetcher<kDType, false> fetcher_;
};

// Folds this warp's records of more ranks.
template <DType kDType>
UZIP_DEVICE_CALL void fold_many(WorkerTurns turns) {
  const Records& records = ReceiveRoom<kDType>::get().records;
  ManyFolder<kDType> folder(turns);
#pragma unroll 1
  for (uint32_t record = turns.first; record < records.all(); record += turns.step) {
    const uint32_t first = records.first_tile(record);
    const int n = records.tiles_of(record);
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      const uint32_t tile = first + static_cast<uint32_t>(i);
      if (!folder.fold({record, tile, i + 1 == n, record == records.whole})) return;
    }
  }
}

// Of the message that a fold replaces: the fold's blocks must know its place, so they count among
// those that work on it. By one thread.
struct Replaced {
  int link;
  Ledger* ledger;
  Progress before;
  uint32_t blocks;
  bool is_last;

  template <DType kDType>
  UZIP_DEVICE static Replaced of(const Exchange& exchange) {
    ReceiveRoom<kDType>& room = ReceiveRoom<kDType>::get();
    room.reads = nullptr;
    if (!exchange.in_place) return {};
    const Message& message = exchange.sends[0];
    const Link& link = room.block.links[message.link];
    const Progress before = link.ledger->sent;
    room.reads = link.ledger->reads();
    room.sent = before.records;
    const uint32_t blocks = blocks_of_sent(exchange, message);
    return {message.link, link.ledger, before, blocks,
            LinkBlock::is_last(&link.ledger->sent, blocks)};
  }
  // Until all of the sender's blocks have chosen how to code, for which each looks at values from
  // everywhere: they must choose alike. False: they do not.
  UZIP_DEVICE bool wait_for_choice() const {
    if (ledger == nullptr) return true;
    const bool chosen = LinkBlock::get().wait(link, [&] {
      return load_acquire_system(&ledger->sent.messages) != before.messages ||
             load_relaxed_system(&ledger->sent.blocks) >= blocks;
    });
    fence_device();
    return chosen;
  }
  UZIP_DEVICE void close(uint32_t records) const {
    if (is_last) advance(&ledger->sent, before.messages + 1, before.records + records);
  }
};

// A block's part in a fold.
template <DType kDType>
UZIP_DEVICE_CALL void fold_part(const Exchange& exchange) {
  const LinkFold& fold = exchange.fold;
  const Records& records = fold.records;
  const uint32_t block = block_index() - fold.first_block;
  bool is_last;
  Replaced replaced{};
  if (thread_index() == 0) {
    LinkFoldRoom<kDType>::get().begin(fold);
    replaced = Replaced::of<kDType>(exchange);
    if (!replaced.wait_for_choice()) LinkBlock::get().failed = true;
  }
  if (open_all<kDType>(exchange, fold.links, fold.n_peers, fold.count, records, fold.blocks,
                       &is_last)) {
    const auto turns =
        WorkerTurns::of(records.all(), block, fold.blocks, thread_index() / kLanes, kWarps);
    if (fold.n_peers == 1) {
      fold_pairs<kDType>(turns);
    } else {
      fold_many<kDType>(turns);
    }
  }
  if (is_last) close_all<kDType>(fold.links, fold.n_peers, records.all());
  replaced.close(records.all());
}

}  // namespace uzip::gpu
