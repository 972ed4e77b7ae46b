// Frames of codec ans from tensors, in one launch.
//
// Every thread block first chooses window and table, all the same ones, and then codes its blocks.
// Zeros and constants are cheaper in tier's packed layout, whichever codec was asked for.
#include "ans_encode_gpu.hpp"
#include "encode_part_gpu.hpp"

namespace uzip::gpu {
namespace {

template <DType kDType>
UZIP_DEVICE void fill_steps(AnsEncodeRoom<kDType>& room, uint32_t sums[kWarps]) {
  const int code = thread_index();
  const uint32_t frequency = room.ans.frequencies[code];
  uint32_t total;
  const uint32_t cumulated = sum_below(frequency, sums, &total);
  room.table.entries[StepTable<kDType>::index(code)] = step_entry(frequency, cumulated);
  sync_block();
}

// Whether the shared memory of packed tiles that are fetched ahead is no more than that of ans.
template <DType kDType>
constexpr bool kPacksAhead = kEncodesAhead<kDType> && float_format(kDType).itemsize <= 2;

// Where that is smaller. A call, so that registers are for the coder of ans.
template <DType kDType>
UZIP_DEVICE_CALL void encode_packed_instead(Tensor tensor, uint8_t* frame, EncodeScratch* scratch,
                                            Part part) {
  // The memory is another room now.
  const Choice choice = reinterpret_cast<AnsEncodeRoom<kDType>*>(shared_memory())->choice;
  sync_block();
  auto& room = *reinterpret_cast<EncodeRoom<kDType>*>(shared_memory());
  if (thread_index() == 0) room.choice = choice;
  room.tables.fill(Menu::of(choice.parameters.menu), choice.digits, thread_index());
  sync_block();
  if (kPacksAhead<kDType> && tensor.aligned) {
    const int warp = thread_index() / kLanes;
    TensorSource<kDType>{tensor}.fetch(part.block * kGroupTiles + static_cast<uint32_t>(warp),
                                       AheadRoom<kDType>::get().stages[warp]);
  }
  encode_packed<kDType, kPacksAhead<kDType>>(tensor, frame, scratch, part, choice.parameters.menu);
}

template <DType kDType>
UZIP_KERNEL(kThreads, (AnsFormat<kDType>::kPairs ? 4 : 3))
encode_ans_kernel(Tensor tensor, uint8_t* frame, EncodeScratch* scratch, EncodeOptions options) {
  auto& room = *reinterpret_cast<AnsEncodeRoom<kDType>*>(shared_memory());
  const Part part{block_index(), block_count()};
  await_earlier();
  const auto drawn = Drawn<kDType>::of(tensor.values, tensor.count, tensor.aligned);
  const auto codes = DrawnCodes<kDType>::of(tensor.values, tensor.count, tensor.aligned);
  choose<kDType>(drawn, options, room.select, &room.choice, [] {});
  sync_block();
  choose_ans<kDType>(codes, tensor.count, options, room.choice, BlockRoom<kDType>::kUsable,
                     room.select_table, &room.ans);
  if (room.ans.raw) {
    write_raw(tensor, kDType, frame, part);
    return;
  }
  if (room.ans.packed) {
    encode_packed_instead<kDType>(tensor, frame, scratch, part);
    return;
  }
  if (thread_index() == 0) BlockEncoder<kDType>::plan(tensor.count, room);
  fill_steps<kDType>(room, room.select_table.sums);
  BlockEncoder<kDType> encoder(tensor, frame, scratch, room, part);
  if (!encoder.has_room()) {
    write_raw(tensor, kDType, frame, part);
    return;
  }
  encoder.run();
  let_next_begin();
  if (part.block == 0) encoder.write_rest();
  encoder.finish();
}

}  // namespace

template <DType kDType>
const char* launch_encode_ans(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                              const EncodeOptions& options, void* stream) {
  const auto kernel = encode_ans_kernel<kDType>;
  constexpr size_t kPacked =
      kPacksAhead<kDType> ? sizeof(AheadRoom<kDType>) : sizeof(EncodeRoom<kDType>);
  constexpr size_t kShared =
      sizeof(AnsEncodeRoom<kDType>) > kPacked ? sizeof(AnsEncodeRoom<kDType>) : kPacked;
  // As many as there can be blocks of the frame.
  const uint64_t most = (tensor.count / kTileValues >> kMinBlockLog2) + 1;
  const int blocks = grid_blocks(kernel, kShared, most, options.max_blocks);
  return launch_early(kernel, blocks, kThreads, kShared, static_cast<Stream>(stream), tensor, frame,
                      scratch, options);
}

#define UZIP_INSTANTIATE(dtype)                                                          \
  template const char* launch_encode_ans<dtype>(const Tensor&, uint8_t*, EncodeScratch*, \
                                                const EncodeOptions&, void*);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
