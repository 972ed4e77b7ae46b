// Exchanges between two GPUs of one process: their kernels alone, in CUDA graphs, without Python.
//
//   nvcc -arch=sm_90 -std=c++17 -O3 -Ikernels -DUZIP_TYPE=kBFloat16 -o exchange
//       benchmarks/exchange_gpu.cu kernels/exchange_gpu.cu
//   ./exchange [log2 of the slots [the second GPU]] > results.json
//
// Prints a JSON array: GB/s of values of bfloat16, one way, by operation, data, size and the number
// of processors that the kernels may occupy; each result is compared with what it should be, after
// the last replay. If the second GPU is 0 as well, that has both ends. Messages go from the first
// GPU to the second, or both ways; a sum is of both GPUs' values, on both. Tensors are a different
// part of 2 GiB in every launch.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "arithmetic.hpp"
#include "launch_gpu.hpp"

namespace {

using namespace uzip;
using namespace uzip::gpu;

constexpr size_t kPool = size_t{2} << 30;
constexpr int kRepeats = 5;
constexpr uint64_t kTimeout = 2000000000;  // ns

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

enum class Data { kNormal, kUniform, kRandom, kZeros };
constexpr const char* kDataNames[] = {"normal", "uniform", "random", "zeros"};

__device__ uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// Values of N(0, 0.02), of [-1, 1), random bits, or zeros.
__global__ void generate(uint16_t* values, size_t n, Data data, uint64_t seed) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const uint64_t first = mix(2 * i + (seed << 40));
    const uint64_t second = mix(2 * i + 1 + (seed << 40));
    const float u = static_cast<float>(first >> 40) / 16777216.0f;
    const float v = static_cast<float>(second >> 40) / 16777216.0f;
    const float normal = 0.02f * sqrtf(-2.0f * logf(u + 1e-9f)) * cospif(2.0f * v);
    uint16_t value = 0;
    if (data == Data::kNormal) value = BFloat16::narrow(normal);
    if (data == Data::kUniform) value = BFloat16::narrow(2.0f * u - 1.0f);
    if (data == Data::kRandom) value = static_cast<uint16_t>(second);
    values[i] = value;
  }
}

// Counts values that are not `a`, or not the sums of `a` and `b`.
__global__ void count_wrong(const uint16_t* a, const uint16_t* b, const uint16_t* found, size_t n,
                            unsigned long long* wrong) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    uint16_t expected = a[i];
    if (b != nullptr) {
      expected = BFloat16::narrow(BFloat16::widen(a[i]) + BFloat16::widen(b[i]));
    }
    if (found[i] != expected) atomicAdd(wrong, 1ull);
  }
}

struct Gpu {
  uint8_t* own;
  uint8_t* other;  // a copy of what the other GPU has
  uint8_t* out;
  uint8_t* region;
  Ledger* ledger;
  uint32_t* status;
  unsigned long long* wrong;
  cudaStream_t stream;
  cudaEvent_t begin;
  cudaEvent_t end;
};

// What a GPU does.
struct Role {
  bool sends;
  bool receives;
  bool folds;
};

struct Case {
  const char* name;
  Role roles[2];
  bool raw;
};

