// For tests: how much memory operator new has handed out. Linking allocation_meter.cpp replaces the global
// operator new of the test program.
#pragma once

#include <cstddef>

namespace nibble {

// The most bytes that were alive at once since this was constructed, beyond those alive then.
class AllocationMeter {
 public:
  AllocationMeter();
  std::size_t peak() const;

 private:
  std::size_t before_;
};

}  // namespace nibble
