// Memory, streams and events of the GPU: the driver's calls, each on the right device.
#include <cstring>

#include "platform.hpp"
#include "runtime_gpu.hpp"

namespace uzip::gpu {
namespace {

// Forgets the failure as well, which the driver would else tell whoever asks next.
template <typename Status>
const char* reason(Status status) {
  if (status == UZIP_VENDOR(Success)) return nullptr;
  (void)UZIP_VENDOR(GetLastError)();
  return UZIP_VENDOR(GetErrorString)(status);
}

template <typename Call>
const char* on_device(int device, const Call& call) {
  const OnDevice current(device);
  return current.failure() != nullptr ? current.failure() : reason(call());
}

Stream stream_of(void* stream) { return static_cast<Stream>(stream); }

auto event_of(void* event) { return static_cast<UZIP_VENDOR(Event_t)>(event); }

}  // namespace

OnDevice::OnDevice(int device) {
  int current = 0;
  if (device < 0) return;
  failure_ = reason(UZIP_VENDOR(GetDevice)(&current));
  if (failure_ != nullptr || current == device) return;
  failure_ = reason(UZIP_VENDOR(SetDevice)(device));
  if (failure_ == nullptr) before_ = current;
}

OnDevice::~OnDevice() {
  if (before_ >= 0 && has_context(before_)) (void)UZIP_VENDOR(SetDevice)(before_);
}

const char* count_devices(int* count) {
  const auto status = UZIP_VENDOR(GetDeviceCount)(count);
  if (status == UZIP_VENDOR(Success)) return nullptr;
  *count = 0;
  const char* why = reason(status);
  return status == UZIP_VENDOR(ErrorNoDevice) ? nullptr : why;
}

const char* find_current_device(int* device) { return reason(UZIP_VENDOR(GetDevice)(device)); }

const char* find_place(const void* memory, Place* place) {
  PointerAttributes attributes{};
  *place = {MemoryKind::kHost, -1};
  const auto status = UZIP_VENDOR(PointerGetAttributes)(&attributes, memory);
  if (status == UZIP_VENDOR(ErrorInvalidValue)) {  // what some drivers say of memory of the host
    (void)UZIP_VENDOR(GetLastError)();
    return nullptr;
  }
  if (status != UZIP_VENDOR(Success)) return reason(status);
  if (is_managed(attributes)) {
    *place = {MemoryKind::kManaged, attributes.device};
  } else if (memory_type(attributes) == UZIP_VENDOR(MemoryTypeDevice)) {
    *place = {MemoryKind::kDevice, attributes.device};
  } else if (memory_type(attributes) == UZIP_VENDOR(MemoryTypeHost)) {
    *place = {MemoryKind::kPinned, attributes.device};
  }
  return nullptr;
}

const char* allocate(size_t bytes, int device, void** memory) {
  return on_device(device, [&] { return UZIP_VENDOR(Malloc)(memory, bytes); });
}

const char* release(void* memory, int device) {
  return on_device(device, [&] { return UZIP_VENDOR(Free)(memory); });
}

const char* allocate_pinned(size_t bytes, int device, void** memory) {
  return on_device(device, [&] { return UZIP_HOST_ALLOCATE(memory, bytes, UZIP_HOST_PORTABLE); });
}

const char* release_pinned(void* memory, int device) {
  return on_device(device, [&] { return UZIP_HOST_FREE(memory); });
}

const char* pin(void* memory, size_t bytes, int device) {
  return on_device(device, [&] {
    return UZIP_VENDOR(HostRegister)(
        memory, bytes, UZIP_VENDOR(HostRegisterPortable) | UZIP_VENDOR(HostRegisterMapped));
  });
}

const char* unpin(void* memory, int device) {
  return on_device(device, [&] { return UZIP_VENDOR(HostUnregister)(memory); });
}

const char* find_device_address(void* memory, int device, void** address) {
  return on_device(device, [&] { return UZIP_VENDOR(HostGetDevicePointer)(address, memory, 0); });
}

const char* create_stream(int device, void** stream) {
  Stream made{};
  const char* failure = on_device(device, [&] {
    return UZIP_VENDOR(StreamCreateWithFlags)(&made, UZIP_VENDOR(StreamNonBlocking));
  });
  *stream = made;
  return failure;
}

const char* destroy_stream(void* stream, int device) {
  return on_device(device, [&] { return UZIP_VENDOR(StreamDestroy)(stream_of(stream)); });
}

const char* synchronize_stream(void* stream, int device) {
  return on_device(device, [&] { return UZIP_VENDOR(StreamSynchronize)(stream_of(stream)); });
}

const char* find_capturing(void* stream, int device, bool* capturing) {
  auto status = UZIP_VENDOR(StreamCaptureStatusNone);
  const char* failure =
      on_device(device, [&] { return UZIP_VENDOR(StreamIsCapturing)(stream_of(stream), &status); });
  *capturing = status != UZIP_VENDOR(StreamCaptureStatusNone);
  return failure;
}

const char* copy(void* to, const void* from, size_t bytes, int device, void* stream) {
  return on_device(device, [&] {
    return UZIP_VENDOR(MemcpyAsync)(to, from, bytes, UZIP_VENDOR(MemcpyDefault), stream_of(stream));
  });
}

const char* set_bytes(void* memory, int value, size_t bytes, int device, void* stream) {
  return on_device(
      device, [&] { return UZIP_VENDOR(MemsetAsync)(memory, value, bytes, stream_of(stream)); });
}

const char* wait_for_word(const uint32_t* word, uint32_t value, int device, void* stream) {
  const OnDevice current(device);
  return current.failure() != nullptr ? current.failure()
                                      : stream_wait_word(stream_of(stream), word, value);
}

const char* write_word(uint32_t* word, uint32_t value, int device, void* stream) {
  const OnDevice current(device);
  return current.failure() != nullptr ? current.failure()
                                      : stream_write_word(stream_of(stream), word, value);
}

const char* create_event(int device, void** event) {
  UZIP_VENDOR(Event_t) made{};
  const char* failure = on_device(device, [&] {
    return UZIP_VENDOR(EventCreateWithFlags)(&made, UZIP_VENDOR(EventDisableTiming));
  });
  *event = made;
  return failure;
}

const char* destroy_event(void* event, int device) {
  return on_device(device, [&] { return UZIP_VENDOR(EventDestroy)(event_of(event)); });
}

const char* record_event(void* event, int device, void* stream) {
  return on_device(device,
                   [&] { return UZIP_VENDOR(EventRecord)(event_of(event), stream_of(stream)); });
}

const char* query_event(void* event, int device, bool* done) {
  const OnDevice current(device);
  if (current.failure() != nullptr) return current.failure();
  const auto status = UZIP_VENDOR(EventQuery)(event_of(event));
  const char* failure = reason(status);
  *done = status == UZIP_VENDOR(Success);
  return status == UZIP_VENDOR(ErrorNotReady) ? nullptr : failure;
}

const char* synchronize_event(void* event, int device) {
  return on_device(device, [&] { return UZIP_VENDOR(EventSynchronize)(event_of(event)); });
}

const char* wait_for_event(void* stream, int device, void* event) {
  return on_device(
      device, [&] { return UZIP_VENDOR(StreamWaitEvent)(stream_of(stream), event_of(event), 0); });
}

const char* allocate_for_peers(size_t bytes, int device, void** memory) {
  return on_device(device, [&] { return allocate_fine_grained(memory, bytes); });
}

const char* export_memory(void* memory, int device, uint8_t handle[kMemoryHandleBytes]) {
  UZIP_VENDOR(IpcMemHandle_t) made{};
  static_assert(sizeof made == kMemoryHandleBytes);
  const char* failure =
      on_device(device, [&] { return UZIP_VENDOR(IpcGetMemHandle)(&made, memory); });
  std::memcpy(handle, &made, sizeof made);
  return failure;
}

const char* open_memory(const uint8_t handle[kMemoryHandleBytes], int device, void** memory) {
  UZIP_VENDOR(IpcMemHandle_t) given;
  std::memcpy(&given, handle, sizeof given);
  return on_device(device, [&] {
    return UZIP_VENDOR(IpcOpenMemHandle)(memory, given, UZIP_VENDOR(IpcMemLazyEnablePeerAccess));
  });
}

const char* close_memory(void* memory, int device) {
  return on_device(device, [&] { return UZIP_VENDOR(IpcCloseMemHandle)(memory); });
}

const char* enable_peer(int device, int peer) {
  if (device == peer) return nullptr;
  return on_device(device, [&] {
    const auto status = UZIP_VENDOR(DeviceEnablePeerAccess)(peer, 0);
    if (status != UZIP_VENDOR(ErrorPeerAccessAlreadyEnabled)) return status;
    (void)UZIP_VENDOR(GetLastError)();
    return UZIP_VENDOR(Success);
  });
}

const char* can_access_peer(int device, int peer, bool* can) {
  int found = 0;
  const char* failure = reason(UZIP_VENDOR(DeviceCanAccessPeer)(&found, device, peer));
  *can = found != 0;
  return failure;
}

const char* identify_device(int device, char place[kPlaceBytes], uint8_t uuid[16]) {
  const char* failure =
      reason(UZIP_VENDOR(DeviceGetPCIBusId)(place, static_cast<int>(kPlaceBytes), device));
  return failure != nullptr ? failure : reason(device_uuid(device, uuid));
}

const char* find_device(const char* place, int* device) {
  const auto status = UZIP_VENDOR(DeviceGetByPCIBusId)(device, place);
  if (reason(status) != nullptr) *device = -1;
  return nullptr;
}

}  // namespace uzip::gpu
