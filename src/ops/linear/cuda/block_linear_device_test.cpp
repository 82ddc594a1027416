// On a GPU: products with matrices in blocks of 128 columns.
#include <algorithm>
#include <cmath>

#include "ops/linear/cuda/block_device_test_util.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/cuda/narrow_linear_cuda.h"
#include "ops/moe/cuda/moe_cuda.h"

namespace nibble {
namespace {

// By row or in blocks.
class Fp8OnTheGpu : public OnTheGpu, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Scales, Fp8OnTheGpu, testing::Values(false, true),
                         [](const auto& each) { return each.param ? "OfRows" : "OfBlocks"; });

TEST_P(Fp8OnTheGpu, ProductsAreNearDoublePrecisionAndARowsBitsDependOnNoOther) {
  if (IsSkipped()) return;
  std::mt19937 random(1);
  struct Case {
    int rows, cols;
  };
  // Of some a block has several granules, and of the widest K is more than its warps hold activations of.
  for (const Case& each :
       {Case{144, 336}, Case{32, 16}, Case{16, 2288}, Case{48, 4400}, Case{272, 1216}, Case{8800, 144}}) {
    if (small_cases && each.rows > 200) continue;
    RandomBlocks<E4m3Codes> matrix(random, 1, 1, each.rows, each.cols);
    if (GetParam()) matrix.scale_rows(random);
    matrix.narrow = each.cols == 336;
    matrix.upload(ColumnOrder::steps);
    const int tokens = small_cases ? 37 : 200;
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * each.cols));
    const std::vector<float> y = product_on_gpu(matrix, x, BlockLinearPath::many);
    std::vector<float> floats;
    for (const Bf16 value : x) floats.push_back(value.to_float());
    double apart = 0, norm = 0;
    for (int token = 0; token < tokens; token += 9) {
      for (int row = 0; row < each.rows; ++row) {
        const double exact = matrix.product(0, row, floats.data() + token * each.cols);
        apart += std::pow(y[static_cast<std::size_t>(token * each.rows + row)] - exact, 2);
        norm += exact * exact;
      }
    }
    EXPECT_LT(std::sqrt(apart / norm), 1e-5) << each.rows << " x " << each.cols;
    for (const int count : {1, 8, 19, 32, 37}) {
      const std::vector<Bf16> first(x.begin(), x.begin() + count * each.cols);
      const std::vector<float> few = product_on_gpu(matrix, first, BlockLinearPath::few);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), y.begin())) << count << " of " << tokens;
    }
  }
}

// x is one of the unit vectors, so that outputs are columns of the matrix.
TEST_P(Fp8OnTheGpu, ValuesAreAllCodesTimesTheirScales) {
  if (IsSkipped()) return;
  std::mt19937 random(2);
  RandomBlocks<E4m3Codes> matrix(random, 1, 1, 256, 16);
  for (std::size_t i = 0; i < matrix.codes.size(); ++i)
    matrix.codes[i] = static_cast<std::uint8_t>(i / 16 + i % 16);
  matrix.scales = {0x1.234567p-9f, 0x1.8p+90f};
  if (GetParam()) matrix.scale_rows(random);
  matrix.upload(ColumnOrder::steps);
  std::vector<Bf16> x(16 * 16);
  for (std::size_t i = 0; i < 16; ++i) x[i * 16 + i] = Bf16::from_float(1);
  const std::vector<float> y = product_on_gpu(matrix, x);
  // A code that is none makes the sums of all rows none that share its factor.
  const auto of_no_number = [](int row) {
    bool any = false;
    for (int other = row / 16 * 16 + row % 2; other < row / 16 * 16 + 16; other += 2) {
      for (int col = 0; col < 16; ++col) any = any || (other + col) % 128 == 127;
    }
    return any;
  };
  for (int row = 0; row < 256; ++row) {
    for (int col = 0; col < 16; ++col) {
      const float found = y[static_cast<std::size_t>(col * 256 + row)];
      if (of_no_number(row)) {
        EXPECT_TRUE(std::isnan(found)) << row << ", " << col;
      } else {
        EXPECT_EQ(found, matrix.value(0, row, col)) << row << ", " << col;
      }
    }
  }
}