class Bench {
 public:
  Bench(int slots_log2, int second) : slots_log2_(slots_log2), devices_{0, second} {
    for (int g = 0; g < 2; ++g) {
      CHECK(cudaSetDevice(devices_[g]));
      if (second != 0) CHECK(cudaDeviceEnablePeerAccess(devices_[1 - g], 0));
      Gpu& gpu = gpus_[g];
      CHECK(cudaMalloc(&gpu.own, kPool));
      CHECK(cudaMalloc(&gpu.other, kPool));
      CHECK(cudaMalloc(&gpu.out, kPool));
      CHECK(cudaMalloc(&gpu.region, Region::bytes(slots_log2)));
      CHECK(cudaMalloc(&gpu.ledger, Ledger::bytes(slots_log2)));
      CHECK(cudaMemset(gpu.region, 0, Region::ring_offset(slots_log2)));
      CHECK(cudaMemset(gpu.ledger, 0, Ledger::bytes(slots_log2)));
      CHECK(cudaHostAlloc(&gpu.status, sizeof *gpu.status, cudaHostAllocPortable));
      *gpu.status = 0;
      CHECK(cudaMalloc(&gpu.wrong, sizeof *gpu.wrong));
      CHECK(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
      CHECK(cudaEventCreate(&gpu.begin));
      CHECK(cudaEventCreate(&gpu.end));
      CHECK(cudaDeviceSynchronize());
    }
  }

  void fill(Data data) {
    data_ = data;
    for (int g = 0; g < 2; ++g) {
      CHECK(cudaSetDevice(devices_[g]));
      generate<<<2048, 256>>>(reinterpret_cast<uint16_t*>(gpus_[g].own), kPool / 2, data,
                              static_cast<uint64_t>(g + 1));
      CHECK(cudaDeviceSynchronize());
    }
    for (int g = 0; g < 2; ++g) {
      CHECK(cudaSetDevice(devices_[g]));
      CHECK(cudaMemcpy(gpus_[g].other, gpus_[1 - g].own, kPool, cudaMemcpyDefault));
      CHECK(cudaDeviceSynchronize());
    }
  }

  void run(const Case& what, int processors, size_t mb) {
    const size_t bytes = mb << 20;
    const int launches = mb <= 16 ? 40 : mb <= 64 ? 16 : mb <= 256 ? 8 : 4;
    const int parts = static_cast<int>(
        std::min<size_t>(std::max<size_t>(1, kPool / bytes), static_cast<size_t>(launches)));
    for (int g = 0; g < 2; ++g) {
      CHECK(cudaSetDevice(devices_[g]));
      CHECK(cudaMemset(gpus_[g].out, 0xA5, bytes * static_cast<size_t>(parts)));
      CHECK(cudaDeviceSynchronize());  // nothing else would make the kernels wait for it
    }
    const double us = measure(what, processors, bytes, parts, launches);
    const size_t count = bytes / 2 * static_cast<size_t>(parts);
    const unsigned long long wrong = is_wrong(what, 0, count) + is_wrong(what, 1, count);
    if (*gpus_[0].status != 0 || *gpus_[1].status != 0 || wrong != 0) {
      std::fprintf(stderr, "%s of %zu MB: status %u and %u, %llu values wrong\n", what.name, mb,
                   *gpus_[0].status, *gpus_[1].status, wrong);
      std::exit(1);
    }
    std::printf(
        "%s\n  {\"operation\": \"%s\", \"codec\": \"%s\", \"data\": \"%s\", \"max_sms\": %d, "
        "\"mb\": %zu, \"us\": %.2f, \"gb_per_s\": %.1f}",
        first_ ? "[" : ",", what.name, what.raw ? "raw" : "auto",
        kDataNames[static_cast<int>(data_)], processors, mb, us,
        static_cast<double>(bytes) / us / 1e3);
    first_ = false;
  }

 private:
  void launch(const Case& what, int g, int processors, size_t offset, size_t bytes) {
    Gpu& gpu = gpus_[g];
    Exchange exchange{};
    exchange.dtype = DType::kBFloat16;
    exchange.options.raw = what.raw;
    exchange.options.max_blocks = processors;
    exchange.at_once = 1;
    exchange.timeout = kTimeout;
    exchange.status = gpu.status;
    exchange.n_links = 1;
    exchange.links[0] = {{gpu.region, slots_log2_}, {gpus_[1 - g].region, slots_log2_}, gpu.ledger};
    const Role& role = what.roles[g];
    if (role.sends) {
      exchange.n_sends = 1;
      exchange.sends[0] = {0, gpu.own + offset, bytes / 2, 1, 0, 0};
    }
    if (role.receives) {
      exchange.n_receives = 1;
      exchange.receives[0] = {0, gpu.out + offset, bytes / 2, 0, 0, 0};
    }
    exchange.folds = role.folds;
    if (role.folds) {
      exchange.fold = {ReduceOp::kSum,   1,         1, {0}, g, gpu.own + offset,
                       gpu.out + offset, bytes / 2, 0, 0};
    }
    const char* failure = launch_exchange<DType::kBFloat16>(exchange, gpu.stream);
    if (failure == nullptr) return;
    std::fprintf(stderr, "%s: %s\n", what.name, failure);
    std::exit(1);
  }

  cudaGraphExec_t capture(const Case& what, int g, int processors, size_t bytes, int parts,
                          int launches) {
    CHECK(cudaSetDevice(devices_[g]));
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaStreamBeginCapture(gpus_[g].stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) {
      launch(what, g, processors, static_cast<size_t>(i % parts) * bytes, bytes);
    }
    CHECK(cudaStreamEndCapture(gpus_[g].stream, &graph));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return ready;
  }

  // The median time of a launch, in microseconds.
  double measure(const Case& what, int processors, size_t bytes, int parts, int launches) {
    cudaGraphExec_t graphs[2];
    for (int g = 0; g < 2; ++g) {
      graphs[g] = capture(what, g, processors, bytes, parts, launches);
    }
    std::vector<double> times;
    for (int i = 0; i <= kRepeats; ++i) {
      const double us = replay(graphs) / launches;
      if (i != 0) times.push_back(us);
    }
    for (cudaGraphExec_t graph : graphs) CHECK(cudaGraphExecDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  double replay(const cudaGraphExec_t graphs[2]) {
    for (int g = 1; g >= 0; --g) {  // receivers first
      CHECK(cudaSetDevice(devices_[g]));
      CHECK(cudaEventRecord(gpus_[g].begin, gpus_[g].stream));
      CHECK(cudaGraphLaunch(graphs[g], gpus_[g].stream));
      CHECK(cudaEventRecord(gpus_[g].end, gpus_[g].stream));
    }
    float longest = 0;
    for (Gpu& gpu : gpus_) {
      CHECK(cudaStreamSynchronize(gpu.stream));
      float ms;
      CHECK(cudaEventElapsedTime(&ms, gpu.begin, gpu.end));
      longest = std::max(longest, ms);
    }
    return longest * 1e3;
  }

  unsigned long long is_wrong(const Case& what, int g, size_t count) {
    const Role& role = what.roles[g];
    if (!role.receives && !role.folds) return 0;
    const Gpu& gpu = gpus_[g];
    CHECK(cudaSetDevice(devices_[g]));
    CHECK(cudaMemset(gpu.wrong, 0, sizeof *gpu.wrong));
    count_wrong<<<1024, 256>>>(reinterpret_cast<const uint16_t*>(gpu.other),
                               reinterpret_cast<const uint16_t*>(role.folds ? gpu.own : nullptr),
                               reinterpret_cast<const uint16_t*>(gpu.out), count, gpu.wrong);
    unsigned long long wrong;
    CHECK(cudaMemcpy(&wrong, gpu.wrong, sizeof wrong, cudaMemcpyDefault));
    return wrong;
  }

  int slots_log2_;
  int devices_[2];
  Gpu gpus_[2];
  Data data_ = Data::kNormal;
  bool first_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc > 1 ? std::atoi(argv[1]) : kMaxSlotsLog2, argc > 2 ? std::atoi(argv[2]) : 1);
  const Case message{"message", {{true, false, false}, {false, true, false}}, false};
  const Case both_ways{"message both ways", {{true, true, false}, {true, true, false}}, false};
  const Case sum{"sum", {{true, false, true}, {true, false, true}}, false};
  const Case raw_message{"message", {{true, false, false}, {false, true, false}}, true};
  const Case raw_sum{"sum", {{true, false, true}, {true, false, true}}, true};
  const std::vector<size_t> some{16, 64, 256};
  bench.fill(Data::kNormal);
  for (const Case* what : {&message, &both_ways, &sum, &raw_message, &raw_sum}) {
    for (size_t mb : {1, 4, 16, 64, 256, 1024}) bench.run(*what, 0, mb);
  }
  for (int processors : {16, 24, 32, 48}) {
    for (const Case* what : {&message, &sum}) {
      for (size_t mb : some) bench.run(*what, processors, mb);
    }
  }
  for (Data data : {Data::kUniform, Data::kRandom, Data::kZeros}) {
    bench.fill(data);
    for (const Case* what : {&message, &sum}) {
      for (size_t mb : some) bench.run(*what, 0, mb);
    }
  }
  std::printf("\n]\n");
  return 0;
}
