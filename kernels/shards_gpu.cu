// Frames of many tensors, in one launch: each has blocks of its own, as many as its size asks for.
//
// What a block does for its tensor is what encode_gpu.cu does: nothing tells the frames apart.
#include <algorithm>

#include "encode_part_gpu.hpp"
#include "reduce_gpu.hpp"

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
  uint32_t blocks;
  Entry entries[kMaxShards];
};

template <DType kDType>
UZIP_KERNEL(kThreads, 4)
encode_shards_kernel(Shards shards, EncodeScratch* scratch, EncodeOptions options) {
  int i = 0;
  while (i + 1 < shards.n && shards.entries[i + 1].first_block <= block_index()) ++i;
  const Shards::Entry& shard = shards.entries[i];
  const uint32_t end = i + 1 < shards.n ? shards.entries[i + 1].first_block : shards.blocks;
  const Part part{block_index() - shard.first_block, end - shard.first_block};
  if constexpr (kDType != DType::kBytes) {
    if (!options.raw && shard.tensor.count >= kTileValues) {
      auto& room = *reinterpret_cast<EncodeRoom<kDType>*>(shared_memory());
      encode_part(shard.tensor, shard.frame, scratch + i, options, room, part);
      return;
    }
  }
  write_raw(shard.tensor, kDType, shard.frame, part);
}

template <DType kDType>
constexpr size_t shards_shared() {
  if constexpr (kDType == DType::kBytes) {
    return 0;
  } else {
    return sizeof(EncodeRoom<kDType>);
  }
}

uint64_t groups_of(uint64_t count) {
  constexpr uint64_t kGroupValues = kTileValues * kGroupTiles;
  return std::max<uint64_t>(1, (count + kGroupValues - 1) / kGroupValues);
}

// Deals `blocks` blocks out to the shards by their groups; each has one at least.
void deal_blocks(uint64_t blocks, uint64_t groups, Shards* shards) {
  shards->blocks = 0;
  for (int i = 0; i < shards->n; ++i) {
    Shards::Entry& shard = shards->entries[i];
    shard.first_block = shards->blocks;
    const double part = static_cast<double>(groups_of(shard.tensor.count)) / groups;
    shards->blocks += std::max(1u, static_cast<uint32_t>(part * blocks));
  }
}

template <DType kDType>
const char* encode_shards_as(Shards* shards, EncodeScratch* scratch, const EncodeOptions& options,
                             Stream stream) {
  const auto kernel = encode_shards_kernel<kDType>;
  constexpr size_t kShared = shards_shared<kDType>();
  uint64_t groups = 0;
  for (int i = 0; i < shards->n; ++i) groups += groups_of(shards->entries[i].tensor.count);
  deal_blocks(static_cast<uint64_t>(grid_blocks(kernel, kShared, groups, options.max_blocks)),
              groups, shards);
  return launch(kernel, static_cast<int>(shards->blocks), kThreads, kShared, stream, *shards,
                scratch, options);
}

}  // namespace

const char* encode_shards(const Shard* shards, int n_shards, DType dtype, EncodeScratch* scratch,
                          const EncodeOptions& options, void* stream) {
  if (n_shards < 1 || n_shards > kMaxShards) return "expected 1 to 64 tensors";
  if (options.ans) return "expected codec tier or raw for many tensors, found ans";
  if (!is_aligned(scratch, kAlignment)) return "expected scratch aligned to 16 bytes";
  Shards table{n_shards, 0, {}};
  for (int i = 0; i < n_shards; ++i) {
    if (!is_aligned(shards[i].frame, kAlignment)) return "expected frames aligned to 16 bytes";
    if (!is_aligned(shards[i].values, float_format(dtype).itemsize)) {
      return "expected values aligned to their own size";
    }
    const auto* values = static_cast<const uint8_t*>(shards[i].values);
    table.entries[i] = {{values, shards[i].count, is_aligned(values, kAlignment)},
                        static_cast<uint8_t*>(shards[i].frame),
                        0};
  }
  const auto queue = static_cast<Stream>(stream);
  switch (dtype) {
    case DType::kBFloat16:
      return encode_shards_as<DType::kBFloat16>(&table, scratch, options, queue);
#if UZIP_ALL_TYPES
    case DType::kFloat64:
      return encode_shards_as<DType::kFloat64>(&table, scratch, options, queue);
    case DType::kFloat16:
      return encode_shards_as<DType::kFloat16>(&table, scratch, options, queue);
    case DType::kFloat32:
      return encode_shards_as<DType::kFloat32>(&table, scratch, options, queue);
    case DType::kFloat8E4M3FN:
      return encode_shards_as<DType::kFloat8E4M3FN>(&table, scratch, options, queue);
    case DType::kFloat8E5M2:
      return encode_shards_as<DType::kFloat8E5M2>(&table, scratch, options, queue);
#endif
    default:
      return encode_shards_as<DType::kBytes>(&table, scratch, options, queue);
  }
}

}  // namespace uzip::gpu
