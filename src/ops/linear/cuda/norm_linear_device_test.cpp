// On a GPU, or on its emulation: norm and dense product in one against the two kernels they stand for, bit
// for bit.
#include <gtest/gtest.h>

#include <string>

#include "ops/linear/cuda/linear_device_test_util.h"
#include "ops/linear/cuda/norm_linear_cuda.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

using NormLinearOnTheGpu = OnTheGpu;

struct Case {
  int rows, cols, top_k;
  int lacking = -1;  // a choice of no expert; top_k: all of them
};

std::vector<Case> cases() {
  // Tiles of several blocks and blocks of several tiles; K that no block of 64 ends with; a chunk without any
  // of it; more choices than are added up at once; more columns than gpt-oss has.
  std::vector<Case> some = {{128, 640, 4},  {70, 200, 2, 1}, {520, 160, 4, 2}, {64, 160, 4, 4},
                            {1, 16, 1},     {200, 2184, 6},  {70, 3096, 5, 4}, {64, 640, 8, 1},
                            {130, 4096, 4}, {64, 1000, 3, 0}};
  if (!small_cases) some.insert(some.end(), {{5120, 2880, 4}, {2880, 4096, 4}, {25024, 2880, 4}});
  return some;
}

// What a norm takes, and what it leaves.
struct NormRoom {
  int hidden, top_k;
  DeviceBuffer residual, residual_out, products, ids, expert_weights, weight, tiles;

  NormRoom(std::mt19937& random, int of_hidden, int of_top_k, int lacking = -1)
      : hidden(of_hidden),
        top_k(of_top_k),
        residual(on_device(random_floats(random, static_cast<std::size_t>(hidden)))),
        residual_out(device_bytes(residual.size(), 0xff)),
        products(on_device(random_floats(random, static_cast<std::size_t>(top_k * hidden)))),
        ids(on_device(ids_of(of_top_k, lacking))),
        expert_weights(on_device(random_floats(random, static_cast<std::size_t>(top_k)))),
        weight(on_device(random_bf16(random, static_cast<std::size_t>(hidden)))),
        tiles(device_bytes(DenseShape{0, hidden}.token_bytes(1), 0)) {}
  static std::vector<std::int32_t> ids_of(int top_k, int lacking) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(top_k), lacking == top_k ? -1 : 3);
    if (lacking >= 0 && lacking < top_k) ids[static_cast<std::size_t>(lacking)] = -1;
    return ids;
  }
  AddRmsNormCudaArgs args() {
    return {.residual = residual.as<float>(),
            .residual_out = residual_out.as<float>(),
            .experts = {.products = products.as<float>(),
                        .expert_ids = ids.as<std::int32_t>(),
                        .expert_weights = expert_weights.as<float>(),
                        .top_k = top_k},
            .weight = weight.as<Bf16>(),
            .out_tiles = tiles.as<std::uint8_t>(),
            .rows = 1,
            .hidden = hidden,
            .eps = 1e-5f};
  }
  // The new residual, which is absent again afterwards, as is the count of blocks.
  std::vector<std::uint32_t> take_residual() {
    std::vector<std::uint32_t> bits(residual_out.size() / 4);
    residual_out.copy_to(std::span(bits));
    residual_out.fill(0xff);
    return bits;
  }
};

template <class Word>
std::vector<Word> words_of(const DeviceBuffer& buffer) {
  std::vector<Word> words(buffer.size() / sizeof(Word));
  buffer.copy_to(std::span(words));
  return words;
}

TEST_F(NormLinearOnTheGpu, HasTheBitsOfTheNormAndTheProduct) {
  std::mt19937 random(1);
  for (const Case& c : cases()) {
    const DenseShape shape{c.rows, c.cols};
    const DeviceBuffer weights =
        tiles_of(random_bf16(random, static_cast<std::size_t>(c.rows * c.cols)), shape);
    DeviceBuffer bias = on_device(random_bf16(random, static_cast<std::size_t>(c.rows)));
    NormRoom norm(random, c.cols, c.top_k, c.lacking);
    DeviceBuffer y = device_bytes(static_cast<std::size_t>(c.rows) * 4, 0xff);
    LinearWorkspace workspace(1);
    LinearCudaArgs product{.x = {norm.tiles.as<std::uint8_t>(), 1},
                           .weight = {reinterpret_cast<const std::uint8_t*>(weights.data()), shape},
                           .bias = bias.as<Bf16>(),
                           .y = y.as<float>(),
                           .y_stride = c.rows,
                           .workspace = workspace.get()};
    ASSERT_TRUE(add_rms_norm_cuda(norm.args(), nullptr).ok());
    ASSERT_TRUE(linear_cuda(product, nullptr).ok());
    const auto expected = words_of<std::uint32_t>(y);
    const auto expected_residual = norm.take_residual();
    // Nobody brings activations, and the workspace goes from one kernel to the other and back.
    norm.tiles.fill(0xff);
    for (const int blocks : small_cases ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 1, 5, 131, 0, 0}) {
      y.fill(0xff);
      product.beside = blocks == 1 ? 1024 * 1024 : 0;  // a block that leaves no room, and the usual one
      product.blocks = blocks;
      const Status status = norm_linear_cuda(norm.args(), product, nullptr);
      ASSERT_TRUE(status.ok()) << status.message();
      const std::string name = std::to_string(c.rows) + " x " + std::to_string(c.cols) + ", " +
                               std::to_string(c.top_k) + " choices, " + std::to_string(blocks) + " blocks";
      EXPECT_EQ(words_of<std::uint32_t>(y), expected) << name;
      EXPECT_EQ(norm.take_residual(), expected_residual) << name;
    }
    ASSERT_TRUE(add_rms_norm_cuda(norm.args(), nullptr).ok());
    ASSERT_TRUE(linear_cuda(product, nullptr).ok());
    EXPECT_EQ(words_of<std::uint32_t>(y), expected);
  }
}

