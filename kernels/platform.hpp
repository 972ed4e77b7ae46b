// The only file that names a vendor: compilers, devices and instruction sets.
//
// UZIP_HD marks arithmetic that is compiled for the host and for the device. GPU sources (.cu) are
// compiled as CUDA, as HIP, or, with UZIP_EMULATION, as C++ for a processor that plays the lanes in
// turn; UZIP_GPU_SOURCE tells them. UZIP_TARGET_BEGIN(features) .. UZIP_TARGET_END compile the
// functions between them for instructions that the rest of the library must not use; whoever calls
// them has asked simd.hpp first.
#pragma once

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>  // CUDA's compiler knows these words by itself
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define UZIP_HD __host__ __device__ __forceinline__
#else
// What a SIMD path calls must become part of that path's functions, to be compiled for its target.
#define UZIP_HD __attribute__((always_inline)) inline
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error \
    "uzipmpi reads and writes its little-endian frames in place: a little-endian machine is needed"
#endif

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define UZIP_X86 1
#else
#define UZIP_X86 0
#endif

#define UZIP_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define UZIP_TARGET_BEGIN(features) \
  UZIP_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define UZIP_TARGET_END _Pragma("clang attribute pop")
#else
#define UZIP_TARGET_BEGIN(features) _Pragma("GCC push_options") UZIP_PRAGMA(GCC target(features))
#define UZIP_TARGET_END _Pragma("GCC pop_options")
#endif

#if defined(__CUDACC__) || defined(__HIPCC__) || defined(UZIP_EMULATION)
#define UZIP_GPU_SOURCE 1
#else
#define UZIP_GPU_SOURCE 0
#endif

#if UZIP_GPU_SOURCE
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(UZIP_EMULATION)
#include "emulation_gpu.hpp"
#else

#if defined(__HIPCC__)
#define UZIP_VENDOR(name) hip##name
#define UZIP_MULTIPROCESSORS hipDeviceAttributeMultiprocessorCount
#define UZIP_HOST_ALLOCATE hipHostMalloc
#define UZIP_HOST_FREE hipHostFree
#define UZIP_HOST_PORTABLE hipHostMallocPortable
#else
#include <cuda_runtime.h>
#define UZIP_VENDOR(name) cuda##name
#define UZIP_MULTIPROCESSORS cudaDevAttrMultiProcessorCount
#define UZIP_HOST_ALLOCATE cudaHostAlloc
#define UZIP_HOST_FREE cudaFreeHost
#define UZIP_HOST_PORTABLE cudaHostAllocPortable
#endif

#define UZIP_DEVICE __device__ __forceinline__
// Of code that is too large to become part of each caller. For the linker it is inline nonetheless,
// as it is in every object that includes its header.
#define UZIP_DEVICE_CALL inline __device__ __noinline__
// A kernel whose blocks have `threads` threads, and of whose blocks a multiprocessor should hold
// `blocks`.
#define UZIP_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)

// Of a large argument of a kernel, which is read where it is, and not copied by every thread.
#if defined(__HIPCC__)
#define UZIP_ARGUMENT const
#else
#define UZIP_ARGUMENT const __grid_constant__
#endif

#if defined(__CUDA_ARCH__)
#define UZIP_PTX 1
#else
#define UZIP_PTX 0
#endif

