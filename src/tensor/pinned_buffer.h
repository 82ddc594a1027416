// The owner of host memory that a GPU copies from and to by itself, while the host goes on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace nibble {

class PinnedBuffer {
 public:
  PinnedBuffer() = default;  // empty

  // The contents are unspecified until written.
  static Result<PinnedBuffer> allocate(std::size_t bytes) {
    PinnedBuffer buffer;
    if (bytes == 0) return Result<PinnedBuffer>(std::move(buffer));
    void* memory = nullptr;
    if (cudaMallocHost(&memory, bytes) != cudaSuccess) {
      cudaGetLastError();  // a refusal leaves the device as it was, so it must not meet the next check
      return resource_exhausted("no pinned host memory for a buffer of " + std::to_string(bytes) + " bytes");
    }
    buffer.memory_.reset(static_cast<std::byte*>(memory));
    buffer.size_ = bytes;
    return Result<PinnedBuffer>(std::move(buffer));
  }

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }

  // The elements that begin at byte `offset`.
  template <class T>
  T* at(std::size_t offset) {
    NIBBLE_CHECK(offset % alignof(T) == 0 && offset <= size_);
    return reinterpret_cast<T*>(memory_.get() + offset);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { cudaFreeHost(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace nibble
