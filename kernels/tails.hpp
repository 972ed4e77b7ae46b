// Placing the units of a tail section: one after the other without gaps, whoever codes them.
#pragma once

#include "format.hpp"
#include "parallel.hpp"
#include "tier.hpp"

namespace uzip {

// Codes n units in several parts, each by a thread of its own, to begin .. limit, and joins what
// they wrote. code(first, last, begin, end) writes units, padded, and their entries, and returns
// where they end, or nullptr where that would pass `end`; entry(unit) is where a unit has its
// offset. Returns the end, or nullptr where that would pass `limit`. Each thread has an equal share
// of the room; where one does not suffice, one thread codes all, so that the bytes do not depend on
// the number of parts.
template <typename Code, typename Entry>
uint8_t* code_tails(uint64_t n, int parts, uint8_t* begin, uint8_t* limit, Code code, Entry entry) {
  if (parts == 1) return code(uint64_t{0}, n, begin, limit);
  const uint64_t room =
      static_cast<uint64_t>(limit - begin) / static_cast<uint64_t>(parts) / kAlignment * kAlignment;
  std::vector<uint8_t*> ends(static_cast<size_t>(parts));
  const auto begin_of = [&](int part) { return begin + static_cast<uint64_t>(part) * room; };
  for_each_part(n, parts, [&](int part, uint64_t first, uint64_t last) {
    ends[static_cast<size_t>(part)] = code(first, last, begin_of(part), begin_of(part) + room);
  });
  if (std::find(ends.begin(), ends.end(), nullptr) != ends.end())
    return code(uint64_t{0}, n, begin, limit);
  uint8_t* joined = ends[0];
  for (int part = 1; part < parts; ++part) {
    const uint8_t* from = begin_of(part);
    const auto moved = static_cast<uint32_t>((from - joined) / kAlignment);
    const auto bytes = static_cast<size_t>(ends[static_cast<size_t>(part)] - from);
    std::memmove(joined, from, bytes);
    joined += bytes;
    const uint64_t last = part_begin(n, parts, part + 1);
    for (uint64_t unit = part_begin(n, parts, part); unit < last; ++unit) {
      store(entry(unit), load<uint32_t>(entry(unit)) - moved);
    }
  }
  return joined;
}

}  // namespace uzip