namespace uzip::gpu {

using Stream = UZIP_VENDOR(Stream_t);

#if defined(UZIP_PACKED_THREADS) && !defined(__HIPCC__)
// In a source that defines this, a vendor's block is made of up to four of ours, of so many
// threads, which have nothing to do with each other but that they are on one processor. Each has an
// equal part of the shared memory.
constexpr bool kPacksBlocks = true;
UZIP_DEVICE uint32_t packed_blocks() { return blockDim.x / UZIP_PACKED_THREADS; }
UZIP_DEVICE uint32_t packed_index() { return threadIdx.x / UZIP_PACKED_THREADS; }
UZIP_DEVICE int thread_index() { return static_cast<int>(threadIdx.x % UZIP_PACKED_THREADS); }
UZIP_DEVICE uint32_t block_index() { return blockIdx.x * packed_blocks() + packed_index(); }
UZIP_DEVICE uint32_t block_count() { return gridDim.x * packed_blocks(); }
UZIP_DEVICE void sync_block() {
  asm volatile("bar.sync %0, %1;" ::"r"(packed_index()), "n"(UZIP_PACKED_THREADS) : "memory");
}
#else
constexpr bool kPacksBlocks = false;
UZIP_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
UZIP_DEVICE uint32_t block_index() { return blockIdx.x; }
UZIP_DEVICE uint32_t block_count() { return gridDim.x; }
UZIP_DEVICE void sync_block() { __syncthreads(); }
#endif
UZIP_DEVICE void fence_device() { __threadfence(); }

// Memory that other devices and processes read or write while the kernel runs; what waits in it is
// told by flags, read with acquire, and written, relaxed, behind a fence.
#if defined(__HIPCC__)
template <typename Word>
UZIP_DEVICE Word load_acquire_system(const Word* place) {
  return __hip_atomic_load(place, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <typename Word>
UZIP_DEVICE Word load_relaxed_system(const Word* place) {
  return __hip_atomic_load(place, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <typename Word>
UZIP_DEVICE void store_relaxed_system(Word* place, Word word) {
  __hip_atomic_store(place, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
UZIP_DEVICE void fence_system() { __threadfence_system(); }
// Of shared memory.
UZIP_DEVICE uint32_t load_acquire_block(const uint32_t* place) {
  return __hip_atomic_load(place, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP);
}
UZIP_DEVICE void store_release_block(uint32_t* place, uint32_t word) {
  __hip_atomic_store(place, word, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
}
UZIP_DEVICE uint64_t load_relaxed_block(const uint64_t* place) {
  return __hip_atomic_load(place, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
UZIP_DEVICE void store_relaxed_block(uint64_t* place, uint64_t word) {
  __hip_atomic_store(place, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
// Since some moment; the clock has 100 MHz.
UZIP_DEVICE uint64_t nanoseconds() { return __builtin_amdgcn_s_memrealtime() * 10; }
UZIP_DEVICE void pause() { __builtin_amdgcn_s_sleep(1); }
UZIP_DEVICE void pause_for(uint32_t nanoseconds) {
  constexpr uint32_t kAtATime = 32;
  for (uint32_t i = 0; i <= nanoseconds; i += kAtATime) pause();
}
#else
UZIP_DEVICE uint64_t load_acquire_system(const uint64_t* place) {
  uint64_t word;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
  return word;
}
UZIP_DEVICE uint32_t load_relaxed_system(const uint32_t* place) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(place) : "memory");
  return word;
}
UZIP_DEVICE uint64_t load_relaxed_system(const uint64_t* place) {
  uint64_t word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
  return word;
}
UZIP_DEVICE void store_relaxed_system(uint32_t* place, uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(place), "r"(word) : "memory");
}
UZIP_DEVICE void store_relaxed_system(uint64_t* place, uint64_t word) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
}
UZIP_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// Of shared memory. They are atomic operations that read and write, as tools that look for races
// take plain accesses for one, whatever their order.
UZIP_DEVICE uint32_t load_acquire_block(const uint32_t* place) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(place));
  uint32_t word;
  asm volatile("atom.acquire.cta.shared.or.b32 %0, [%1], 0;"
               : "=r"(word)
               : "r"(address)
               : "memory");
  return word;
}
UZIP_DEVICE void store_release_block(uint32_t* place, uint32_t word) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(place));
  asm volatile("atom.release.cta.shared.exch.b32 %0, [%1], %0;"
               : "+r"(word)
               : "r"(address)
               : "memory");
}
UZIP_DEVICE uint64_t load_relaxed_block(const uint64_t* place) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(place));
  uint64_t word;
  asm volatile("atom.relaxed.cta.shared.or.b64 %0, [%1], 0;"
               : "=l"(word)
               : "r"(address)
               : "memory");
  return word;
}
UZIP_DEVICE void store_relaxed_block(uint64_t* place, uint64_t word) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(place));
  asm volatile("atom.relaxed.cta.shared.exch.b64 %0, [%1], %0;"
               : "+l"(word)
               : "r"(address)
               : "memory");
}
// Since some moment.
UZIP_DEVICE uint64_t nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
UZIP_DEVICE void pause() { __nanosleep(20); }
UZIP_DEVICE void pause_for(uint32_t nanoseconds) { __nanosleep(nanoseconds); }
#endif

