// Memory, streams and events of the emulated GPU, by the vendors' names without their prefix.
//
// There are two devices. Their memory is the host's, filled with poison when it is allocated. Work
// for a stream, other than the default one's, is queued and done only when somebody waits for it:
// whoever synchronises with a stream or an event does what is queued before, and a query does one
// piece of it. So a wait that is missing shows as data that is not there yet. Two threads may call.
//
// A kernel that waits for another one, of another stream or process, does so in turns: where it
// finds nothing to do, streams that nobody waits for go on, then other threads and processes. Where
// UZIPMPI_TEST_WRITERS is set, streams that write words go on by themselves, as other processes'
// streams wait for these. Large memory can be opened by other processes of the user.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#define UZIP_VENDOR(name) ::uzip::gpu::emulation::name
#define UZIP_HOST_ALLOCATE ::uzip::gpu::emulation::HostAlloc
#define UZIP_HOST_FREE ::uzip::gpu::emulation::FreeHost
#define UZIP_HOST_PORTABLE 0

namespace uzip::gpu::emulation {

constexpr int kDevices = 2;
constexpr int kPoison = 0xA5;
constexpr size_t kMemoryAlignment = 256;
constexpr size_t kExportableBytes = size_t{2} << 20;  // from which on memory has a file of its own

enum Error_t {
  Success,
  ErrorInvalidValue,
  ErrorMemoryAllocation,
  ErrorInvalidDevice,
  ErrorInvalidResourceHandle,
  ErrorNotReady,
  ErrorNoDevice,
  ErrorPeerAccessAlreadyEnabled,
};
enum MemoryType {
  MemoryTypeUnregistered,
  MemoryTypeHost,
  MemoryTypeDevice,
};
enum {
  HostRegisterPortable = 1,
  HostRegisterMapped = 2,
  StreamNonBlocking = 1,
  EventDisableTiming = 2,
  MemcpyDefault = 4,
  IpcMemLazyEnablePeerAccess = 1
};
using Stream_t = void*;
using Event_t = void*;
struct PointerAttributes {
  MemoryType type;
  int device;
};

// A piece of work; false: not done yet, another stream has to go on first.
using Work = std::function<bool()>;

struct Queue {
  int device;
  std::deque<Work> works;
  bool busy = false;    // the first of them is being done
  bool writes = false;  // words for others
};

// The place in a queue up to which an event was recorded.
struct Mark {
  std::shared_ptr<Queue> queue;
  bool reached;
};

struct Event {
  int device;
  std::shared_ptr<Mark> mark;  // null until it is recorded
};

struct Region {
  size_t bytes;
  PointerAttributes attributes;
  int file;  // or -1
};

// Of memory that another process may open.
struct IpcMemHandle_t {
  pid_t process;
  int file;
  size_t bytes;
  char reserved[64 - sizeof(pid_t) - sizeof(int) - sizeof(size_t)];
};
static_assert(sizeof(IpcMemHandle_t) == 64);

inline std::mutex mutex;  // of all below, and of kernels while they run
inline std::map<uintptr_t, Region> regions;
inline std::map<uintptr_t, size_t> opened;  // memory of other processes
inline std::map<void*, std::shared_ptr<Queue>> queues;
inline std::map<void*, std::unique_ptr<Event>> events;
inline thread_local int current_device = 0;

using Lock = std::lock_guard<std::mutex>;

// The handles of the default streams; what goes there is done at once.
inline bool is_default(Stream_t stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

inline std::shared_ptr<Queue> find_queue(Stream_t stream) {
  const auto found = queues.find(stream);
  return found == queues.end() ? nullptr : found->second;
}

inline Event* find_event(Event_t event) {
  const auto found = events.find(event);
  return found == events.end() ? nullptr : found->second.get();
}

// Whether the first piece of work, if any, is done now.
inline bool step(Queue& queue) {
  if (queue.busy) return false;
  if (queue.works.empty()) return true;
  queue.busy = true;
  const bool done = queue.works.front()();
  queue.busy = false;
  if (done) queue.works.pop_front();
  return done;
}

// For work that waits for other streams.
inline void step_others() {
  const auto all = queues;  // the work may change them
  for (const auto& [handle, queue] : all) step(*queue);
}

// Lets other threads and processes go on.
inline void give_way() {
  mutex.unlock();
  sched_yield();
  mutex.lock();
}

inline void drain(const std::shared_ptr<Queue>& queue) {
  while (!queue->works.empty()) {
    if (!step(*queue)) give_way();
  }
}

inline void drain_all() {
  const auto all = queues;
  for (const auto& [handle, queue] : all) drain(queue);
}

inline void reach(const Mark& mark) {
  const std::shared_ptr<Queue> queue = mark.queue;
  while (!mark.reached) {
    if (!step(*queue)) give_way();
  }
}

// With the mutex held.
inline Error_t enqueue(Stream_t stream, const Work& work) {
  if (is_default(stream)) {
    while (!work()) give_way();
    return Success;
  }
  const auto queue = find_queue(stream);
  if (queue == nullptr) return ErrorInvalidResourceHandle;
  queue->works.push_back(work);
  return Success;
}

// Kernels go only to streams of the current device.
inline Error_t enqueue_kernel(Stream_t stream, const Work& work) {
  const Lock lock(mutex);
  const auto queue = find_queue(stream);
  if (queue != nullptr && queue->device != current_device) return ErrorInvalidResourceHandle;
  return enqueue(stream, work);
}

inline const char* GetErrorString(Error_t error) {
  switch (error) {
    case Success:
      return "no error";
    case ErrorInvalidValue:
      return "invalid argument";
    case ErrorMemoryAllocation:
      return "out of memory";
    case ErrorInvalidDevice:
      return "invalid device ordinal";
    case ErrorInvalidResourceHandle:
      return "invalid resource handle";
    case ErrorNotReady:
      return "device not ready";
    case ErrorPeerAccessAlreadyEnabled:
      return "peer access is already enabled";
    default:
      return "no device is detected";
  }
}
inline Error_t GetLastError() { return Success; }

inline Error_t GetDeviceCount(int* count) {
  *count = kDevices;
  return Success;
}
inline Error_t GetDevice(int* device) {
  *device = current_device;
  return Success;
}
inline Error_t SetDevice(int device) {
  if (device < 0 || device >= kDevices) return ErrorInvalidDevice;
  current_device = device;
  return Success;
}

// Memory of the host; large memory as a file without a name, which others may open.
inline void* map_memory(size_t bytes, int* file) {
  *file = bytes >= kExportableBytes ? memfd_create("emulated GPU", MFD_CLOEXEC) : -1;
  if (*file < 0) return std::aligned_alloc(kMemoryAlignment, bytes);
  void* memory = MAP_FAILED;
  if (ftruncate(*file, static_cast<off_t>(bytes)) == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
  }
  if (memory != MAP_FAILED) return memory;
  close(*file);
  return nullptr;
}
inline void unmap_memory(void* memory, const Region& region) {
  if (region.file < 0) {
    std::free(memory);
  } else {
    munmap(memory, region.bytes);
    close(region.file);
  }
}

inline Error_t allocate_region(void** memory, size_t bytes, MemoryType type) {
  const Lock lock(mutex);
  const size_t room = (bytes / kMemoryAlignment + 1) * kMemoryAlignment;
  int file = -1;
  *memory = map_memory(room, &file);
  if (*memory == nullptr) return ErrorMemoryAllocation;
  std::memset(*memory, kPoison, room);
  regions[reinterpret_cast<uintptr_t>(*memory)] = {room, {type, current_device}, file};
  return Success;
}
inline Error_t Malloc(void** memory, size_t bytes) {
  return allocate_region(memory, bytes, MemoryTypeDevice);
}
inline Error_t HostAlloc(void** memory, size_t bytes, unsigned) {
  return allocate_region(memory, bytes, MemoryTypeHost);
}
// Waits for the device, as the vendors' do.
inline Error_t Free(void* memory) {
  const Lock lock(mutex);
  if (memory == nullptr) return Success;
  const auto found = regions.find(reinterpret_cast<uintptr_t>(memory));
  if (found == regions.end()) return ErrorInvalidValue;
  const Region region = found->second;
  regions.erase(found);
  drain_all();
  unmap_memory(memory, region);
  return Success;
}
inline Error_t FreeHost(void* memory) { return Free(memory); }

inline Error_t IpcGetMemHandle(IpcMemHandle_t* handle, void* memory) {
  const Lock lock(mutex);
  const auto found = regions.find(reinterpret_cast<uintptr_t>(memory));
  if (found == regions.end() || found->second.file < 0) return ErrorInvalidValue;
  *handle = {getpid(), found->second.file, found->second.bytes, {}};
  return Success;
}
// As the vendors', not for memory of this process.
inline Error_t IpcOpenMemHandle(void** memory, const IpcMemHandle_t& handle, unsigned) {
  const Lock lock(mutex);
  if (handle.process == getpid()) return ErrorInvalidValue;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(handle.process), handle.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return ErrorInvalidValue;
  *memory = mmap(nullptr, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (*memory == MAP_FAILED) return ErrorMemoryAllocation;
  opened[reinterpret_cast<uintptr_t>(*memory)] = handle.bytes;
  return Success;
}
inline Error_t IpcCloseMemHandle(void* memory) {
  const Lock lock(mutex);
  const auto found = opened.find(reinterpret_cast<uintptr_t>(memory));
  if (found == opened.end()) return ErrorInvalidValue;
  munmap(memory, found->second);
  opened.erase(found);
  return Success;
}

// Devices reach each other, but not themselves.
inline Error_t DeviceCanAccessPeer(int* can, int device, int peer) {
  if (device < 0 || device >= kDevices || peer < 0 || peer >= kDevices) return ErrorInvalidDevice;
  *can = device != peer ? 1 : 0;
  return Success;
}
inline Error_t DeviceEnablePeerAccess(int peer, unsigned) {
  return peer < 0 || peer >= kDevices || peer == current_device ? ErrorInvalidDevice : Success;
}
// Every process has devices of its own.
inline Error_t DeviceGetPCIBusId(char* id, int length, int device) {
  if (device < 0 || device >= kDevices) return ErrorInvalidDevice;
  std::snprintf(id, static_cast<size_t>(length), "%08x:00:%02x.0", static_cast<unsigned>(getpid()),
                static_cast<unsigned>(device));
  return Success;
}
inline Error_t DeviceGetByPCIBusId(int* device, const char* id) {
  char mine[32];
  for (*device = 0; *device < kDevices; ++*device) {
    DeviceGetPCIBusId(mine, sizeof mine, *device);
    if (std::strcmp(mine, id) == 0) return Success;
  }
  return ErrorInvalidDevice;
}

// Memory of the host's own, pinned where it is.
inline Error_t HostRegister(void* memory, size_t bytes, unsigned) {
  const Lock lock(mutex);
  if (memory == nullptr || bytes == 0) return ErrorInvalidValue;
  regions[reinterpret_cast<uintptr_t>(memory)] = {bytes, {MemoryTypeHost, current_device}, -1};
  return Success;
}
inline Error_t HostGetDevicePointer(void** address, void* memory, unsigned) {
  const Lock lock(mutex);
  if (regions.count(reinterpret_cast<uintptr_t>(memory)) == 0) return ErrorInvalidValue;
  *address = memory;
  return Success;
}
inline Error_t HostUnregister(void* memory) {
  const Lock lock(mutex);
  if (regions.erase(reinterpret_cast<uintptr_t>(memory)) == 0) return ErrorInvalidValue;
  drain_all();
  return Success;
}

inline Error_t PointerGetAttributes(PointerAttributes* attributes, const void* memory) {
  const Lock lock(mutex);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  *attributes = {MemoryTypeUnregistered, -1};
  auto next = regions.upper_bound(address);
  if (next == regions.begin()) return Success;
  const auto& [start, region] = *--next;
  if (address - start < region.bytes) *attributes = region.attributes;
  return Success;
}

inline Error_t StreamCreateWithFlags(Stream_t* stream, unsigned) {
  const Lock lock(mutex);
  const auto queue = std::make_shared<Queue>(Queue{current_device, {}});
  *stream = queue.get();
  queues[*stream] = queue;
  return Success;
}
inline Error_t StreamSynchronize(Stream_t stream) {
  const Lock lock(mutex);
  if (is_default(stream)) return Success;
  const auto queue = find_queue(stream);
  if (queue == nullptr) return ErrorInvalidResourceHandle;
  drain(queue);
  return Success;
}
enum StreamCaptureStatus { StreamCaptureStatusNone, StreamCaptureStatusActive };
inline Error_t StreamIsCapturing(Stream_t, StreamCaptureStatus* status) {
  *status = StreamCaptureStatusNone;
  return Success;
}
inline Error_t StreamDestroy(Stream_t stream) {
  const Error_t error = StreamSynchronize(stream);  // what is queued may be done at any time
  const Lock lock(mutex);
  queues.erase(stream);
  return error;
}

inline Error_t MemcpyAsync(void* to, const void* from, size_t bytes, int, Stream_t stream) {
  const Lock lock(mutex);
  return enqueue(stream, [=] {
    std::memmove(to, from, bytes);
    return true;
  });
}
inline Error_t MemsetAsync(void* memory, int value, size_t bytes, Stream_t stream) {
  const Lock lock(mutex);
  return enqueue(stream, [=] {
    std::memset(memory, value, bytes);
    return true;
  });
}

inline Error_t EventCreateWithFlags(Event_t* event, unsigned) {
  const Lock lock(mutex);
  auto made = std::make_unique<Event>(Event{current_device, nullptr});
  *event = made.get();
  events[*event] = std::move(made);
  return Success;
}
inline Error_t EventDestroy(Event_t event) {
  const Lock lock(mutex);
  return events.erase(event) == 1 ? Success : ErrorInvalidResourceHandle;
}
inline Error_t EventRecord(Event_t event, Stream_t stream) {
  const Lock lock(mutex);
  Event* found = find_event(event);
  if (found == nullptr) return ErrorInvalidResourceHandle;
  if (is_default(stream)) {
    found->mark = std::make_shared<Mark>(Mark{nullptr, true});
    return Success;
  }
  const auto queue = queues.find(stream);
  if (queue == queues.end() || queue->second->device != found->device) {
    return ErrorInvalidResourceHandle;
  }
  const auto mark = std::make_shared<Mark>(Mark{queue->second, false});
  found->mark = mark;
  return enqueue(stream, [mark] { return mark->reached = true; });
}
inline Error_t EventQuery(Event_t event) {
  const Lock lock(mutex);
  const Event* found = find_event(event);
  if (found == nullptr) return ErrorInvalidResourceHandle;
  if (found->mark == nullptr) return Success;
  if (!found->mark->reached) step(*found->mark->queue);
  return found->mark->reached ? Success : ErrorNotReady;
}
inline Error_t EventSynchronize(Event_t event) {
  const Lock lock(mutex);
  const Event* found = find_event(event);
  if (found == nullptr) return ErrorInvalidResourceHandle;
  const std::shared_ptr<Mark> mark = found->mark;
  if (mark != nullptr) reach(*mark);
  return Success;
}
inline Error_t StreamWaitEvent(Stream_t stream, Event_t event, unsigned) {
  const Lock lock(mutex);
  const Event* found = find_event(event);
  if (found == nullptr) return ErrorInvalidResourceHandle;
  if (found->mark == nullptr) return Success;
  return enqueue(stream, [mark = found->mark] {
    if (!mark->reached) step(*mark->queue);
    return mark->reached;
  });
}

// As an event's wait. Others write the word: this process' streams, and those of other processes.
inline Error_t StreamWaitWord(Stream_t stream, const uint32_t* word, uint32_t value) {
  const Lock lock(mutex);
  return enqueue(stream, [=] {
    static bool stepping = false;  // one such wait lets all others go on
    const auto there = [=] {
      return static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0;
    };
    if (!there() && !stepping) {
      stepping = true;
      step_others();
      stepping = false;
    }
    return there();
  });
}

// A thread that lets all go on that write words.
class Writers {
 public:
  static void begin() { static Writers writers; }

 private:
  Writers() : thread_([this] { run(); }) {}
  ~Writers() {
    ended_ = true;
    thread_.join();
  }
  void run() {
    while (!ended_) {
      go_on();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  static void go_on() {
    const Lock lock(mutex);
    const auto all = queues;
    for (const auto& [handle, queue] : all) {
      while (queue->writes && !queue->works.empty() && step(*queue)) {
      }
    }
  }

  std::atomic<bool> ended_{false};
  std::thread thread_;
};

inline Error_t StreamWriteWord(Stream_t stream, uint32_t* word, uint32_t value) {
  const Lock lock(mutex);
  static const bool go_on = std::getenv("UZIPMPI_TEST_WRITERS") != nullptr;
  if (const auto queue = find_queue(stream); go_on && queue != nullptr) {
    queue->writes = true;
    Writers::begin();
  }
  return enqueue(stream, [=] {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    return true;
  });
}

}  // namespace uzip::gpu::emulation

namespace uzip::gpu {

using PointerAttributes = emulation::PointerAttributes;

inline bool is_managed(const PointerAttributes&) { return false; }
inline emulation::MemoryType memory_type(const PointerAttributes& attributes) {
  return attributes.type;
}
inline bool has_context(int) { return true; }
inline const char* stream_wait_word(void* stream, const uint32_t* word, uint32_t value) {
  const auto status = emulation::StreamWaitWord(stream, word, value);
  return status == emulation::Success ? nullptr : emulation::GetErrorString(status);
}
inline const char* stream_write_word(void* stream, uint32_t* word, uint32_t value) {
  const auto status = emulation::StreamWriteWord(stream, word, value);
  return status == emulation::Success ? nullptr : emulation::GetErrorString(status);
}
inline emulation::Error_t allocate_fine_grained(void** memory, size_t bytes) {
  return emulation::Malloc(memory, bytes);
}
inline emulation::Error_t device_uuid(int, unsigned char uuid[16]) {
  std::memset(uuid, 0, 16);
  return emulation::Success;
}

}  // namespace uzip::gpu
