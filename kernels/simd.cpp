#include "simd.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "platform.hpp"

namespace uzip {
namespace {

constexpr SimdPath kPaths[] = {SimdPath::kPortable, SimdPath::kAvx2, SimdPath::kAvx512};

bool runs(SimdPath path) {
  if (path == SimdPath::kPortable) return true;
#if UZIP_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("popcnt");
  if (path == SimdPath::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

// The first two Zen generations run pext and pdep in microcode, slower than the portable loops.
bool pays(SimdPath path) {
#if UZIP_X86
  if (path != SimdPath::kPortable) {
    return !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
  }
#endif
  return path == SimdPath::kPortable;
}

SimdPath parse(const std::string& name) {
  for (const SimdPath path : kPaths) {
    if (name != simd_name(path)) continue;
    if (!runs(path)) throw std::invalid_argument("this processor cannot run SIMD path " + name);
    return path;
  }
  throw std::invalid_argument("expected SIMD path portable, avx2 or avx512, found " + name);
}

SimdPath initial_path() {
  if (const char* name = std::getenv("UZIPMPI_SIMD"); name != nullptr && *name != '\0') {
    return parse(name);
  }
  SimdPath best = SimdPath::kPortable;
  for (const SimdPath path : kPaths) {
    if (runs(path) && pays(path)) best = path;
  }
  return best;
}

std::atomic<SimdPath>& chosen() {
  static std::atomic<SimdPath> path{initial_path()};
  return path;
}

}  // namespace

const char* simd_name(SimdPath path) {
  switch (path) {
    case SimdPath::kAvx2:
      return "avx2";
    case SimdPath::kAvx512:
      return "avx512";
    default:
      return "portable";
  }
}

SimdPath simd_path() { return chosen().load(std::memory_order_relaxed); }

void force_simd(const std::string& name) { chosen().store(parse(name)); }

std::vector<std::string> simd_paths() {
  std::vector<std::string> names;
  for (const SimdPath path : kPaths) {
    if (runs(path)) names.emplace_back(simd_name(path));
  }
  return names;
}

}  // namespace uzip
