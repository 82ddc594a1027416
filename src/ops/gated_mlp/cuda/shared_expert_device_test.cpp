// On a GPU, or on its emulation: a shared expert in one launch has the bits of the launches it stands for.
#include <gtest/gtest.h>

#include "ops/gated_mlp/cuda/gated_mlp_cuda.h"
#include "ops/gated_mlp/cuda/shared_expert_cuda.h"
#include "ops/gated_mlp/gated_mlp.h"
#include "ops/linear/cuda/block_device_test_util.h"
#include "ops/linear/cuda/block_linear_cuda.h"
#include "ops/linear/cuda/linear_device_test_util.h"

namespace nibble {
namespace {

using SharedExpertOnTheGpu = OnTheGpu;

constexpr int most_rows = shared_expert_max_rows;

struct Shape {
  int hidden, width, up;
};

// A shared expert's matrices, and what the single launches make of rows.
template <class Matrix>
struct Expert;

template <>
struct Expert<DenseTiles> {
  DenseShape gate_up_shape, down_shape;
  DeviceBuffer gate_up, down;

  Expert(std::mt19937& random, const Shape& shape)
      : gate_up_shape{shape.up + shape.width, shape.hidden}, down_shape{shape.hidden, shape.width} {
    const auto tiles = [&](const DenseShape& of) {
      return tiles_of(random_bf16(random, static_cast<std::size_t>(of.rows * of.cols), 0.1f), of);
    };
    gate_up = tiles(gate_up_shape);
    down = tiles(down_shape);
  }
  DenseTiles gates() { return {gate_up.as<std::uint8_t>(), gate_up_shape}; }
  DenseTiles downs() { return {down.as<std::uint8_t>(), down_shape}; }
  static void multiply(const TokenTiles& x, const DenseTiles& weight, float* y) {
    LinearWorkspace workspace(x.tokens);
    const Status status = linear_cuda(
        {.x = x, .weight = weight, .y = y, .y_stride = weight.shape.rows, .workspace = workspace.get()},
        nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

template <>
struct Expert<BlockMatrices<E4m3Codes>> {
  RandomBlocks<E4m3Codes> gate_up, down;

  Expert(std::mt19937& random, const Shape& shape)
      : gate_up(random, 1, 1, shape.up + shape.width, shape.hidden),
        down(random, 1, 1, shape.hidden, shape.width) {
    gate_up.upload(ColumnOrder::steps);
    down.upload(ColumnOrder::steps);
  }
  BlockMatrices<E4m3Codes> gates() { return gate_up.view(); }
  BlockMatrices<E4m3Codes> downs() { return down.view(); }
  static void multiply(const TokenTiles& x, const BlockMatrices<E4m3Codes>& weight, float* y) {
    const Status status =
        block_linear_cuda({.x = x, .weight = weight, .y = y, .y_stride = weight.shape.rows}, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

template <>
struct Expert<BlockMatrices<Nvfp4Codes>> {
  static constexpr float odd_share = 0.75f;
  RandomNvfp4Blocks gate_up, down;

  Expert(std::mt19937& random, const Shape& shape)
      : gate_up(random, shape.up + shape.width, shape.hidden, odd_share),
        down(random, shape.hidden, shape.width, odd_share) {}
  BlockMatrices<Nvfp4Codes> gates() { return gate_up.view(); }
  BlockMatrices<Nvfp4Codes> downs() { return down.view(); }
  static void multiply(const TokenTiles& x, const BlockMatrices<Nvfp4Codes>& weight, float* y) {
    const Status status =
        block_linear_cuda({.x = x, .weight = weight, .y = y, .y_stride = weight.shape.rows}, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
  }
};

std::vector<float> floats_of(DeviceBuffer& buffer, std::size_t count) {
  std::vector<float> values(count);
  buffer.copy_to(std::span(values));
  return values;
}

template <class Matrix>
void compare(const Shape& shape, bool gated, unsigned seed) {
  std::mt19937 random(seed);
  Expert<Matrix> expert(random, shape);
  const DenseShape share_shape{1, shape.hidden};
  DeviceBuffer share_tiles =
      tiles_of(random_bf16(random, static_cast<std::size_t>(shape.hidden), 0.1f), share_shape);
  DeviceBuffer arrived = device_bytes(4, 0);
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  for (const int rows : {1, 3, most_rows}) {
    const auto count = static_cast<std::size_t>(rows);
    DeviceBuffer x = tokens_of(random_bf16(random, count * hidden, 1.0f), shape.hidden);
    const TokenTiles tokens{x.as<std::uint8_t>(), rows};
    const int stride = shape.up + shape.width;
    DeviceBuffer gate_up = device_bytes(count * static_cast<std::size_t>(stride) * 4, 0xff),
                 h = device_bytes(DenseShape{0, shape.width}.token_bytes(rows), 0xff),
                 expected = device_bytes(count * hidden * 4, 0xff), logits = device_bytes(count * 4, 0xff);
    expert.multiply(tokens, expert.gates(), gate_up.as<float>());
    ASSERT_TRUE(gate_rows_cuda({.gate_up = gate_up.as<float>(),
                                .stride = stride,
                                .up = shape.up,
                                .rows = rows,
                                .width = shape.width,
                                .unit = silu_unit,
                                .out = h.as<std::uint8_t>()},
                               nullptr)
                    .ok());
    expert.multiply({h.as<std::uint8_t>(), rows}, expert.downs(), expected.as<float>());
    const DenseTiles share{gated ? share_tiles.as<std::uint8_t>() : nullptr, share_shape};
    if (gated) Expert<DenseTiles>::multiply(tokens, share, logits.as<float>());

    DeviceBuffer own_h = device_bytes(DenseShape{0, shape.width}.token_bytes(rows), 0xff),
                 out = device_bytes(count * hidden * 4, 0xff), own_logits = device_bytes(count * 4, 0xff),
                 weight = device_bytes(4, 0xff), id = device_bytes(4, 0xff);
    const SharedExpertCudaArgs args{.x = tokens,
                                    .gate_up = expert.gates(),
                                    .down = expert.downs(),
                                    .width = shape.width,
                                    .up = shape.up,
                                    .unit = silu_unit,
                                    .share = share,
                                    .activations = own_h.as<std::uint8_t>(),
                                    .arrived = arrived.as<std::uint32_t>(),
                                    .out = out.as<float>(),
                                    .logits = gated ? own_logits.as<float>() : nullptr,
                                    .weight = rows == 1 ? weight.as<float>() : nullptr,
                                    .id = rows == 1 ? id.as<std::int32_t>() : nullptr};
    ASSERT_TRUE(shared_expert_takes(args.gate_up, args.down, shape.width, rows));
    const Status status = shared_expert_cuda(args, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(floats_of(out, count * hidden), floats_of(expected, count * hidden))
        << shape.hidden << " x " << shape.width << ", " << rows << " rows";
    if (gated) {
      EXPECT_EQ(floats_of(own_logits, count), floats_of(logits, count));
    }
    if (rows > 1) continue;
    // As a choice behind none: its weighted product is what the sum of a shared expert adds.
    std::vector<std::int32_t> ids(1);
    id.copy_to(std::span(ids));
    EXPECT_EQ(ids[0], 0);
    const float of_choice = floats_of(weight, 1)[0];
    std::vector<float> zeros(hidden), sum(hidden);
    const std::vector<float> product = floats_of(expected, hidden);
    const std::vector<float> logit = floats_of(logits, 1);
    ThreadPool threads(1);
    OpContext context{.threads = threads};
    add_shared(context, {.sum = sum.data(),
                         .shared = product.data(),
                         .logits = gated ? logit.data() : nullptr,
                         .rows = 1,
                         .hidden = shape.hidden});
    for (std::size_t i = 0; i < hidden; ++i) ASSERT_EQ(0.0f + of_choice * product[i], sum[i]) << i;
  }
}

TEST_F(SharedExpertOnTheGpu, InBf16ItHasTheBitsOfItsLaunches) {
  compare<DenseTiles>({192, 64, 64}, true, 1);
  compare<DenseTiles>({712, 192, 192}, true, 2);
  compare<DenseTiles>({2048, 512, 512}, true, 3);
  compare<DenseTiles>({1024, 320, 320}, false, 4);
}

TEST_F(SharedExpertOnTheGpu, InFp8ItHasTheBitsOfItsLaunches) {
  compare<BlockMatrices<E4m3Codes>>({192, 64, 64}, true, 5);
  compare<BlockMatrices<E4m3Codes>>({2048, 512, 512}, true, 6);
  compare<BlockMatrices<E4m3Codes>>({720, 192, 192}, false, 7);
}

TEST_F(SharedExpertOnTheGpu, InNvfp4ItHasTheBitsOfItsLaunches) {
  compare<BlockMatrices<Nvfp4Codes>>({192, 64, 64}, false, 8);
  compare<BlockMatrices<Nvfp4Codes>>({2048, 512, 512}, true, 9);
  compare<BlockMatrices<Nvfp4Codes>>({720, 192, 192}, false, 10);
}

TEST_F(SharedExpertOnTheGpu, RefusesShapesByName) {
  const SharedExpertCudaArgs nine{.x = {nullptr, 9}, .width = 64, .up = 64};
  EXPECT_NE(shared_expert_cuda(nine, nullptr).message().find("not 9 of 64"), std::string::npos);
  const SharedExpertCudaArgs odd{.x = {nullptr, 1}, .width = 72, .up = 80};
  EXPECT_NE(shared_expert_cuda(odd, nullptr).message().find("not 1 of 72"), std::string::npos);
  float weight = 0;
  const SharedExpertCudaArgs two{.x = {nullptr, 2}, .width = 64, .up = 64, .weight = &weight};
  EXPECT_NE(shared_expert_cuda(two, nullptr).message().find("not of 2"), std::string::npos);
}

}  // namespace
}  // namespace nibble
