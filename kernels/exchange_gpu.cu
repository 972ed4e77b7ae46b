// Exchanges between GPUs: one launch, whose blocks have roles.
//
// A GPU's own blocks are made of several of these, so that a launch which may occupy few processors
// fills them.
#define UZIP_PACKED_THREADS 256
#include <atomic>

#include "launch_gpu.hpp"
#include "link_fold_gpu.hpp"
#include "link_send_gpu.hpp"

namespace uzip::gpu {
namespace {

// A block's part in a copy.
UZIP_DEVICE void copy_part(const LocalCopy& copy) {
  constexpr int kTogether = 8;  // chunks that a thread has under way
  const uint64_t threads = uint64_t{copy.blocks} * kThreads;
  const uint64_t index =
      uint64_t{block_index() - copy.first_block} * kThreads + static_cast<uint32_t>(thread_index());
  uint64_t copied = 0;
  if (is_aligned(copy.from, kAlignment) && is_aligned(copy.to, kAlignment)) {
    const uint64_t rounds = copy.bytes / kAlignment / (kTogether * threads);
    const auto* from = reinterpret_cast<const Chunk*>(copy.from) + index;
    auto* to = reinterpret_cast<Chunk*>(copy.to) + index;
#pragma unroll 1
    for (uint64_t round = 0; round < rounds; ++round) {
      Chunk chunks[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) chunks[i] = from[static_cast<uint32_t>(i) * threads];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) to[static_cast<uint32_t>(i) * threads] = chunks[i];
      from += kTogether * threads;
      to += kTogether * threads;
    }
    copied = rounds * kTogether * threads * kAlignment;
  }
  copy_bytes(copy.to + copied, copy.from + copied, copy.bytes - copied, index, threads);
}

UZIP_DEVICE bool is_for(uint32_t first_block, uint32_t blocks) {
  return block_index() - first_block < blocks;
}

// Blocks that fill a processor. More warps would have too few registers: with four blocks instead
// of two, sending 16 MB took 1.2 times as long (H200, bfloat16).
template <DType kDType, bool kFolds>
constexpr int kFilling = float_format(kDType).itemsize > 4 ? 1 : 2;

template <DType kDType, bool kFolds>
constexpr int kMostPacked = kPacksBlocks ? kFilling<kDType, kFolds> : 1;
template <DType kDType, bool kFolds>
constexpr int kRegisterBlocks = kFilling<kDType, kFolds> / kMostPacked<kDType, kFolds>;

template <DType kDType, bool kFolds>
UZIP_KERNEL((kThreads * kMostPacked<kDType, kFolds>), (kRegisterBlocks<kDType, kFolds>))
exchange_kernel(UZIP_ARGUMENT Exchange exchange) {
  LinkBlock::get().begin(exchange);
#pragma unroll 1
  for (int i = 0; i < exchange.n_sends; ++i) {
    const Message& message = exchange.sends[i];
    if (!is_for(message.first_block, message.blocks)) continue;
    return message.together == 1 ? send_part<kDType, false>(exchange, &message)
                                 : send_part<kDType, true>(exchange, &message);
  }
#pragma unroll 1
  for (int i = 0; i < exchange.n_receives; ++i) {
    const Message& message = exchange.receives[i];
    if (is_for(message.first_block, message.blocks)) {
      return receive_part<kDType>(exchange, message);
    }
  }
  if (is_for(exchange.copy.first_block, exchange.copy.blocks)) return copy_part(exchange.copy);
  if constexpr (kFolds) {
    if (is_for(exchange.fold.first_block, exchange.fold.blocks)) fold_part<kDType>(exchange);
  }
}

// Divides some blocks among parts by their costs.
class Division {
 public:
  Division(uint32_t blocks, uint32_t parts, uint64_t costs)
      : blocks_(blocks), parts_(parts), costs_(costs) {}

  void give(uint64_t cost, uint32_t* first_block, uint32_t* blocks) {
    *first_block = given_;
    const uint32_t spare = blocks_ - given_ - parts_;
    const double share = costs_ == 0 ? 0 : static_cast<double>(cost) / static_cast<double>(costs_);
    *blocks = 1 + static_cast<uint32_t>(share * spare + 0.5);
    given_ += *blocks;
    costs_ -= cost;
    --parts_;
  }
  uint32_t given() const { return given_; }

