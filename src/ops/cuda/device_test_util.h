// What tests on a GPU share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "tensor/device_buffer.h"

namespace nibble {

// Whether tests leave out their large cases: where "the GPU" is the emulation (ops/cuda/emulation), which
// takes seconds for what a GPU does in microseconds, and where NIBBLE_SMALL_CASES is set, for tools that slow
// it down as much.
#ifdef NIBBLE_GPU_EMULATION
inline const bool small_cases = true;
#else
inline const bool small_cases = std::getenv("NIBBLE_SMALL_CASES") != nullptr;
#endif

// Skips where there is none.
class OnTheGpu : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no usable GPU or driver";
  }
};

template <class T>
DeviceBuffer on_device(const std::vector<T>& elements) {
  Result<DeviceBuffer> buffer = DeviceBuffer::copy_of(std::span<const T>(elements));
  NIBBLE_CHECK(buffer.ok(), buffer.status().message());
  return std::move(buffer).value();
}

inline DeviceBuffer device_bytes(std::size_t bytes, std::uint8_t value) {
  Result<DeviceBuffer> buffer = DeviceBuffer::allocate(bytes);
  NIBBLE_CHECK(buffer.ok(), buffer.status().message());
  buffer->fill(value);
  return std::move(buffer).value();
}

}  // namespace nibble
