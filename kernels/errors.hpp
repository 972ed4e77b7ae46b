// The exception for bytes that are no frame, or not the expected one.
#pragma once

#include <stdexcept>
#include <string>

namespace uzip {

// bindings.cpp turns it into uzipmpi.errors.FormatError.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* expected) {
  if (!holds) throw FormatError(std::string("malformed frame: expected ") + expected);
}

template <typename Found>
void require(bool holds, const char* expected, Found found) {
  if (!holds) {
    throw FormatError(std::string("malformed frame: expected ") + expected + ", found " +
                      std::to_string(found));
  }
}

}  // namespace uzip