#if defined(__HIPCC__)
// A wavefront may hold two groups of 32 lanes. It runs in lockstep: its memory needs an order, no
// barrier.
UZIP_DEVICE void sync_lanes() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); }
UZIP_DEVICE uint32_t ballot32(bool vote) {
  return static_cast<uint32_t>(__ballot(vote) >> (__lane_id() & 32));
}
UZIP_DEVICE uint32_t shuffle32(uint32_t word, int from) { return __shfl(word, from, 32); }
UZIP_DEVICE uint32_t shuffle_up32(uint32_t word, int by) { return __shfl_up(word, by, 32); }
UZIP_DEVICE uint32_t shuffle_xor32(uint32_t word, int mask) { return __shfl_xor(word, mask, 32); }
UZIP_DEVICE uint32_t sum32(uint32_t word) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) word += shuffle_xor32(word, mask);
  return word;
}
UZIP_DEVICE uint32_t or32(uint32_t word) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) word |= shuffle_xor32(word, mask);
  return word;
}
UZIP_DEVICE uint32_t max32(uint32_t word) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
    const uint32_t other = shuffle_xor32(word, mask);
    word = other > word ? other : word;
  }
  return word;
}
#else
UZIP_DEVICE void sync_lanes() { __syncwarp(); }
UZIP_DEVICE uint32_t ballot32(bool vote) { return __ballot_sync(~0u, vote); }
UZIP_DEVICE uint32_t shuffle32(uint32_t word, int from) { return __shfl_sync(~0u, word, from); }
UZIP_DEVICE uint32_t shuffle_up32(uint32_t word, int by) { return __shfl_up_sync(~0u, word, by); }
UZIP_DEVICE uint32_t shuffle_xor32(uint32_t word, int mask) {
  return __shfl_xor_sync(~0u, word, mask);
}
UZIP_DEVICE uint32_t sum32(uint32_t word) { return __reduce_add_sync(~0u, word); }
UZIP_DEVICE uint32_t or32(uint32_t word) { return __reduce_or_sync(~0u, word); }
UZIP_DEVICE uint32_t max32(uint32_t word) { return __reduce_max_sync(~0u, word); }
#endif

UZIP_DEVICE int popcount(uint32_t word) { return __popc(word); }
UZIP_DEVICE int highest_bit(uint32_t word) { return 31 - __clz(static_cast<int>(word)); }
UZIP_DEVICE int lowest_bit(uint32_t word) { return __ffs(static_cast<int>(word)) - 1; }

// On shared and on global memory.
UZIP_DEVICE uint32_t atomic_add(uint32_t* place, uint32_t word) { return atomicAdd(place, word); }
UZIP_DEVICE uint64_t atomic_add(uint64_t* place, uint64_t word) {
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));
  return atomicAdd(reinterpret_cast<unsigned long long*>(place), word);
}
// Adds 1, modulo n; returns what was there.
UZIP_DEVICE uint32_t atomic_add_modulo(uint32_t* place, uint32_t n) {
  return atomicInc(place, n - 1);
}
UZIP_DEVICE void atomic_or(uint32_t* place, uint32_t word) { atomicOr(place, word); }
UZIP_DEVICE void atomic_max(uint32_t* place, uint32_t word) { atomicMax(place, word); }

// Copies 16 bytes, aligned at both ends, from global to shared memory, without waiting and through
// no register. They are there for the lane that asked when wait_copies<n>() returns and it has
// called commit_copies() at most n times since; for others after a sync_lanes() more.
UZIP_DEVICE void copy_later(void* to, const void* from) {
#if UZIP_PTX
  const auto place = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}
// The same of 4 bytes.
UZIP_DEVICE void copy_word_later(void* to, const void* from) {
#if UZIP_PTX
  const auto place = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place), "l"(from) : "memory");
#else
  *static_cast<uint32_t*>(to) = *static_cast<const uint32_t*>(from);