 private:
  uint32_t blocks_;  // to be given, at least one for each part
  uint32_t parts_;
  uint64_t costs_;
  uint32_t given_ = 0;
};

// What a byte costs in the blocks' time: to be folded, to come or go, to be copied, also to a
// further peer.
constexpr uint64_t kFoldCost = 7;
constexpr uint64_t kMessageCost = 5;
constexpr uint64_t kCopyCost = 1;

// Calls give(count, cost, &first_block, &blocks) for each part.
template <typename Give>
void each_part(Exchange* exchange, const Give& give) {
  for (int i = 0; i < exchange->n_sends; ++i) {
    Message& message = exchange->sends[i];
    if (message.together == 0) continue;
    const auto more = static_cast<uint64_t>(message.together - 1);
    give(message.count, kMessageCost + kCopyCost * more, &message.first_block, &message.blocks);
  }
  for (int i = 0; i < exchange->n_receives; ++i) {
    Message& message = exchange->receives[i];
    give(message.count, kMessageCost, &message.first_block, &message.blocks);
  }
  if (exchange->folds) {
    LinkFold& fold = exchange->fold;
    const auto tensors = static_cast<uint64_t>(fold.n_peers + 1);
    give(fold.count, kFoldCost * tensors / 2, &fold.first_block, &fold.blocks);
  }
  LocalCopy& copy = exchange->copy;
  if (copy.bytes != 0) {
    const auto itemsize = static_cast<uint64_t>(float_format(exchange->dtype).itemsize);
    give(copy.bytes / itemsize, kCopyCost, &copy.first_block, &copy.blocks);
  }
}

inline void cut(Exchange* exchange) {
  const int itemsize = float_format(exchange->dtype).itemsize;
  const auto records = [&](uint64_t count) { return Records::of(count, itemsize); };
  for (int i = 0; i < exchange->n_sends; ++i) {
    exchange->sends[i].records = records(exchange->sends[i].count);
  }
  for (int i = 0; i < exchange->n_receives; ++i) {
    exchange->receives[i].records = records(exchange->receives[i].count);
  }
  exchange->fold.records = records(exchange->fold.count);
}

// Deals out the blocks; returns how many they are.
inline int divide(Exchange* exchange, int most) {
  const int itemsize = float_format(exchange->dtype).itemsize;
  uint64_t costs = 0;
  uint64_t records = 0;
  uint32_t parts = 0;
  each_part(exchange, [&](uint64_t count, uint64_t cost, uint32_t*, uint32_t*) {
    costs += count * cost;
    records += Records::of(count, itemsize).all();
    ++parts;
  });
  // Workers that have no record are of no use.
  auto blocks = static_cast<uint64_t>(most > 0 ? most : 1);
  if (blocks > records / kSenders + parts) blocks = records / kSenders + parts;
  if (blocks < parts) blocks = parts;
  Division division(static_cast<uint32_t>(blocks), parts, costs);
  each_part(exchange, [&](uint64_t count, uint64_t cost, uint32_t* first_block, uint32_t* n) {
    division.give(count * cost, first_block, n);
  });
  return static_cast<int>(division.given());
}

// How many of our blocks make one of the GPU's, and how many of these are launched at most.
struct Shape {
  int packed;
  int blocks;
};

template <DType kDType, bool kFolds>
constexpr size_t block_shared() {
  constexpr size_t kSend = sizeof(SendRoom<kDType>);
  constexpr size_t kReceive = kFolds ? sizeof(LinkFoldRoom<kDType>) : sizeof(ReceiveRoom<kDType>);
  return ((kSend > kReceive ? kSend : kReceive) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

constexpr int kRemembered = 64;  // devices

// Of blocks that are made of some of ours, as blocks_together(): asking takes the driver
// microseconds.
template <DType kDType, bool kFolds, int kPacked>
int packed_together() {
  static std::atomic<int> found[kRemembered];
  const int device = current_device();
  std::atomic<int>& here = found[device % kRemembered];
  if (here == 0 || device >= kRemembered) {
    here = blocks_together(exchange_kernel<kDType, kFolds>, kThreads * kPacked,
                           block_shared<kDType, kFolds>() * kPacked);
  }
  return here;
}

// Few processors are filled; of many, only half of each is taken, as others may be there as well.
template <DType kDType, bool kFolds>
Shape choose_shape(int max_blocks, int at_once) {
  constexpr int kMost = kMostPacked<kDType, kFolds>;
  constexpr int kHalf = kMost % 2 == 0 ? kMost / 2 : 1;
  // The larger blocks last: what they need is what the driver then allows for both.
  const int blocks = packed_together<kDType, kFolds, kHalf>() / at_once;
  const int filled = packed_together<kDType, kFolds, kMost>() / at_once;
  if (max_blocks > 0 && max_blocks <= filled) return {kMost, max_blocks};
  return {kHalf, max_blocks > 0 && max_blocks < blocks ? max_blocks : blocks};
}

// Whether coding takes longer than the link: where some blocks only code and others only decode, or
// there are few of them; and small messages take as long as their last tile.
inline bool is_short_of_blocks(const Exchange& exchange) {
  constexpr int kFewBlocks = 48;
  constexpr uint64_t kSmall = uint64_t{8} << 20;
  const int most = exchange.options.max_blocks;
  bool small = true;
  for (int i = 0; i < exchange.n_sends; ++i) {
    small = small && bound(exchange.sends[i].count, exchange.dtype) < kSmall;
  }
  return small || exchange.folds || exchange.n_receives > 0 || (most > 0 && most <= kFewBlocks);
}

template <DType kDType, bool kFolds>
const char* launch_roles(Exchange exchange, void* stream) {
  exchange.hurries = exchange.options.menu < 0 && is_short_of_blocks(exchange);
  cut(&exchange);
  const Shape shape = choose_shape<kDType, kFolds>(exchange.options.max_blocks, exchange.at_once);
  const int parts = divide(&exchange, shape.blocks * shape.packed);
  return launch_together(exchange_kernel<kDType, kFolds>, (parts + shape.packed - 1) / shape.packed,
                         kThreads * shape.packed, block_shared<kDType, kFolds>() * shape.packed,
                         static_cast<Stream>(stream), exchange);
}

}  // namespace

template <DType kDType>
const char* launch_exchange(const Exchange& exchange, void* stream) {
  return exchange.folds ? launch_roles<kDType, true>(exchange, stream)
                        : launch_roles<kDType, false>(exchange, stream);
}

#define UZIP_INSTANTIATE(dtype) \
  template const char* launch_exchange<dtype>(const Exchange& exchange, void* stream);
UZIP_EACH_TYPE(UZIP_INSTANTIATE)

}  // namespace uzip::gpu
