// For tests: what operator new has handed out, on all threads. Linking allocation_meter.cpp replaces the
// global operator new of the test program.
#pragma once

#include <cstddef>

namespace nibble {

// The most bytes that were alive at once since this was constructed, beyond those alive then.
class AllocationMeter {
 public:
  AllocationMeter();
  std::size_t peak() const;
  // Calls of operator new since then.
  std::size_t count() const;

 private:
  std::size_t before_;
  std::size_t calls_before_;
};

}  // namespace nibble