// In one rounding, whatever the kernel.
TEST_F(OnTheGpu, AScaleOfARowMultipliesTheFinishedSum) {
  std::mt19937 random(4);
  RandomBlocks<E4m3Codes> scaled(random, 1, 1, 48, 1216);
  scaled.scale_rows(random);
  for (float& scale : scaled.scales) scale *= 1.2345f;
  scaled.upload(ColumnOrder::steps);
  RandomBlocks<E4m3Codes> plain(random, 1, 1, 48, 1216);
  plain.codes = scaled.codes;
  std::fill(plain.scales.begin(), plain.scales.end(), 1.0f);
  plain.upload(ColumnOrder::steps);
  for (const int tokens : {3, 37}) {
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * 1216));
    for (const BlockLinearPath path : {BlockLinearPath::few, BlockLinearPath::many}) {
      const std::vector<float> y = product_on_gpu(scaled, x, path), totals = product_on_gpu(plain, x, path);
      for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], totals[i] * scaled.scales[i % 48]) << i;
    }
  }
}

struct Nvfp4Matrix : RandomNvfp4Blocks {
  using RandomNvfp4Blocks::RandomNvfp4Blocks;

  std::vector<float> product(const std::vector<Bf16>& x, BlockLinearPath path) {
    const int tokens = static_cast<int>(x.size()) / shape.cols;
    DeviceBuffer tiles = tokens_of(x, shape.cols);
    std::vector<float> result(static_cast<std::size_t>(tokens * shape.rows));
    DeviceBuffer y = device_bytes(result.size() * 4, 0xff);
    const Status status =
        block_linear_cuda(BlockLinearCudaArgs<Nvfp4Codes>{.x = {tiles.as<std::uint8_t>(), tokens},
                                                          .weight = view(),
                                                          .y = y.as<float>(),
                                                          .y_stride = shape.rows,
                                                          .path = path},
                          nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
    y.copy_to(std::span(result));
    return result;
  }
};

// Codes times scales of sixteens are exact, and the matrix's own scale multiplies the sum of a block.
TEST_F(OnTheGpu, Nvfp4IsNearDoublePrecisionByBothKernels) {
  std::mt19937 random(3);
  constexpr int rows = 48, cols = 208, tokens = 37, few_tokens = 32;
  Nvfp4Matrix matrix(random, rows, cols);
  const std::vector<Bf16> x = random_bf16(random, std::size_t{tokens} * cols),
                          first(x.begin(), x.begin() + few_tokens * cols);
  const std::vector<float> few = matrix.product(first, BlockLinearPath::few),
                           many = matrix.product(x, BlockLinearPath::many);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  double apart = 0, norm = 0;
  for (std::size_t i = 0; i < many.size(); ++i) {
    double exact = 0;
    for (int col = 0; col < cols; ++col) {
      exact += double{matrix.host.unscaled(0, static_cast<int>(i) % rows, col)} *
               double{x[i / rows * cols + static_cast<std::size_t>(col)].to_float()};
    }
    exact *= double{matrix.host.tensor_scales[0]};
    apart += (double{many[i]} - exact) * (double{many[i]} - exact);
    norm += exact * exact;
  }
  EXPECT_LT(std::sqrt(apart / norm), 1e-5);
}

// Shapes of products of up to eight rows: one pass of K and more, with a last block of a single sixteen, of a
// half or whole; matrices of fewer granules than multiprocessors, and of so many that totals do not all wait
// together.
struct FewRowsShape {
  int rows, cols;
};
std::vector<FewRowsShape> few_rows_shapes() {
  return {{32, 2048},
          {48, 2064},
          {80, 2112},
          {112, 4096},
          {16, 7168},
          {16, 16384},
          {small_cases ? 592 : 20000, 2064}};
}

TEST_P(Fp8OnTheGpu, UpToEightRowsHaveTheBitsOfManyWhateverK) {
  if (IsSkipped()) return;
  std::mt19937 random(5);
  for (const auto& [rows, cols] : few_rows_shapes()) {
    RandomBlocks<E4m3Codes> matrix(random, 1, 1, rows, cols);
    if (GetParam()) matrix.scale_rows(random);
    matrix.upload(ColumnOrder::steps);
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(8 * cols));
    const std::vector<float> many = product_on_gpu(matrix, x, BlockLinearPath::many);
    for (const int count : {1, 2, 3, 5, 7, 8}) {
      const std::vector<float> few =
          product_on_gpu(matrix, {x.begin(), x.begin() + count * cols}, BlockLinearPath::few);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()))
          << count << " by " << rows << " x " << cols;
    }
  }
}

