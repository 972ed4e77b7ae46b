// The folding part of a block: a warp folds a tile of every rank, in rank order.
//
// As fold_gpu.hpp, but that the others' tiles come through links. What lies behind the last whole
// tile is folded as a tile of which only the first values are stored.
#pragma once

#include "link_receive_gpu.hpp"

namespace uzip::gpu {

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

  UZIP_DEVICE static uint8_t* own_room() {
    return LinkFoldRoom<kDType>::get().own[thread_index() / kLanes];
  }
  UZIP_DEVICE static uint8_t* values_room() {
    return ReceiveRoom<kDType>::get().warps[thread_index() / kLanes].values;
  }

  // Waits for the next tile of another rank; its values are in shared memory then. Null: it will
  // not come, or is malformed. `Decode`: a function for those that are coded.
  template <typename Decode>
  UZIP_DEVICE const uint8_t* take(bool partial, const Decode& decode) {
    ArrivedTile tile;
    if (!fetcher_.take(&tile)) return nullptr;
    const bool plain = partial || (tile.entry.kind == TileKind::kRaw &&
                                   tile.entry.units * kAlignment == kTileBytes);
    if (plain) return tile.bytes;
    const bool good = decode(tile, values_room());
    sync_lanes();
    if (good) return values_room();
    if (lane_ == 0) LinkBlock::get().fail(LinkStatus::kDamaged);
    return nullptr;
  }
  // The values that take() returned are no longer needed.
  UZIP_DEVICE void release() { fetcher_.release(); }

  // Where own values are aligned, a whole tile of them is on its way while others are folded.
  UZIP_DEVICE void ask_for_own(uint32_t tile) const {
    if (tile >= records_.tiles || !is_aligned(fold_.own, kAlignment)) return;
    sync_lanes();  // the room may still be read
    copy_chunks_later(reinterpret_cast<Chunk*>(own_room()), fold_.own + uint64_t{tile} * kTileBytes,
                      kTileBytes / kAlignment, lane_);
    commit_copies();
  }
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
  const LinkFold& fold_;
  const Records records_;
  Fetcher<kDType> fetcher_;
  int lane_;
};

// Folds a row of 8 values of each of two tensors at a time, so that few sums are to be held.
// kSimple: both in shared memory, and the divisor is 1.
template <DType kDType, bool kSimple>
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
#pragma unroll 2
    for (int row = 0; row < kRows; ++row) {
      const int at = value_index(sink.lane, kLaneRow * row) * float_format(kDType).itemsize;
      const auto a = Run<kDType>::load(first + at, kSimple || first_aligned);
      const auto b = Run<kDType>::load(second + at, kSimple || second_aligned);
      Run<kDType> result{};
#pragma unroll
      for (int i = 0; i < kLaneRow; ++i) {
        auto sum = Operator::apply(Row<kDType>::widen(a, i), Row<kDType>::widen(b, i));
        if (!kSimple) sum = is_power ? multiply(sum, 1 / by) : divide(sum, by);
        Row<kDType>::narrow(sum, i, result);
      }
      sink.put(row, result);
    }
  }
};

template <DType kDType>
UZIP_DEVICE_CALL void fold_any_rows(ReduceOp op, RowPairs<kDType, false> rows) {
  with_operator(op, rows);
}

template <DType kDType>
class PairFolder {
 public:
  UZIP_DEVICE explicit PairFolder(FoldTiles<kDType>& tiles) : tiles_(tiles) {}

  UZIP_DEVICE void start(uint32_t tile) { tiles_.ask_for_own(tile); }
  // False: it has failed.
  UZIP_DEVICE bool fold(uint32_t tile, uint32_t next, bool partial) {
    const LinkFold& fold = tiles_.fold();
    const uint8_t* theirs = tiles_.take(partial, [](const ArrivedTile& arrived, uint8_t* values) {
      return decode_arrived<kDType, true>(arrived, values, true);
    });
    if (theirs == nullptr) return false;
    bool aligned;
    const uint8_t* own = tiles_.own(tile, partial, &aligned);
    const bool own_first = fold.position == 0;
    const auto sink = tiles_.result(tile, partial);
    if (aligned && fold.divisor == 1) {
      const uint8_t* mine = tiles_.own_room();
      RowPairs<kDType, true> rows{
          own_first ? mine : theirs, own_first ? theirs : mine, true, true, 1, sink};
      with_operator(fold.op, rows);
    } else {
      fold_any_rows<kDType>(
          fold.op, {own_first ? own : theirs, own_first ? theirs : own, !own_first || aligned,
                    own_first || aligned, fold.divisor, sink});
    }
    if (partial) tiles_.finish_partial(tile);
    tiles_.release();
    tiles_.ask_for_own(next);
    return true;
  }

 private:
  FoldTiles<kDType>& tiles_;
};

template <DType kDType>
UZIP_DEVICE_CALL bool call_decode_to_room(ArrivedTile tile, uint8_t* values) {
  return decode_arrived<kDType, true>(tile, values, true);
}

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
    tiles_.ask_for_own(tile);
#pragma unroll 1
    for (int rank = 0; rank <= fold.n_peers; ++rank) {
      bool aligned = true;
      const bool mine = rank == fold.position;
      // Others' tiles are waited for together with what was asked for before.
      if (mine && rank == 0) {
        wait_copies<0>();
        sync_lanes();
      }
      const uint8_t* values = mine ? tiles_.own(tile, partial, &aligned)
                                   : tiles_.take(partial, call_decode_to_room<kDType>);
      if (values == nullptr) return false;
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
