// The owner of a block of host memory. Aligned to a cache line, so that any element type and any vector
// load may start at its beginning.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/status.h"
#include "tensor/tensor.h"

namespace nibble {

class Buffer {
 public:
  static constexpr std::size_t alignment = 64;
  // More than an x86-64 process can address.
  static constexpr std::size_t max_bytes = std::size_t{1} << 47;

  Buffer() = default;  // empty

  // The contents are unspecified until written.
  static Result<Buffer> allocate(std::size_t bytes) { return allocate_aligned(bytes, alignment); }

  // For what is written once and read in every step: in huge pages where the system gives them.
  static Result<Buffer> allocate_huge(std::size_t bytes) {
    constexpr std::size_t huge_page = std::size_t{2} << 20;
    NIBBLE_ASSIGN(Buffer buffer, allocate_aligned(bytes, huge_page));
    if (bytes >= huge_page) (void)madvise(buffer.data(), bytes, MADV_HUGEPAGE);
    return buffer;
  }

  static Result<Buffer> zeroed(std::size_t bytes) {
    NIBBLE_ASSIGN(Buffer buffer, allocate(bytes));
    if (bytes > 0) std::memset(buffer.data(), 0, bytes);
    return buffer;
  }

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }

  // A tensor that lies at `offset` of this buffer and is valid while the buffer lives (moving it is fine).
  TensorView tensor(DType dtype, const Shape& shape, std::size_t offset = 0) {
    const TensorView view{data() + offset, dtype, shape};
    NIBBLE_CHECK(offset <= size_ && view.bytes() <= size_ - offset);
    return view;
  }

 private:
  static Result<Buffer> allocate_aligned(std::size_t bytes, std::size_t to) {
    Buffer buffer;
    if (bytes == 0) return buffer;
    const auto refused = [&] {
      return resource_exhausted("no memory for a buffer of " + std::to_string(bytes) + " bytes");
    };
    if (bytes > max_bytes) return refused();
    const std::size_t rounded = (bytes + to - 1) / to * to;
    buffer.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(to, rounded)));
    if (buffer.memory_ == nullptr) return refused();
    buffer.size_ = bytes;
    return buffer;
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace nibble