// A last stage of one k64 block or of both; tiles that lack granules, blocks that lack tiles, and so many
// tiles that a block has two; groups of rows that are full and not.
TEST_P(Fp8OnTheGpu, SomeRowsHaveTheBitsOfMany) {
  if (IsSkipped()) return;
  std::mt19937 random(7);
  for (const auto& [rows, cols] :
       {std::pair{16, 2064}, {80, 336}, {336, 1152}, {small_cases ? 1040 : 9232, 400}}) {
    RandomBlocks<E4m3Codes> matrix(random, 1, 1, rows, cols);
    if (GetParam()) matrix.scale_rows(random);
    matrix.upload(ColumnOrder::steps);
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(150 * cols));
    const std::vector<float> many = product_on_gpu(matrix, x, BlockLinearPath::many);
    for (const int count : {1, 9, 16, 23, 32, 33, 64, 65, 128, 150}) {
      const std::vector<float> some =
          product_on_gpu(matrix, {x.begin(), x.begin() + count * cols}, BlockLinearPath::some);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), many.begin()))
          << count << " by " << rows << " x " << cols;
    }
  }
}

TEST_F(OnTheGpu, UpToEightRowsOfNvfp4HaveTheBitsOfManyWhateverK) {
  std::mt19937 random(6);
  for (const auto& [rows, cols] : few_rows_shapes()) {
    Nvfp4Matrix matrix(random, rows, cols);
    // Factors that no checkpoint has: each block's and each row's tell.
    std::vector<BlockFactors> factors;
    for (std::size_t i = 0; i < matrix.shape.factors(); ++i)
      factors.push_back({1 + 0.01f * static_cast<float>(i % 89), 2 + 0.01f * static_cast<float>(i % 97)});
    matrix.factors = on_device(factors);
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(8 * cols));
    const std::vector<float> many = matrix.product(x, BlockLinearPath::many);
    for (const int count : {1, 2, 3, 5, 7, 8}) {
      const std::vector<float> few =
          matrix.product({x.begin(), x.begin() + count * cols}, BlockLinearPath::few);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()))
          << count << " by " << rows << " x " << cols;
    }
  }
}

