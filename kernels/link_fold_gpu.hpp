// The folding part of a block: a warp folds a tile of every rank, in rank order.
//
// As fold_gpu.hpp, but that the others' tiles come through links. What lies behind the last whole
// tile is folded as a tile of which only the first values are stored.
#pragma once

#include "link_receive_gpu.hpp"

namespace uzip::gpu {

template <DType kDType>
class LinkFolder {
 public:
  static constexpr int kTileBytes = float_format(kDType).tile_bytes();

  UZIP_DEVICE LinkFolder(const LinkFold& fold, const Records& records, const WorkerTurns& turns)
      : fold_(fold),
        records_(records),
        turns_(turns),
        fetcher_(records, turns, fold.n_peers),
        room_(LinkFoldRoom<kDType>::get().values[thread_index() / kLanes]),
        lane_(thread_index() % kLanes) {}

  // Folds this warp's records.
  UZIP_DEVICE void run() {
#pragma unroll 1
    for (uint32_t record = turns_.first; record < records_.all(); record += turns_.step) {
      const int tiles = records_.tiles_of(record);
#pragma unroll 1
      for (int i = 0; i < tiles; ++i) {
        const uint32_t tile = records_.first_tile(record) + static_cast<uint32_t>(i);
        if (!fold_tile(record == records_.whole ? records_.tiles : tile,
                       record == records_.whole)) {
          return;
        }
      }
    }
  }

 private:
  UZIP_DEVICE bool fold_tile(uint32_t tile, bool partial) {
    Accumulators<kDType> sums(fold_.op, lane_);
    sums.begin(nullptr);
    const uint64_t place = uint64_t{tile} * kTileBytes;
    const int n = fold_.n_peers + 1;
#pragma unroll 1
    for (int rank = 0; rank < n; ++rank) {
      if (rank == fold_.position) {
        fold_own(fold_.own + place, partial, sums);
      } else if (!fold_arrived(partial, sums)) {
        return false;
      }
    }
    sums.divide_by(fold_.divisor);
    const bool aligned = is_aligned(fold_.out, kAlignment);
    MemorySink<kDType> sink{partial ? room_ : fold_.out + place, partial || aligned, lane_};
#pragma unroll
    for (int row = 0; row < kRows; ++row) sink.put(row, sums.rounded(row));
    if (partial) {
      sync_lanes();
      copy_values<kDType>(fold_.out + place, room_, records_.remaining, lane_);
      sync_lanes();
    }
    return true;
  }

  // Lanes write what they alone have read, so the result may be stored there.
  UZIP_DEVICE void fold_own(const uint8_t* values, bool partial, Accumulators<kDType>& sums) {
    if (!partial) {
      sums.fold(values, is_aligned(fold_.own, kAlignment));
      return;
    }
    sync_lanes();
    copy_values<kDType>(room_, values, records_.remaining, lane_);
    sync_lanes();
    sums.fold(room_, true);
    sync_lanes();
  }

  UZIP_DEVICE bool fold_arrived(bool partial, Accumulators<kDType>& sums) {
    ArrivedTile tile;
    if (!fetcher_.take(&tile)) return false;
    const bool raw = tile.entry.kind == TileKind::kRaw;
    if (partial || (raw && tile.entry.units * kAlignment == kTileBytes)) {
      sums.fold(tile.bytes, true);
    } else {
      if (!decode_arrived<kDType>(tile, room_, true)) {
        if (lane_ == 0) LinkBlock::get().fail(LinkStatus::kDamaged);
        return false;
      }
      sync_lanes();
      sums.fold(room_, true);
      sync_lanes();
    }
    fetcher_.release();
    return true;
  }

  const LinkFold& fold_;
  const Records records_;
  const WorkerTurns turns_;
  Fetcher<kDType> fetcher_;
  uint8_t* room_;
  int lane_;
};

// A block's part in a fold.
template <DType kDType>
UZIP_DEVICE_CALL void fold_part(const Exchange& exchange) {
  const LinkFold& fold = exchange.fold;
  const auto records = Records::of(fold.count, float_format(kDType).itemsize);
  if (open_all<kDType>(exchange, fold.links, fold.n_peers, fold.count)) {
    const auto turns = WorkerTurns::of(records.all(), block_index() - fold.first_block,
                                       fold.blocks, thread_index() / kLanes, kWarps);
    LinkFolder<kDType>(fold, records, turns).run();
  }
  close_all(fold.links, fold.n_peers, records.all(), fold.blocks);
}

}  // namespace uzip::gpu
