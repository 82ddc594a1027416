// On a GPU, or on its emulation: logits are compared bit by bit, all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cuda/device_test_util.h"
#include "ops/sample/cuda/unlike_logits_cuda.h"

namespace nibble {
namespace {

using UnlikeLogitsOnTheGpu = OnTheGpu;

std::uint32_t unlike(const std::vector<float>& a, const std::vector<float>& b) {
  DeviceBuffer first = on_device(a), second = on_device(b), count = device_bytes(4, 0);
  count_unlike_logits_cuda(first.as<float>(), second.as<float>(), a.size(), count.as<std::uint32_t>(),
                           nullptr);
  std::uint32_t found = 0;
  count.copy_to(std::span(&found, 1));
  return found;
}

TEST_F(UnlikeLogitsOnTheGpu, CountsEveryLogitWhoseBitsDiffer) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{255}, std::size_t{257}, std::size_t{300'001}}) {
    std::vector<float> a(count);
    for (std::size_t i = 0; i < count; ++i) a[i] = static_cast<float>(i) * 0.25f - 7;
    std::vector<float> b = a;
    EXPECT_EQ(unlike(a, b), 0u) << count;
    b.back() = std::nextafter(b.back(), 1e9f);
    EXPECT_EQ(unlike(a, b), 1u) << count;
    for (float& logit : b) logit += 1;
    EXPECT_EQ(unlike(a, b), count);
  }
}

TEST_F(UnlikeLogitsOnTheGpu, LooksAtBitsAndNotAtValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(unlike({nan, 0.0f, 1.0f}, {nan, 0.0f, 1.0f}), 0u);
  EXPECT_EQ(unlike({nan, 0.0f, 1.0f}, {nan, -0.0f, 1.0f}), 1u);
}

}  // namespace
}  // namespace nibble
