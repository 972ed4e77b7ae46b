// Streams, events and memory of the ends of pipes.
#include <cstring>

#include "frame_gpu.hpp"
#include "pipe_end_gpu.hpp"

namespace uzip::gpu {
namespace {

// What comes before slots in a GPU's memory.
constexpr uint64_t kScratchRoom = 4096;

template <typename Handle, typename Make>
const char* make_all(Handle* handles, int n, const Make& make) {
  for (int i = 0; i < n; ++i) {
    if (const char* failure = make(&handles[i])) return failure;
  }
  return nullptr;
}

void note(const char** first, const char* failure) {
  if (*first == nullptr) *first = failure;
}

}  // namespace

const char* PipeEnd::open(int gpu, uint64_t slot_bytes) {
  device = gpu;
  slot_bytes_ = slot_bytes;
  const auto stream = [gpu](void** made) { return create_stream(gpu, made); };
  const auto event = [gpu](void** made) { return create_event(gpu, made); };
  const char* failure = make_all(&coder, 1, stream);
  if (failure == nullptr) failure = make_all(movers, kMovers, stream);
  if (failure == nullptr) failure = make_all(coded, kPipeSlots, event);
  if (failure == nullptr) failure = make_all(moved, kPipeSlots, event);
  if (failure == nullptr) failure = make_all(&at, 1, event);
  void* memory = nullptr;
  if (failure == nullptr) {
    failure = allocate(kScratchRoom + kPipeSlots * slot_bytes, gpu, &memory);
  }
  if (failure != nullptr) return failure;
  scratch = static_cast<EncodeScratch*>(memory);
  rooms = static_cast<uint8_t*>(memory) + kScratchRoom;
  failure = set_bytes(memory, 0, kScratchRoom, gpu, coder);
  if (failure == nullptr) failure = synchronize_stream(coder, gpu);
  void* pinned = nullptr;
  if (failure == nullptr) failure = allocate_pinned(sizeof(PipeReport), gpu, &pinned);
  if (failure != nullptr) return failure;
  std::memset(pinned, 0, sizeof(PipeReport));
  report = static_cast<PipeReport*>(pinned);
  return nullptr;
}

const char* PipeEnd::close() {
  const char* failure = nullptr;
  const auto destroy = [&](void* handle, auto function) {
    if (handle != nullptr) note(&failure, function(handle, device));
  };
  destroy(coder, synchronize_stream);
  for (void* mover : movers) destroy(mover, synchronize_stream);
  destroy(scratch, release);
  destroy(report, release_pinned);
  for (void* event : coded) destroy(event, destroy_event);
  for (void* event : moved) destroy(event, destroy_event);
  destroy(at, destroy_event);
  destroy(coder, destroy_stream);
  for (void* mover : movers) destroy(mover, destroy_stream);
  *this = PipeEnd();
  return failure;
}

const char* PipeEnd::settle() {
  const char* failure = synchronize_stream(coder, device);
  for (void* mover : movers) note(&failure, synchronize_stream(mover, device));
  return failure;
}

uint64_t PipeEnd::expected_bytes(DType dtype, uint64_t bytes) const {
  const uint64_t told =
      *static_cast<const volatile uint64_t*>(&report->sizes[static_cast<int>(dtype)]);
  const FloatFormat format = float_format(dtype);
  uint64_t likely = bytes;
  if (told != 0) {
    const uint64_t of = told & 0xFFFFFFFF;
    likely = static_cast<uint64_t>(static_cast<double>(bytes) * static_cast<double>(told >> 32) /
                                   static_cast<double>(of));
    likely += likely / 256;
  } else if (format.exponent_bits != 0) {
    // Exponents of like values take some 3 bits each.
    likely = bytes * static_cast<uint64_t>(8 * format.itemsize - format.exponent_bits + 3) /
             static_cast<uint64_t>(8 * format.itemsize);
  }
  likely = (likely + kHeaderBytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  return likely < bytes + kHeaderBytes ? likely : bytes + kHeaderBytes;
}

Pipe* open_pipe(int device, PipeRegion here, PipeRegion there, const char** failure) {
  load_piece_kernels();
  *failure = load_codec_kernels(device);
  if (*failure != nullptr) return nullptr;
  auto* pipe = new Pipe{here, there, {}};
  *failure = pipe->out().open(device, here.slot_bytes);
  if (*failure == nullptr) *failure = pipe->in().open(device, here.slot_bytes);
  if (*failure == nullptr) return pipe;
  (void)close_pipe(pipe);
  return nullptr;
}

const char* close_pipe(Pipe* pipe) {
  const char* failure = pipe->out().close();
  note(&failure, pipe->in().close());
  delete pipe;
  return failure;
}

uint64_t pipe_device_bytes(uint64_t slot_bytes) {
  return 2 * (kScratchRoom + kPipeSlots * slot_bytes);
}

PipeCounts count_queued(const Pipe& pipe) {
  const auto& [out, in] = pipe.ends;
  return {{out.messages, in.messages}, {out.pieces, in.pieces}};
}

uint32_t found_by(const Pipe& pipe) {
  return *static_cast<const volatile uint32_t*>(&pipe.ends[1].report->found);
}

const char* settle_pipe(Pipe* pipe) {
  const char* failure = pipe->out().settle();
  note(&failure, pipe->in().settle());
  return failure;
}

}  // namespace uzip::gpu
