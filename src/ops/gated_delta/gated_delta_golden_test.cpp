// The whole mixer against transformers, on what tools/goldens/gated_delta.py wrote.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "ops/gated_delta/delta_recurrence.h"
#include "ops/gated_delta/delta_test_util.h"
#include "ops/gated_delta/gated_delta.h"

namespace nibble {
namespace {

constexpr DeltaShape shape{.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 12, .taps = 4};
constexpr int rows = 131;

class Golden {
 public:
  Golden() {
    std::ifstream file(NIBBLE_SOURCE_DIR "/tests/data/gated_delta/mixer.f32", std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  std::vector<float> next(int count) {
    const std::size_t size = static_cast<std::size_t>(count) * sizeof(float);
    std::vector<float> values(static_cast<std::size_t>(count));
    if (at_ + size > bytes_.size()) {
      ADD_FAILURE() << "mixer.f32 is short";
      return values;
    }
    std::memcpy(values.data(), bytes_.data() + at_, size);
    at_ += size;
    return values;
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::vector<char> bytes_;
  std::size_t at_ = 0;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& wanted, double most) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], wanted[i], most * (1 + std::fabs(wanted[i]))) << "at " << i;
}

TEST(GatedDelta, AgreesWithTransformersFromTheProjectionsToTheNorm) {
  Golden golden;
  const std::vector<float> x = golden.next(rows * shape.channels());
  const std::vector<float> by_channel = golden.next(shape.channels() * shape.taps);
  const std::vector<float> a_log = golden.next(shape.value_heads), bias = golden.next(shape.value_heads);
  const std::vector<float> b = golden.next(rows * shape.value_heads);
  const std::vector<float> a = golden.next(rows * shape.value_heads);
  const std::vector<float> z = golden.next(rows * shape.values()), weight = golden.next(shape.value_dim);
  const std::vector<float> convolved = golden.next(rows * shape.channels());
  const std::vector<float> wanted = golden.next(rows * shape.values());
  const std::vector<float> normed = golden.next(rows * shape.values());
  ASSERT_TRUE(golden.at_end());

  std::vector<float> taps(by_channel.size()), rate;
  for (int tap = 0; tap < shape.taps; ++tap) {
    for (int c = 0; c < shape.channels(); ++c)
      taps[static_cast<std::size_t>(tap * shape.channels() + c)] =
          by_channel[static_cast<std::size_t>(c * shape.taps + tap)];
  }
  for (const float value : a_log) rate.push_back(std::exp(value));
  const DeltaGates gates{.rate = rate.data(), .bias = bias.data()};
  const auto truth = delta_recurrence<float>(shape, gates, convolved, b, a);
  expect_near(truth, wanted, 1e-5);

  ThreadPool threads(2);
  OpContext context{threads};
  DeltaSlots slots(shape, 1);
  const StateRows all{.row_count = rows};
  std::vector<float> qkv(x.size(), NAN), out(wanted.size(), NAN);
  short_convolution(context, {.x = x.data(),
                              .weight = taps.data(),
                              .sequences = {&all, 1},
                              .layer = slots.layer(),
                              .out = qkv.data()});
  expect_near(qkv, convolved, 1e-6);
  gated_delta(context, {.qkv = qkv.data(),
                        .b = b.data(),
                        .a = a.data(),
                        .gates = gates,
                        .sequences = {&all, 1},
                        .layer = slots.layer(),
                        .out = out.data()});
  expect_near(out, wanted, 1e-5);
  gated_head_norm(context, {.x = out.data(),
                            .z = z.data(),
                            .weight = weight.data(),
                            .rows = rows,
                            .heads = shape.value_heads,
                            .head_dim = shape.value_dim,
                            .eps = 1e-6f});
  expect_near(out, normed, 1e-4);
}

}  // namespace
}  // namespace nibble
