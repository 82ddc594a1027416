// The owner of a block of device memory, the twin of Buffer. Aligned to 256 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "tensor/cuda_check.h"

namespace nibble {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;  // empty

  // On the current device. The contents are unspecified until written.
  static Result<DeviceBuffer> allocate(std::size_t bytes) {
    DeviceBuffer buffer;
    if (bytes == 0) return Result<DeviceBuffer>(std::move(buffer));
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      cudaGetLastError();  // a refusal leaves the device as it was, so it must not meet the next check
      return resource_exhausted("no device memory for a buffer of " + std::to_string(bytes) + " bytes");
    }
    buffer.memory_.reset(static_cast<std::byte*>(memory));
    buffer.size_ = bytes;
    return Result<DeviceBuffer>(std::move(buffer));
  }

  // A buffer with a copy of the elements.
  template <class T>
  static Result<DeviceBuffer> copy_of(std::span<const T> elements) {
    static_assert(std::is_trivially_copyable_v<T>);
    NIBBLE_ASSIGN(DeviceBuffer buffer, allocate(elements.size_bytes()));
    cuda_check(cudaMemcpy(buffer.data(), elements.data(), elements.size_bytes(), cudaMemcpyHostToDevice));
    return Result<DeviceBuffer>(std::move(buffer));
  }

  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }

  template <class T>
  T* as() {
    NIBBLE_CHECK(size_ % sizeof(T) == 0);
    return reinterpret_cast<T*>(memory_.get());
  }

  // Every byte becomes `value`; ordered like any work on the default stream.
  void fill(std::uint8_t value) {
    if (size_ > 0) cuda_check(cudaMemset(memory_.get(), value, size_));
  }

  // Waits for the device and copies everything back.
  template <class T>
  void copy_to(std::span<T> elements) const {
    NIBBLE_CHECK(elements.size_bytes() == size_);
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(elements.data(), memory_.get(), size_, cudaMemcpyDeviceToHost));
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { cudaFree(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace nibble
