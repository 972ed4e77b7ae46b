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
  RoomSink<kDType> sink{{values, true, thread_index() % kLanes}};
  return decode_arrived<kDType>(tile, sink);
}

// What folds of two tensors and of more have in common.
template <DType kDType>
class FoldTiles {
 public:
  static constexpr int kTileBytes = float_format(kDType).tile_bytes();

  UZIP_DEVICE FoldTiles(const LinkFold& fold, const Records& records, const WorkerTurns& turns)
      : fold_(fold),
        records_(records),
        fetcher_(records, turns, fold.n_peers),
        lane_(thread_index() % kLanes) {}

  UZIP_DEVICE uint8_t* own_room() const { return own_room(own_turn_); }
  UZIP_DEVICE static uint8_t* values_room() {
    return ReceiveRoom<kDType>::get().warps[thread_index() / kLanes].values;
  }

  // Waits for the next tile of another rank. False: it will not come.
  UZIP_DEVICE bool take(ArrivedTile* tile) { return fetcher_.take(tile); }

  // Its values in shared memory. Null: it is malformed.
  UZIP_DEVICE const uint8_t* values_of(const ArrivedTile& tile, bool partial) const {
    if (partial || is_plain<kDType>(tile.entry)) return tile.bytes;
    const bool good = call_decode_to_room<kDType>(tile);
    sync_lanes();
    return good ? values_room() : nullptr;
  }
  // What take() gave is no longer needed.
  UZIP_DEVICE void release() { fetcher_.release(); }

  UZIP_DEVICE bool complain() const {
    if (lane_ == 0) LinkBlock::get().fail(LinkStatus::kDamaged);
    return false;
  }

  // Where own values are aligned, asks for a whole tile of them, which comes with what is asked for
  // next. kLater: while the own tile before is still needed.
  template <bool kLater>
  UZIP_DEVICE void ask_for_own(uint32_t tile) const {
    if (tile >= records_.tiles || !is_aligned(fold_.own, kAlignment)) return;
    const int turn = kLater ? (own_turn_ + 1) % kStages<kDType> : own_turn_;
    copy_chunks_later(reinterpret_cast<Chunk*>(own_room(turn)),
                      fold_.own + uint64_t{tile} * kTileBytes, kTileBytes / kAlignment, lane_);
  }
  UZIP_DEVICE void next_own() { own_turn_ = (own_turn_ + 1) % kStages<kDType>; }

  // This rank's own tile, once others' have been taken, with which it comes; and whether it is
  // aligned. Lanes write what they alone have read, so the result may be stored there.
  UZIP_DEVICE const uint8_t* own(uint32_t tile, bool partial, bool* aligned) const {
    const uint8_t* values = fold_.own + uint64_t{tile} * kTileBytes;
    *aligned = partial || is_aligned(fold_.own, kAlignment);
    if (partial) {
      sync_lanes();  // the room may still be read
      copy_values<kDType>(own_room(), values, records_.remaining, lane_);
      sync_lanes();
    }
    return *aligned ? own_room() : values;
  }

  // Where a tile of the result goes; one that is partial is to be finished.
  UZIP_DEVICE MemorySink<kDType> result(uint32_t tile, bool partial) const {
    uint8_t* out = fold_.out + uint64_t{tile} * kTileBytes;
    return {partial ? own_room() : out, partial || is_aligned(fold_.out, kAlignment), lane_};
  }
  UZIP_DEVICE void finish_partial(uint32_t tile) const {
    sync_lanes();
    copy_values<kDType>(fold_.out + uint64_t{tile} * kTileBytes, own_room(), records_.remaining,
                        lane_);
  }

  UZIP_DEVICE const LinkFold& fold() const { return fold_; }

 private:
  UZIP_DEVICE static uint8_t* own_room(int turn) {
    return LinkFoldRoom<kDType>::get().own[thread_index() / kLanes][turn];
  }

  const LinkFold& fold_;
  const Records records_;
  Fetcher<kDType> fetcher_;
  int own_turn_ = 0;
  int lane_;
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
template <DType kDType>
UZIP_DEVICE_CALL void fold_rows(ReduceOp op, RowPairs<kDType> rows) {
  with_operator(op, rows);
}

// Folds the tiles of this rank and one other. Sums, of which there are most, are made row by row as
// the other's tile is decoded; all else is made of what both have in shared memory.
template <DType kDType>
class PairFolder {
 public:
  UZIP_DEVICE explicit PairFolder(FoldTiles<kDType>& tiles) : tiles_(tiles) {
    const LinkFold& fold = tiles.fold();
    sums_ = fold.op == ReduceOp::kSum && (fold.divisor & (fold.divisor - 1)) == 0 &&
            is_aligned(fold.own, kAlignment);
  }

  UZIP_DEVICE void start(uint32_t tile) { tiles_.template ask_for_own<false>(tile); }
  // False: it has failed.
  UZIP_DEVICE bool fold(uint32_t tile, uint32_t next, bool partial) {
    if (kStages<kDType> > 1) tiles_.template ask_for_own<true>(next);
    ArrivedTile arrived;
    if (!tiles_.take(&arrived)) return false;
    const bool good =
        sums_ && !partial ? add(arrived, tile) : fold_any(arrived, tile, partial);
    if (!good) return tiles_.complain();
    tiles_.release();
    if (kStages<kDType> == 1) tiles_.template ask_for_own<true>(next);
    tiles_.next_own();
    return true;
  }