#endif
}
UZIP_DEVICE void commit_copies() {
#if UZIP_PTX
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kLater>
UZIP_DEVICE void wait_copies() {
#if UZIP_PTX
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
#endif
}

// Asks for the line of 128 bytes of global memory, to the cache that all processors share.
UZIP_DEVICE void prefetch(const void* line) {
#if UZIP_PTX
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#else
  (void)line;
#endif
}

// Of kernels that launch_early() launches. The first waits until what comes before in the stream
// has ended, with all that it has written; nothing else may touch memory earlier. The second, by
// all blocks or when they end, allows the next kernel to be launched.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
UZIP_DEVICE void await_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
UZIP_DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
UZIP_DEVICE void await_earlier() {}
UZIP_DEVICE void let_next_begin() {}
#endif

// The shared memory that the launch gave the block.
UZIP_DEVICE uint8_t* shared_memory() {
  extern __shared__ __align__(16) uint8_t uzip_shared[];
#if defined(UZIP_PACKED_THREADS) && !defined(__HIPCC__)
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  const uint32_t n = packed_blocks();
  return uzip_shared + packed_index() * (n == 3 ? bytes / 3 : bytes >> n / 2);
#else
  return uzip_shared;
#endif
}

inline int current_device() {
  int device = 0;
  (void)UZIP_VENDOR(GetDevice)(&device);
  return device;
}

// What is found out about a kernel on a device; asked again, it takes no call of the driver.
struct Residence {
  const void* kernel;
  int device;
  int threads;
  size_t shared_bytes;
  int blocks;
};

template <typename Kernel>
int find_resident_blocks(Kernel kernel, int threads, size_t shared_bytes, int device) {
  int processors = 1;
  int blocks = 1;
  (void)UZIP_VENDOR(DeviceGetAttribute)(&processors, UZIP_MULTIPROCESSORS, device);
  // More than the 48 KiB that a block may have without asking.
  (void)UZIP_VENDOR(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                                      UZIP_VENDOR(FuncAttributeMaxDynamicSharedMemorySize),
                                      static_cast<int>(shared_bytes));
  (void)UZIP_VENDOR(OccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, kernel, threads,
                                                               shared_bytes);
  return blocks * processors > 0 ? blocks * processors : 1;
}

// Blocks of a kernel that the current device holds at a time, at least 1.
template <typename Kernel>
int resident_blocks(Kernel kernel, int threads, size_t shared_bytes) {
  thread_local std::vector<Residence> known;
  const int device = current_device();
  const auto* function = reinterpret_cast<const void*>(kernel);
  for (const Residence& one : known) {
    if (one.kernel == function && one.device == device && one.threads == threads &&
        one.shared_bytes == shared_bytes) {
      return one.blocks;
    }
  }
  const int blocks = find_resident_blocks(kernel, threads, shared_bytes, device);
  known.push_back({function, device, threads, shared_bytes, blocks});
  return blocks;
}

// Whether a block may have more than 64 KiB of shared memory; and whether code for a menu compiles
// in seconds, not a minute.
#if defined(__HIPCC__)
constexpr bool kLargeShared = false;
constexpr bool kCompilesSoon = false;
#else
constexpr bool kLargeShared = true;
constexpr bool kCompilesSoon = true;
#endif

// Returns nullptr, or what the driver says is wrong.
template <typename Kernel, typename... Arguments>
const char* launch(Kernel kernel, int blocks, int threads, size_t shared_bytes, Stream stream,
                   Arguments... arguments) {
  void* addresses[] = {&arguments...};
  const auto status = UZIP_VENDOR(LaunchKernel)(reinterpret_cast<const void*>(kernel), dim3(blocks),
                                                dim3(threads), addresses, shared_bytes, stream);
  return status == UZIP_VENDOR(Success) ? nullptr : UZIP_VENDOR(GetErrorString)(status);
}

#if CUDART_VERSION >= 12030 && defined(__CUDA_ARCH_LIST__)
// Whether kernels can be launched early: what is loaded to such a device was then compiled for it,
// or for the newest target before it.
inline bool launches_early() {
  constexpr int kTargets[] = {__CUDA_ARCH_LIST__};
  bool compiled = false;
  for (const int target : kTargets) compiled = compiled || target >= 900;
  int major = 0;
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current_device());
  return compiled && major >= 9;
}

// As launch(). The kernel may be launched while the one before it in the stream ends, which hides
// the time that a launch takes; it calls await_earlier() first of all.
template <typename Kernel, typename... Arguments>
const char* launch_early(Kernel kernel, int blocks, int threads, size_t shared_bytes, Stream stream,
                         Arguments... arguments) {
  void* addresses[] = {&arguments...};
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = launches_early() ? 1 : 0;
  const auto status =
      cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), addresses);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}
