#include "ops/gated_delta/delta_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "ops/gated_delta/delta_test_util.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

// The whole mixer in two steps, which end inside the third chunk: the outputs of both.
std::vector<float> mix(const DeltaKernels& kernels, const DeltaShape& shape) {
  constexpr int rows = 150, first_step = 70;
  ThreadPool threads(1);
  OpContext context{.threads = threads, .deltas = kernels};
  std::mt19937 random(5);
  const auto floats = [&](int count, float most) {
    return random_floats(random, static_cast<std::size_t>(count), most);
  };
  const std::vector<float> x = floats(rows * shape.channels(), 2), z = floats(rows * shape.values(), 30),
                           b = floats(rows * shape.value_heads, 2), a = floats(rows * shape.value_heads, 2),
                           taps = floats(shape.taps * shape.channels(), 1),
                           bias = floats(shape.value_heads, 1), weight = floats(shape.value_dim, 1);
  const std::vector<float> rate(static_cast<std::size_t>(shape.value_heads), 0.02f);
  std::vector<float> qkv(x.size(), NAN), out(static_cast<std::size_t>(rows * shape.values()), NAN);
  DeltaSlots slots(shape, 1);
  for (int begin = 0; begin < rows; begin = begin == 0 ? first_step : rows) {
    const StateRows step{.row_count = begin == 0 ? first_step : rows - first_step, .first_position = begin};
    float* convolved = qkv.data() + begin * shape.channels();
    short_convolution(context, {.x = x.data() + begin * shape.channels(),
                                .weight = taps.data(),
                                .sequences = {&step, 1},
                                .layer = slots.layer(),
                                .out = convolved});
    gated_delta(context, {.qkv = convolved,
                          .b = b.data() + begin * shape.value_heads,
                          .a = a.data() + begin * shape.value_heads,
                          .gates = {.rate = rate.data(), .bias = bias.data()},
                          .sequences = {&step, 1},
                          .layer = slots.layer(),
                          .out = out.data() + begin * shape.values()});
  }
  gated_head_norm(context, {.x = out.data(),
                            .z = z.data(),
                            .weight = weight.data(),
                            .rows = rows,
                            .heads = shape.value_heads,
                            .head_dim = shape.value_dim,
                            .eps = 1e-6f});
  return out;
}

class DeltaKernelsOfThisMachine : public testing::TestWithParam<const DeltaKernels*> {};

TEST_P(DeltaKernelsOfThisMachine, GiveTheBitsOfTheScalarOnes) {
  if (!GetParam()->supported()) GTEST_SKIP() << "this machine lacks the instructions";
  // Whole registers, and dimensions that leave rests of every kind.
  for (const DeltaShape& shape :
       {DeltaShape{.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128, .taps = 4},
        DeltaShape{.key_heads = 2, .value_heads = 4, .key_dim = 24, .value_dim = 40, .taps = 4},
        DeltaShape{.key_heads = 1, .value_heads = 1, .key_dim = 17, .value_dim = 83, .taps = 2},
        DeltaShape{.key_heads = 3, .value_heads = 3, .key_dim = 7, .value_dim = 5, .taps = 1}}) {
    const std::vector<float> expected = mix(delta_kernels().back(), shape), got = mix(*GetParam(), shape);
    for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
    EXPECT_EQ(std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)), 0)
        << shape.key_dim << " x " << shape.value_dim;
  }
}

std::vector<const DeltaKernels*> vector_kernels() {
  std::vector<const DeltaKernels*> all;
  for (const DeltaKernels& each : delta_kernels().first(delta_kernels().size() - 1)) all.push_back(&each);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, DeltaKernelsOfThisMachine, testing::ValuesIn(vector_kernels()),
                         [](const auto& param_info) { return std::string(param_info.param->name); });

}  // namespace
}  // namespace nibble
