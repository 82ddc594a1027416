// On a GPU, or on its emulation: heads that are normed, rotated and kept, against the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/cuda/device_test_util.h"
#include "ops/op_test_util.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/cuda/turn_heads_cuda.h"
#include "ops/rope/rope.h"

namespace nibble {
namespace {

constexpr int rows = 5, heads = 4, kv_heads = 2, all_heads = heads + 2 * kv_heads, slots = 128;
constexpr float eps = 1e-6f;

// Half of what lies between two bfloat16, and what the sums' order may add.
float allowed(float value) { return std::fabs(value) / 256 + 1e-5f; }

class HeadsOnTheGpu : public OnTheGpu, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, HeadsOnTheGpu, testing::Values(64, 128));

// Of one kind, [rows, count, dims], out of rows of all.
std::vector<float> part_of(const std::vector<float>& qkv, int first, int count, int dims) {
  std::vector<float> part;
  for (int row = 0; row < rows; ++row) {
    const auto from = qkv.begin() + (row * all_heads + first) * dims;
    part.insert(part.end(), from, from + count * dims);
  }
  return part;
}

TEST_P(HeadsOnTheGpu, AreNormedTurnedAndKeptAsOnTheCpu) {
  const int dims = GetParam(), half = dims / 2;
  std::mt19937 random(1);
  const auto floats = [&](int count) { return random_floats(random, static_cast<std::size_t>(count)); };
  const std::vector<float> qkv = floats(rows * all_heads * dims), cos = floats(rows * half),
                           sin = floats(rows * half);
  const std::vector<Bf16> q_norm = random_bf16(random, static_cast<std::size_t>(dims)),
                          k_norm = random_bf16(random, static_cast<std::size_t>(dims));
  const std::vector<std::int32_t> kv_slots = {3, -1, 64, 127, 9};
  const std::size_t cache_bytes = static_cast<std::size_t>(kv_heads * slots * dims) * sizeof(Bf16);
  DeviceBuffer device_qkv = on_device(qkv), device_cos = on_device(cos), device_sin = on_device(sin),
               device_q_norm = on_device(q_norm), device_k_norm = on_device(k_norm),
               device_slots = on_device(kv_slots), keys = device_bytes(cache_bytes, 0xff),
               values = device_bytes(cache_bytes, 0xff),
               q = device_bytes(static_cast<std::size_t>(rows * heads * dims) * sizeof(Bf16), 0xff);
  const Status status = turn_heads_cuda({.qkv = device_qkv.as<float>(),
                                         .rows = rows,
                                         .heads = heads,
                                         .q_norm = device_q_norm.as<Bf16>(),
                                         .k_norm = device_k_norm.as<Bf16>(),
                                         .eps = eps,
                                         .cos = device_cos.as<float>(),
                                         .sin = device_sin.as<float>(),
                                         .kv_slots = device_slots.as<std::int32_t>(),
                                         .q = q.as<Bf16>(),
                                         .cache = {.keys = keys.data(),
                                                   .values = values.data(),
                                                   .kv_heads = kv_heads,
                                                   .slots = slots,
                                                   .head_dim = dims}},
                                        nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<Bf16> found_q(q.size() / 2), found_keys(cache_bytes / 2), found_values(cache_bytes / 2);
  q.copy_to(std::span(found_q));
  keys.copy_to(std::span(found_keys));
  values.copy_to(std::span(found_values));

  ThreadPool threads(1);
  OpContext context{.threads = threads};
  const auto turned = [&](int first, int count, const std::vector<Bf16>& weight) {
    std::vector<float> part = part_of(qkv, first, count, dims);
    head_rms_norm(context, {part.data(), weight.data(), rows, count, dims, eps});
    rope(context, {part.data(), cos.data(), sin.data(), rows, count, dims});
    return part;
  };
  const std::vector<float> expected_q = turned(0, heads, q_norm),
                           expected_k = turned(heads, kv_heads, k_norm),
                           expected_v = part_of(qkv, heads + kv_heads, kv_heads, dims);
  for (std::size_t i = 0; i < expected_q.size(); ++i)
    EXPECT_NEAR(found_q[i].to_float(), expected_q[i], allowed(expected_q[i])) << i;
  std::size_t kept = 0;
  for (int row = 0; row < rows; ++row) {
    const int slot = kv_slots[static_cast<std::size_t>(row)];
    if (slot < 0) continue;
    for (int head = 0; head < kv_heads; ++head) {
      const int chunk = (head * (slots / 64) + slot / 64) * 64 * dims;
      for (int d = 0; d < dims; ++d, ++kept) {
        const auto at = static_cast<std::size_t>((row * kv_heads + head) * dims + d);
        const auto key = static_cast<std::size_t>(chunk + KvBf16::key_at(slot % 64, d, dims)),
                   value = static_cast<std::size_t>(chunk + KvBf16::value_at(slot % 64, d));
        EXPECT_NEAR(found_keys[key].to_float(), expected_k[at], allowed(expected_k[at])) << row << ": " << d;
        EXPECT_EQ(found_values[value], Bf16::from_float(expected_v[at])) << row << ": " << d;
      }
    }
  }
  // Nothing else was written.
  const auto untouched = std::count(found_keys.begin(), found_keys.end(), Bf16{0xffff});
  EXPECT_EQ(static_cast<std::size_t>(untouched), found_keys.size() - kept);
}

}  // namespace
}  // namespace nibble
