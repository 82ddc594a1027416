// Room at a multiple of 64, as ops want their workspaces, for those who run an op now and then.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace nibble {

class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size) : lines_((size + 63) / 64), size_(size) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()); }
  std::span<std::byte> span() { return {data(), size_}; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
  std::size_t size_;
};

}  // namespace nibble
