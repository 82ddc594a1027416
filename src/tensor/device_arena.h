// Parts of one block of device memory, each at a multiple of 256 bytes. Asked without memory it only counts,
// so that what is laid out is measured by the code that lays it out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble {

class DeviceArena {
 public:
  DeviceArena() = default;  // counts; every part is null
  explicit DeviceArena(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(std::size_t count) {
    std::byte* const part = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * sizeof(T) + alignment - 1) / alignment * alignment;
    return reinterpret_cast<T*>(part);
  }
  std::size_t used() const { return used_; }

 private:
  static constexpr std::size_t alignment = 256;
  std::byte* memory_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace nibble