#else
template <typename Kernel, typename... Arguments>
const char* launch_early(Kernel kernel, int blocks, int threads, size_t shared_bytes, Stream stream,
                         Arguments... arguments) {
  return launch(kernel, blocks, threads, shared_bytes, stream, arguments...);
}
#endif

// Blocks of a kernel that are sure to run at a time, of two such kernels at once: what one block
// waits for may be any other's work. The processors' memory is to be shared memory as far as
// possible: a kernel that leaves less would keep the other one waiting.
template <typename Kernel>
int blocks_together(Kernel kernel, int threads, size_t shared_bytes) {
  (void)UZIP_VENDOR(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                                      UZIP_VENDOR(FuncAttributePreferredSharedMemoryCarveout), 100);
  const int half = resident_blocks(kernel, threads, shared_bytes) / 2;
  return half > 0 ? half : 1;
}
template <typename Kernel, typename... Arguments>
const char* launch_together(Kernel kernel, int blocks, int threads, size_t shared_bytes,
                            Stream stream, Arguments... arguments) {
  return launch(kernel, blocks, threads, shared_bytes, stream, arguments...);
}

#if defined(__HIPCC__)
// Memory whose flags other devices see change while a kernel runs must be fine-grained.
inline hipError_t allocate_fine_grained(void** memory, size_t bytes) {
  return hipExtMallocWithFlags(memory, bytes, hipDeviceMallocFinegrained);
}
inline hipError_t device_uuid(int device, unsigned char uuid[16]) {
  hipUUID found;
  const hipError_t status = hipDeviceGetUuid(&found, device);
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(found.bytes[i]);
  return status;
}

// The word should be the driver's signal memory, or such as the device's packet processors reach.
inline const char* stream_wait_word(Stream stream, const uint32_t* word, uint32_t value) {
  const hipError_t status = hipStreamWaitValue32(stream, const_cast<uint32_t*>(word), value,
                                                 hipStreamWaitValueGte, 0xFFFFFFFF);
  return status == hipSuccess ? nullptr : hipGetErrorString(status);
}
inline const char* stream_write_word(Stream stream, uint32_t* word, uint32_t value) {
  const hipError_t status = hipStreamWriteValue32(stream, word, value, 0);
  return status == hipSuccess ? nullptr : hipGetErrorString(status);
}

using PointerAttributes = hipPointerAttribute_t;

inline bool is_managed(const PointerAttributes& attributes) { return attributes.isManaged != 0; }
inline hipMemoryType memory_type(const PointerAttributes& attributes) {
#if HIP_VERSION >= 60000000
  return attributes.type;
#else
  return attributes.memoryType;
#endif
}
inline bool has_context(int) { return true; }  // making one costs next to nothing
#else
inline cudaError_t allocate_fine_grained(void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes);
}
inline cudaError_t device_uuid(int device, unsigned char uuid[16]) {
  cudaDeviceProp found;
  const cudaError_t status = cudaGetDeviceProperties(&found, device);
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(found.uuid.bytes[i]);
  return status;
}

using PointerAttributes = cudaPointerAttributes;

inline bool is_managed(const PointerAttributes& attributes) {
  return attributes.type == cudaMemoryTypeManaged;
}
inline cudaMemoryType memory_type(const PointerAttributes& attributes) { return attributes.type; }

// A function of the driver's own interface, as it was since a version; null if it is not there.
template <typename Function>
Function* driver_function(const char* name, int version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  (void)cudaGetDriverEntryPointByVersion(name, &entry, static_cast<unsigned>(version),
                                         cudaEnableDefault, &found);
#elif CUDART_VERSION >= 12000
  (void)version;
  (void)cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  return reinterpret_cast<Function*>(entry);
}