 private:
  UZIP_DEVICE bool add(const ArrivedTile& arrived, uint32_t tile) const {
    using Accumulator = typename Row<kDType>::Accumulator;
    SumSink<kDType> sink{tiles_.own_room(),
                         1 / static_cast<Accumulator>(tiles_.fold().divisor),
                         tiles_.result(tile, false)};
    if (!is_plain<kDType>(arrived.entry)) return decode_arrived<kDType>(arrived, sink);
    put_plain<kDType>(arrived.bytes, sink, sink.result.lane);
    return true;
  }
  UZIP_DEVICE bool fold_any(const ArrivedTile& arrived, uint32_t tile, bool partial) const {
    const LinkFold& fold = tiles_.fold();
    const uint8_t* theirs = tiles_.values_of(arrived, partial);
    if (theirs == nullptr) return false;
    bool aligned;
    const uint8_t* own = tiles_.own(tile, partial, &aligned);
    const bool own_first = fold.position == 0;
    fold_rows<kDType>(fold.op,
                      {own_first ? own : theirs, own_first ? theirs : own, !own_first || aligned,
                       own_first || aligned, fold.divisor, tiles_.result(tile, partial)});
    if (partial) tiles_.finish_partial(tile);
    return true;
  }

  FoldTiles<kDType>& tiles_;
  bool sums_;
};

template <DType kDType>
class ManyFolder {
 public:
  UZIP_DEVICE explicit ManyFolder(FoldTiles<kDType>& tiles) : tiles_(tiles) {}

  UZIP_DEVICE void start(uint32_t) {}
  UZIP_DEVICE bool fold(uint32_t tile, uint32_t, bool partial) {
    const LinkFold& fold = tiles_.fold();
    const int lane = thread_index() % kLanes;
    Accumulators<kDType> sums(fold.op, lane);
    sums.begin(nullptr);
    sync_lanes();  // the room may still be read
    tiles_.template ask_for_own<false>(tile);
    commit_copies();
#pragma unroll 1
    for (int rank = 0; rank <= fold.n_peers; ++rank) {
      bool aligned = true;
      const bool mine = rank == fold.position;
      // Others' tiles are waited for together with what was asked for before.
      if (mine && rank == 0) {
        wait_copies<0>();
        sync_lanes();
      }
      const uint8_t* values;
      if (mine) {
        values = tiles_.own(tile, partial, &aligned);
      } else {
        ArrivedTile arrived;
        if (!tiles_.take(&arrived)) return false;
        values = tiles_.values_of(arrived, partial);
        if (values == nullptr) return tiles_.complain();
      }
      sums.fold(values, aligned);
      if (!mine) tiles_.release();
    }
    sums.divide_by(fold.divisor);
    auto sink = tiles_.result(tile, partial);
#pragma unroll
    for (int row = 0; row < kRows; ++row) sink.put(row, sums.rounded(row));
    if (partial) tiles_.finish_partial(tile);
    return true;
  }

 private:
  FoldTiles<kDType>& tiles_;
};

// Folds this warp's records.
template <DType kDType, typename Folder>
UZIP_DEVICE void fold_records(const LinkFold& fold, const Records& records,
                              const WorkerTurns& turns) {
  FoldTiles<kDType> tiles(fold, records, turns);
  Folder folder(tiles);
  if (turns.first < records.all()) folder.start(records.first_tile(turns.first));
#pragma unroll 1
  for (uint32_t record = turns.first; record < records.all(); record += turns.step) {
    const bool partial = record == records.whole;
    const uint32_t first = partial ? records.tiles : records.first_tile(record);
    const int n = records.tiles_of(record);
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      const uint32_t tile = first + static_cast<uint32_t>(i);
      const uint32_t next = i + 1 < n ? tile + 1 : records.first_tile(record + turns.step);
      if (!folder.fold(tile, next, partial)) return;
    }
  }
}
template <DType kDType>
UZIP_DEVICE_CALL void fold_many(const LinkFold& fold, Records records, WorkerTurns turns) {
  fold_records<kDType, ManyFolder<kDType>>(fold, records, turns);
}

// A block's part in a fold.
template <DType kDType>
UZIP_DEVICE_CALL void fold_part(const Exchange& exchange) {
  const LinkFold& fold = exchange.fold;
  const bool through_host = exchange.n_links > 0 && exchange.links[0].through_host;
  const auto records = Records::of(fold.count, float_format(kDType).itemsize, through_host);
  const uint32_t workers = through_host ? fold.blocks - 1 : fold.blocks;
  const uint32_t block = block_index() - fold.first_block;
  const bool carries = block >= workers;
  bool is_last;
  if (open_all<kDType>(exchange, fold.links, fold.n_peers, fold.count, fold.blocks, carries,
                       &is_last)) {
    const auto turns =
        WorkerTurns::of(records.all(), block, workers, thread_index() / kLanes, kWarps);
    if (carries) {
      carry_all<kDType>(fold.links, fold.n_peers, records.all());
    } else if (fold.n_peers == 1) {
      fold_records<kDType, PairFolder<kDType>>(fold, records, turns);
    } else {
      fold_many<kDType>(fold, records, turns);
    }
  }
  if (is_last) close_all<kDType>(fold.links, fold.n_peers, records.all());
}

}  // namespace uzip::gpu
