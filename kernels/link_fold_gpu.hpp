// The folding part of a block: a warp folds a tile of every rank, in rank order.
//
// As fold_gpu.hpp, but that the others' tiles come through links. What lies behind the last whole
// tile is folded as a tile of which only the first values are stored.
#pragma once

#include "link_receive_gpu.hpp"

namespace uzip::gpu {

template <DType kDType>
UZIP_DEVICE_CALL bool call_decode_to_room(ArrivedTile tile, uint8_t* values) {
  return decode_arrived<kDType, true>(tile, values, true);
}

template <DType kDType>
class LinkFolder {
 public:
  static constexpr int kTileBytes = float_format(kDType).tile_bytes();

  UZIP_DEVICE LinkFolder(const LinkFold& fold, const Records& records, const WorkerTurns& turns)
      : fold_(fold),
        records_(records),
        turns_(turns),
        fetcher_(records, turns, fold.n_peers),
        lane_(thread_index() % kLanes) {}

  // Folds this warp's records.
  UZIP_DEVICE void run() {
    if (turns_.first < records_.all()) ask_for_own(records_.first_tile(turns_.first));
#pragma unroll 1
    for (uint32_t record = turns_.first; record < records_.all(); record += turns_.step) {
      const bool partial = record == records_.whole;
      const uint32_t first = partial ? records_.tiles : records_.first_tile(record);
      const int tiles = records_.tiles_of(record);
#pragma unroll 1
      for (int i = 0; i < tiles; ++i) {
        const uint32_t tile = first + static_cast<uint32_t>(i);
        const uint32_t next =
            i + 1 < tiles ? tile + 1 : records_.first_tile(record + turns_.step);
        if (!fold_tile(tile, next, partial)) return;
      }
    }
  }

 private:
  UZIP_DEVICE uint8_t* own_room() const {
    return LinkFoldRoom<kDType>::get().own[thread_index() / kLanes];
  }
  UZIP_DEVICE uint8_t* values_room() const {
    return ReceiveRoom<kDType>::get().warps[thread_index() / kLanes].values;
  }

  UZIP_DEVICE bool fold_tile(uint32_t tile, uint32_t next, bool partial) {
    // The first of the others' tiles is decoded before there are sums for which registers are
    // needed, and while this rank's own comes.
    const uint8_t* values = nullptr;
    ArrivedTile arrived;
    if (fold_.n_peers > 0) {
      if (!fetcher_.take(&arrived)) return false;
      values = is_plain(arrived, partial) ? arrived.bytes
               : decode_arrived<kDType, true>(arrived, values_room(), true) ? values_room()
                                                                            : nullptr;
      if (!is_sound(values)) return false;
    } else {
      wait_copies<0>();
    }
    sync_lanes();
    Accumulators<kDType> sums(fold_.op, lane_);
    sums.begin(nullptr);
#pragma unroll 1
    for (int peer = 0; peer < fold_.n_peers; ++peer) {
      if (peer == fold_.position) fold_own(tile, next, partial, sums);
      if (peer > 0) {
        if (!fetcher_.take(&arrived)) return false;
        values = is_plain(arrived, partial) ? arrived.bytes
                 : call_decode_to_room<kDType>(arrived, values_room()) ? values_room()
                                                                       : nullptr;
        if (!is_sound(values)) return false;
        sync_lanes();
      }
      sums.fold(values, true);
      fetcher_.release();  // the room is free as well
    }
    if (fold_.position == fold_.n_peers) fold_own(tile, next, partial, sums);
    sums.divide_by(fold_.divisor);
    store(sums, tile, partial);
    return true;
  }

  // Whether the values are in the stage as they are.
  UZIP_DEVICE static bool is_plain(const ArrivedTile& tile, bool partial) {
    return partial ||
           (tile.entry.kind == TileKind::kRaw && tile.entry.units * kAlignment == kTileBytes);
  }
  UZIP_DEVICE bool is_sound(const uint8_t* values) const {
    if (values == nullptr && lane_ == 0) LinkBlock::get().fail(LinkStatus::kDamaged);
    return values != nullptr;
  }

  UZIP_DEVICE void store(const Accumulators<kDType>& sums, uint32_t tile, bool partial) const {
    uint8_t* out = fold_.out + uint64_t{tile} * kTileBytes;
    const bool aligned = is_aligned(fold_.out, kAlignment);
    MemorySink<kDType> sink{partial ? own_room() : out, partial || aligned, lane_};
#pragma unroll
    for (int row = 0; row < kRows; ++row) sink.put(row, sums.rounded(row));
    if (!partial) return;
    sync_lanes();
    copy_values<kDType>(out, own_room(), records_.remaining, lane_);
  }

  // Where own values are aligned, a whole tile of them is on its way while others are folded.
  UZIP_DEVICE void ask_for_own(uint32_t tile) const {
    if (tile >= records_.tiles || !is_aligned(fold_.own, kAlignment)) return;
    sync_lanes();  // the room may still be read
    copy_chunks_later(reinterpret_cast<Chunk*>(own_room()),
                      fold_.own + uint64_t{tile} * kTileBytes, kTileBytes / kAlignment, lane_);
    commit_copies();
  }

  // Lanes write what they alone have read, so the result may be stored there.
  UZIP_DEVICE void fold_own(uint32_t tile, uint32_t next, bool partial,
                            Accumulators<kDType>& sums) const {
    const uint8_t* values = fold_.own + uint64_t{tile} * kTileBytes;
    if (partial) {
      sync_lanes();  // the room may still be read
      copy_values<kDType>(own_room(), values, records_.remaining, lane_);
      sync_lanes();
    }
    const bool staged = partial || is_aligned(fold_.own, kAlignment);
    sums.fold(staged ? own_room() : values, staged);
    ask_for_own(next);
  }

  const LinkFold& fold_;
  const Records records_;
  const WorkerTurns turns_;
  Fetcher<kDType> fetcher_;
  int lane_;
};

// A block's part in a fold.
template <DType kDType>
UZIP_DEVICE_CALL void fold_part(const Exchange& exchange) {
  const LinkFold& fold = exchange.fold;
  const auto records = Records::of(fold.count, float_format(kDType).itemsize);
  bool is_last;
  if (open_all<kDType>(exchange, fold.links, fold.n_peers, fold.count, fold.blocks, &is_last)) {
    const auto turns = WorkerTurns::of(records.all(), block_index() - fold.first_block,
                                       fold.blocks, thread_index() / kLanes, kWarps);
    LinkFolder<kDType>(fold, records, turns).run();
  }
  if (is_last) close_all<kDType>(fold.links, fold.n_peers, records.all());
}

}  // namespace uzip::gpu