// Operations of a stream on a word that the device reaches.
using WordOperation = int(Stream stream, unsigned long long word, uint32_t value, unsigned flags);
inline const char* operate_on_word(WordOperation* operation, Stream stream, const uint32_t* word,
                                   uint32_t value, unsigned flags) {
  if (operation == nullptr) return "the driver has no streams that wait for memory";
  const auto address = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(word));
  return operation(stream, address, value, flags) == 0 ? nullptr
                                                       : "the driver refuses a word of a stream";
}
inline const char* stream_wait_word(Stream stream, const uint32_t* word, uint32_t value) {
  static const auto wait = driver_function<WordOperation>("cuStreamWaitValue32", 12000);
  constexpr unsigned kGreaterOrEqual = 0;  // around the largest number
  return operate_on_word(wait, stream, word, value, kGreaterOrEqual);
}
inline const char* stream_write_word(Stream stream, uint32_t* word, uint32_t value) {
  static const auto write = driver_function<WordOperation>("cuStreamWriteValue32", 12000);
  return operate_on_word(write, stream, word, value, 0);  // behind a fence
}

// Whether a device has this process' context, which takes hundreds of megabytes. Only the driver's
// own interface tells without making one; true where it cannot be asked.
inline bool has_context(int device) {
  using GetState = int(int device, unsigned* flags, int* active);
  static const auto get_state = driver_function<GetState>("cuDevicePrimaryCtxGetState", 7000);
  unsigned flags = 0;
  int active = 0;
  return get_state == nullptr || get_state(device, &flags, &active) != 0 || active != 0;
}
#endif

}  // namespace uzip::gpu
#endif  // UZIP_EMULATION
#endif  // UZIP_GPU_SOURCE

namespace uzip {

// Each is rounded by itself, to nearest: GPU compilers would fuse a product with a sum, which
// changes the bits. (Processors' files are compiled without contraction.)
#if defined(__CUDA_ARCH__)
UZIP_HD float add(float a, float b) { return __fadd_rn(a, b); }
UZIP_HD double add(double a, double b) { return __dadd_rn(a, b); }
UZIP_HD float multiply(float a, float b) { return __fmul_rn(a, b); }
UZIP_HD double multiply(double a, double b) { return __dmul_rn(a, b); }
UZIP_HD float divide(float a, float b) { return __fdiv_rn(a, b); }
UZIP_HD double divide(double a, double b) { return __ddiv_rn(a, b); }
#else
#if defined(__HIPCC__)
#pragma clang fp contract(off)
#endif
template <typename T>
UZIP_HD T add(T a, T b) {
  return a + b;
}
template <typename T>
UZIP_HD T multiply(T a, T b) {
  return a * b;
}
template <typename T>
UZIP_HD T divide(T a, T b) {
  return a / b;
}
#endif

#if UZIP_GPU_SOURCE && UZIP_PTX
// 16-bit types, given as their bits, to and from float32. Their portable twins are in
// arithmetic.hpp.
UZIP_HD float widen_half(uint16_t bits) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
  return wide;
}
UZIP_HD uint16_t narrow_half(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
UZIP_HD uint16_t narrow_bfloat(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
// Sums of two neighbouring values; where one is NaN the result is that of arithmetic.hpp, not the
// machine's 0x7FFF.
UZIP_HD uint32_t with_quiet_nans(uint32_t sums, uint32_t difference) {
  const uint32_t nans = ((sums & 0x7FFF7FFFu) + 0x00010001u) & 0x80008000u;
  return sums ^ (nans >> 15) * difference;
}
UZIP_HD uint32_t add_bfloats(uint32_t a, uint32_t b) {
  uint32_t sums;
#if __CUDA_ARCH__ >= 900
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
#else
  asm("{\n\t.reg .f32 a0, a1, b0, b1;\n\t"
      "shl.b32 a0, %1, 16;\n\tand.b32 a1, %1, 0xFFFF0000;\n\t"
      "shl.b32 b0, %2, 16;\n\tand.b32 b1, %2, 0xFFFF0000;\n\t"
      "add.f32 a0, a0, b0;\n\tadd.f32 a1, a1, b1;\n\t"
      "cvt.rn.bf16x2.f32 %0, a1, a0;}"
      : "=r"(sums)
      : "r"(a), "r"(b));
#endif
  return with_quiet_nans(sums, 0x7FFF ^ 0x7FC0);
}
UZIP_HD uint32_t add_halves(uint32_t a, uint32_t b) {
  uint32_t sums;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sums) : "r"(a), "r"(b));
  return with_quiet_nans(sums, 0x7FFF ^ 0x7E00);
}
#endif

}  // namespace uzip
