// Which instructions the coders use. Chosen once, from what the processor has; all paths give the
// same bytes.
#pragma once

#include <string>
#include <vector>

namespace uzip {

enum class SimdPath { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// The path in use: UZIPMPI_SIMD where set, else the best one that pays on this processor.
SimdPath simd_path();

// Throws std::invalid_argument for a name that is unknown or that this processor cannot run.
void force_simd(const std::string& name);

const char* simd_name(SimdPath path);

// Names of the paths that this processor can run, the portable one first.
std::vector<std::string> simd_paths();

}  // namespace uzip
