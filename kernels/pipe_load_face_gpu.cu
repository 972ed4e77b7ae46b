// Loads the kernels of the codec before any stream waits for a peer.
#include <mutex>
#include <set>

#include "launch_gpu.hpp"
#include "pipe_end_gpu.hpp"

namespace uzip::gpu {
namespace {

// Memory of one tile of any type, its frame, what is made of it, and scratch.
class Room {
 public:
  explicit Room(int device) : device_(device) {
    failure_ = allocate(kBytes, device, &memory_);
    if (failure_ == nullptr) failure_ = create_stream(device, &stream_);
    if (failure_ == nullptr) failure_ = set_bytes(memory_, 0, kBytes, device, stream_);
  }
  ~Room() {
    if (stream_ != nullptr) (void)destroy_stream(stream_, device_);
    if (memory_ != nullptr) (void)release(memory_, device_);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  const char* failure() const { return failure_; }
  const char* wait() const { return synchronize_stream(stream_, device_); }
  void* stream() const { return stream_; }
  uint8_t* part(int index) const { return static_cast<uint8_t*>(memory_) + index * kPartBytes; }

 private:
  static constexpr size_t kPartBytes = 16384;
  static constexpr size_t kBytes = 5 * kPartBytes;
  int device_;
  void* memory_ = nullptr;
  void* stream_ = nullptr;
  const char* failure_ = nullptr;
};

// Launches each kernel once.
const char* launch_all(const Room& room, DType dtype) {
  uint8_t* values = room.part(0);
  uint8_t* frame = room.part(1);
  uint8_t* out = room.part(2);
  auto* scratch = reinterpret_cast<EncodeScratch*>(room.part(3));
  auto* status = reinterpret_cast<uint32_t*>(room.part(4));
  const uint64_t size = kAtMost | bound(kTileValues, dtype);
  Fold fold{};
  fold.dtype = dtype;
  fold.count = kTileValues;
  fold.divisor = 1;
  fold.n_inputs = 2;
  fold.inputs[0] = {values, kPlainValues};
  fold.inputs[1] = {frame, size};
  EncodeOptions raw;
  raw.raw = true;
  const char* failure = encode(values, 1, dtype, frame, scratch, raw, room.stream());
  const auto then = [&](const auto& launch) {
    if (failure == nullptr) failure = launch();
  };
  then([&] { return encode(values, kTileValues, dtype, frame, scratch, {}, room.stream()); });
  then([&] { return decode(frame, size, dtype, kTileValues, out, status, {}, room.stream()); });
  then([&] { return decode_reduce(fold, out, status, {}, room.stream()); });
  fold.n_inputs = 1;  // any number but two
  then([&] { return decode_reduce(fold, out, status, {}, room.stream()); });
  return failure;
}

}  // namespace

const char* load_codec_kernels(int device) {
  static std::mutex mutex;
  static std::set<int> loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  if (loaded.count(device) != 0) return nullptr;
  const Room room(device);
  if (room.failure() != nullptr) return room.failure();
  for (int code = 1; code < kDTypes; ++code) {
    if (const char* failure = launch_all(room, static_cast<DType>(code))) return failure;
  }
  const char* failure = room.wait();
  if (failure == nullptr) loaded.insert(device);
  return failure;
}

}  // namespace uzip::gpu
