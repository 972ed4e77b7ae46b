// Contiguous ranges of work for a few threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace uzip {

// Parts that n units of work are cut into: no more than threads, none so small that starting it
// costs more.
inline int parts_of(uint64_t n, int threads, uint64_t min_units) {
  const uint64_t useful = std::max<uint64_t>(n / std::max<uint64_t>(min_units, 1), 1);
  return static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(std::max(threads, 1)), useful));
}

inline uint64_t part_begin(uint64_t n, int parts, int part) {
  return n / static_cast<uint64_t>(parts) * static_cast<uint64_t>(part) +
         std::min(n % static_cast<uint64_t>(parts), static_cast<uint64_t>(part));
}

// Calls work(part, first, last) for each part of the units 0 .. n-1, each in a thread of its own,
// the first in the caller's. Throws what the first of the parts that failed has thrown, after all
// have ended.
template <typename Work>
void for_each_part(uint64_t n, int parts, Work work) {
  std::vector<std::exception_ptr> failures(static_cast<size_t>(parts));
  const auto run = [&](int part) {
    try {
      work(part, part_begin(n, parts, part), part_begin(n, parts, part + 1));
    } catch (...) {
      failures[static_cast<size_t>(part)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  int started = 1;
  try {
    for (; started < parts; ++started) threads.emplace_back(run, started);
  } catch (const std::exception&) {
    // The system has no more threads: their parts are done here.
  }
  run(0);
  for (int part = started; part < parts; ++part) run(part);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace uzip
