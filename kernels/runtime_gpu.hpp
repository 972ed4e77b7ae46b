// The face of the GPU's runtime: memory, streams and events as plain pointers, so that whoever
// calls this needs none of the vendor's headers.
//
// Every function returns nullptr, or what the driver says is wrong; the result is unspecified then.
// `device` is the ordinal of the device that a stream, an event or memory belongs to. It is made
// the thread's current one for the call and never stays so, except on a thread whose own device has
// no context yet: giving it back would make one there, of hundreds of megabytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uzip::gpu {

// What memory is. Managed memory moves by itself: it can be read on the host and on any device.
enum class MemoryKind : int { kHost = 0, kDevice = 1, kManaged = 2, kPinned = 3 };

struct Place {
  MemoryKind kind;
  int device;  // -1 for kHost, which is all memory that the driver does not know
};

// For the life of the object, `device` is the thread's current one; -1 leaves it as it is.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const char* failure() const { return failure_; }

 private:
  int before_ = -1;  // of the thread, if it was another
  const char* failure_ = nullptr;
};

// None is no failure; a driver that is missing or too old is one.
const char* count_devices(int* count);
const char* find_current_device(int* device);
const char* find_place(const void* memory, Place* place);

// Memory on a device, aligned to 256 bytes at least. Releasing it waits for the device.
const char* allocate(size_t bytes, int device, void** memory);
const char* release(void* memory, int device);

// Page-locked memory of the host, which all devices copy from and to without staging.
const char* allocate_pinned(size_t bytes, int device, void** memory);
const char* release_pinned(void* memory, int device);

// Page-locks memory that the caller has, of whole pages, until it is unpinned.
const char* pin(void* memory, size_t bytes, int device);
const char* unpin(void* memory, int device);
// Where a device's kernels find memory that was page-locked.
const char* find_device_address(void* memory, int device, void** address);

// A stream that neither waits for the default one nor holds it up. What is queued in a stream that
// is destroyed will still be done.
const char* create_stream(int device, void** stream);
const char* destroy_stream(void* stream, int device);
const char* synchronize_stream(void* stream, int device);
// Whether what is queued goes to a graph.
const char* find_capturing(void* stream, int device, bool* capturing);

// Queued in the stream: any two places, device or host.
const char* copy(void* to, const void* from, size_t bytes, int device, void* stream);
const char* set_bytes(void* memory, int value, size_t bytes, int device, void* stream);

// Queued in the stream: that it waits until a word of page-locked memory, as the device finds it,
// is `value` or at most 2^31 - 1 further on; that the word becomes `value`, and all that was
// written before is there by then.
const char* wait_for_word(const uint32_t* word, uint32_t value, int device, void* stream);
const char* write_word(uint32_t* word, uint32_t value, int device, void* stream);

// An event stands for what was queued in a stream of its device when it was recorded last; before
// that it counts as done.
const char* create_event(int device, void** event);
const char* destroy_event(void* event, int device);
const char* record_event(void* event, int device, void* stream);
const char* query_event(void* event, int device, bool* done);
const char* synchronize_event(void* event, int device);
const char* wait_for_event(void* stream, int device,
                           void* event);  // its stream may be any device's

// Memory that kernels of other devices and processes may use at the same time as those of this
// device; released by release(). Drivers export whole blocks of kPeerBlockBytes.
constexpr size_t kPeerBlockBytes = size_t{2} << 20;
constexpr size_t kMemoryHandleBytes = 64;
const char* allocate_for_peers(size_t bytes, int device, void** memory);

// The handle of such memory, by which another process opens it, for use by one of its devices. It
// must be closed there before it is released here.
const char* export_memory(void* memory, int device, uint8_t handle[kMemoryHandleBytes]);
const char* open_memory(const uint8_t handle[kMemoryHandleBytes], int device, void** memory);
const char* close_memory(void* memory, int device);

// Lets a device use another's memory within this process.
const char* enable_peer(int device, int peer);
const char* can_access_peer(int device, int peer, bool* can);

// Names of a device: of its place, and, where several devices share one, of itself.
constexpr size_t kPlaceBytes = 32;
const char* identify_device(int device, char place[kPlaceBytes], uint8_t uuid[16]);
// -1 where this process does not see it.
const char* find_device(const char* place, int* device);

}  // namespace uzip::gpu