TEST_F(OnTheGpu, ANarrowProductBesideAWideOneHasTheBitsOfALaunchOfItsOwn) {
  std::mt19937 random(9);
  for (const auto& [outputs, cols] : {std::pair{64, 336}, {70, 1216}}) {
    RandomBlocks<E4m3Codes> wide(random, 1, 1, 144, cols);
    wide.upload(ColumnOrder::steps);
    const DenseShape shape{outputs, cols};
    DeviceBuffer tiles = tiles_of(random_bf16(random, static_cast<std::size_t>(outputs * cols)), shape);
    const DenseTiles narrow{tiles.as<std::uint8_t>(), shape};
    for (const int tokens : {1, 3, 8}) {
      const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * cols));
      DeviceBuffer packed = tokens_of(x, cols);
      const TokenTiles of_x{packed.as<std::uint8_t>(), tokens};
      std::vector<float> alone(static_cast<std::size_t>(tokens * outputs)), beside(alone.size());
      std::vector<float> of_wide(static_cast<std::size_t>(tokens * wide.shape.rows));
      DeviceBuffer y = device_bytes(alone.size() * 4, 0xff), y_wide = device_bytes(of_wide.size() * 4, 0xff);
      LinearWorkspace workspace(tokens);
      ASSERT_TRUE(linear_cuda({.x = of_x,
                               .weight = narrow,
                               .y = y.as<float>(),
                               .y_stride = outputs,
                               .workspace = workspace.get()},
                              nullptr)
                      .ok());
      y.copy_to(std::span(alone));
      y = device_bytes(alone.size() * 4, 0xff);
      ASSERT_TRUE(block_linear_cuda(BlockLinearCudaArgs<E4m3Codes>{.x = of_x,
                                                                   .weight = wide.view(),
                                                                   .y = y_wide.as<float>(),
                                                                   .y_stride = wide.shape.rows,
                                                                   .lets_beside = true},
                                    nullptr)
                      .ok());
      ASSERT_TRUE(
          narrow_linear_cuda(
              {.x = of_x, .weight = narrow, .y = y.as<float>(), .y_stride = outputs, .rows_are_there = true},
              nullptr)
              .ok());
      y.copy_to(std::span(beside));
      y_wide.copy_to(std::span(of_wide));
      EXPECT_EQ(beside, alone) << outputs << " x " << cols << ", " << tokens;
      EXPECT_EQ(of_wide, product_on_gpu(wide, x)) << cols << ", " << tokens;
    }
  }
}

TEST_F(OnTheGpu, NarrowProductsOfWhatIsNotNarrowAreRefusedByName) {
  const DenseTiles weight{nullptr, {64, 128}}, wide{nullptr, {320, 128}};
  EXPECT_NE(narrow_linear_cuda({.x = {nullptr, 9}, .weight = weight, .y_stride = 64}, nullptr)
                .message()
                .find("not 9 and 64"),
            std::string::npos);
  EXPECT_NE(narrow_linear_cuda({.x = {nullptr, 1}, .weight = wide, .y_stride = 320}, nullptr)
                .message()
                .find("not 1 and 320"),
            std::string::npos);
  EXPECT_NE(narrow_linear_cuda({.x = {nullptr, 1}, .weight = weight, .y_stride = 60}, nullptr)
                .message()
                .find("not 60"),
            std::string::npos);
  EXPECT_FALSE(
      block_linear_cuda(
          BlockLinearCudaArgs<E4m3Codes>{
              .x = {nullptr, 300}, .weight = {.shape = {64, 128}}, .y_stride = 64, .lets_beside = true},
          nullptr)
          .ok());
}

TEST_F(OnTheGpu, MatricesThatAreNoBlocksAreRefusedByName) {
  const Status odd = repack_blocks_cuda(BlockRepack<E4m3Codes>{.shape = {24, 32}}, nullptr);
  EXPECT_NE(odd.message().find("not 24 x 32"), std::string::npos) << odd.message();
  const Status some = block_linear_cuda(
      BlockLinearCudaArgs<Nvfp4Codes>{
          .x = {nullptr, 9}, .weight = {.shape = {32, 64}}, .y_stride = 32, .path = BlockLinearPath::some},
      nullptr);
  EXPECT_NE(some.message().find("of FP8 weights alone"), std::string::npos) << some.message();
  const BlockLinearCudaArgs<E4m3Codes> args{.weight = {.shape = {32, 40}}};
  EXPECT_NE(block_linear_cuda(args, nullptr).message().find("not 32 x 40"), std::string::npos);
}

}  // namespace
}  // namespace nibble