template <class Kv>
void qkv_has_the_bits_of_both() {
  std::mt19937 random(2);
  const int heads = 2, kv_heads = 1, cols = 352, slots = 192;
  const DenseShape shape{(heads + 2 * kv_heads) * 64, cols};
  const DeviceBuffer weights =
      tiles_of(random_bf16(random, static_cast<std::size_t>(shape.rows * cols)), shape);
  DeviceBuffer bias = on_device(random_bf16(random, static_cast<std::size_t>(shape.rows)));
  DeviceBuffer cos = on_device(random_floats(random, 32)), sin = on_device(random_floats(random, 32));
  for (const std::int32_t slot : {130, -1}) {
    NormRoom norm(random, cols, 4);
    DeviceBuffer place = on_device(std::vector<std::int32_t>{slot});
    DeviceBuffer q = device_bytes(std::size_t{heads} * 64 * 2, 0xee);
    DeviceBuffer keys = device_bytes(std::size_t{slots} * 64 * sizeof(typename Kv::Element), 0xee);
    DeviceBuffer values = device_bytes(keys.size(), 0xee);
    LinearWorkspace workspace(1);
    const QkvCudaArgs product{.x = {norm.tiles.as<std::uint8_t>(), 1},
                              .weight = {reinterpret_cast<const std::uint8_t*>(weights.data()), shape},
                              .bias = bias.as<Bf16>(),
                              .heads = heads,
                              .cos = cos.as<float>(),
                              .sin = sin.as<float>(),
                              .kv_slots = place.as<std::int32_t>(),
                              .q = q.as<Bf16>(),
                              .cache = {keys.data(), values.data(), kv_heads, slots, Kv::dtype},
                              .workspace = workspace.get()};
    ASSERT_TRUE(add_rms_norm_cuda(norm.args(), nullptr).ok());
    ASSERT_TRUE(qkv_cuda(product, nullptr).ok());
    const auto expected_q = words_of<std::uint8_t>(q), expected_keys = words_of<std::uint8_t>(keys),
               expected_values = words_of<std::uint8_t>(values);
    const auto expected_residual = norm.take_residual();
    q.fill(0xee), keys.fill(0xee), values.fill(0xee);
    const Status status = norm_qkv_cuda(norm.args(), product, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(words_of<std::uint8_t>(q), expected_q) << slot;
    EXPECT_EQ(words_of<std::uint8_t>(keys), expected_keys) << slot;
    EXPECT_EQ(words_of<std::uint8_t>(values), expected_values) << slot;
    EXPECT_EQ(norm.take_residual(), expected_residual) << slot;
  }
}

TEST_F(NormLinearOnTheGpu, QkvHasTheBitsOfTheNormAndTheProduct) { qkv_has_the_bits_of_both<KvBf16>(); }
TEST_F(NormLinearOnTheGpu, QkvInE4m3HasTheBitsOfTheNormAndTheProduct) { qkv_has_the_bits_of_both<KvE4m3>(); }

TEST_F(NormLinearOnTheGpu, RefusesWhatTheBlocksCannotMakeForThemselves) {
  std::mt19937 random(3);
  NormRoom norm(random, 128, 2);
  DeviceBuffer y = device_bytes(64 * 4, 0);
  const LinearCudaArgs product{.weight = {nullptr, {64, 128}}, .y = y.as<float>(), .y_stride = 64};
  const auto refused = [&](AddRmsNormCudaArgs args, const LinearCudaArgs& of) {
    const Status status = norm_linear_cuda(args, of, nullptr);
    return status.code() == StatusCode::invalid_argument && !norm_linear_takes(args, of.weight.shape);
  };
  AddRmsNormCudaArgs two_rows = norm.args(), in_place = norm.args(), no_experts = norm.args();
  two_rows.rows = 2;
  in_place.residual_out = norm.residual.as<float>();
  no_experts.experts = {};
  EXPECT_TRUE(refused(two_rows, product));
  EXPECT_TRUE(refused(in_place, product));
  EXPECT_TRUE(refused(no_experts, product));
  LinearCudaArgs of_other_columns = product;
  of_other_columns.weight.shape.cols = 192;
  EXPECT_TRUE(refused(norm.args(), of_other_columns));
  AddRmsNormCudaArgs wide = norm.args();
  wide.hidden = 4104;
  LinearCudaArgs of_wide = product;
  of_wide.weight.shape.cols = 4104;
  EXPECT_TRUE(refused(wide, of_wide));
  AddRmsNormCudaArgs many_choices = wide;  // no room for what they add
  many_choices.hidden = of_wide.weight.shape.cols = 4096;
  many_choices.experts.top_k = 8;
  EXPECT_TRUE(refused(many_choices, of_wide));
  LinearCudaArgs short_stride = product;
  short_stride.y_stride = 60;
  EXPECT_EQ(norm_linear_cuda(norm.args(), short_stride, nullptr).code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace nibble
