// Frames of many tensors, in one launch: each has blocks of its own, as many as its size asks for.
//
// What a block does for its tensor is what encode_gpu.cu does: nothing tells the frames apart.
#include <algorithm>

#include "encode_part_gpu.hpp"

namespace uzip::gpu {
namespace {

// Passed by value, as it must be there when the kernel runs.
struct Shards {
  struct Entry {
    Tensor tensor;
    uint8_t* frame;
    uint32_t first_block;
  };
  int n;
  DType dtype;
  uint32_t blocks;
  Entry entries[kMaxShards];
};

template <DType kDType>
UZIP_KERNEL(kThreads, kEncodeResident<kDType>)
encode_shards_kernel(Shards shards, EncodeScratch* scratch, EncodeOptions options) {
  await_earlier();
  int i = 0;
  while (i + 1 < shards.n && shards.entries[i + 1].first_block <= block_index()) ++i;
  const Shards::Entry& shard = shards.entries[i];
  const uint32_t end = i + 1 < shards.n ? shards.entries[i + 1].first_block : shards.blocks;
  const Part part{block_index() - shard.first_block, end - shard.first_block};
  if (options.raw || shard.tensor.count < kTileValues) {
    write_raw(shard.tensor, shards.dtype, shard.frame, part);
    return;
  }
  encode_part<kDType>(shard.tensor, shard.frame, scratch + i, options, part);
}

inline uint64_t groups_of(uint64_t count) {
  constexpr uint64_t kGroupValues = kTileValues * kGroupTiles;
  return std::max<uint64_t>(1, (count + kGroupValues - 1) / kGroupValues);
}

// Deals `blocks` blocks out to the shards by their groups; each has one at least.
inline void deal_blocks(uint64_t blocks, uint64_t groups, Shards* shards) {
  shards->blocks = 0;
  for (int i = 0; i < shards->n; ++i) {
    Shards::Entry& shard = shards->entries[i];
    shard.first_block = shards->blocks;
    const double part = static_cast<double>(groups_of(shard.tensor.count)) / groups;
    shards->blocks += std::max(1u, static_cast<uint32_t>(part * blocks));
  }
}

}  // namespace

template <DType kDType>
const char* launch_encode_shards(const Shard* shards, int n, DType dtype, EncodeScratch* scratch,
                                 const EncodeOptions& options, void* stream) {
  const auto kernel = encode_shards_kernel<kDType>;
  constexpr size_t kShared = sizeof(AheadRoom<kDType>);
  Shards table{n, dtype, 0, {}};
  uint64_t groups = 0;
  for (int i = 0; i < n; ++i) {
    const auto* values = static_cast<const uint8_t*>(shards[i].values);
    table.entries[i] = {{values, shards[i].count, is_aligned(values, kAlignment)},
                        static_cast<uint8_t*>(shards[i].frame),
                        0};
    groups += groups_of(shards[i].count);
  }
  deal_blocks(static_cast<uint64_t>(grid_blocks(kernel, kShared, groups, options.max_blocks)),
              groups, &table);
  EncodeOptions chosen = options;
  chosen.raw = options.raw || dtype == DType::kBytes;
  return launch_early(kernel, static_cast<int>(table.blocks), kThreads, kShared,
                      static_cast<Stream>(stream), table, scratch, chosen);
}

#define UZIP_INSTANTIATE(dtype)                                                              \
  template const char* launch_encode_shards<dtype>(const Shard*, int, DType, EncodeScratch*, \
                                                   const EncodeOptions&, void*);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
