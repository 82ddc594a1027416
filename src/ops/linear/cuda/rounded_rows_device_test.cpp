// On a GPU: rows rounded to FP8, and products of those with matrices in FP8.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/linear/cuda/block_device_test_util.h"
#include "ops/linear/cuda/rounded_rows.h"

namespace nibble {
namespace {

struct Rounded {
  std::vector<std::uint8_t> codes;  // [rows, rounded_row_bytes]
  std::vector<float> scales;
};

Rounded rounded_on_gpu(const std::vector<Bf16>& x, int cols, ColumnOrder order, bool tiles) {
  const int rows = static_cast<int>(x.size()) / cols;
  DeviceBuffer plain = on_device(x), packed = tokens_of(x, cols);
  Rounded found{std::vector<std::uint8_t>(static_cast<std::size_t>(rows * rounded_row_bytes(cols))),
                std::vector<float>(static_cast<std::size_t>(rows))};
  DeviceBuffer codes = device_bytes(found.codes.size(), 0xcd),
               scales = device_bytes(found.scales.size() * 4, 0xcd);
  RoundRowsCudaArgs args{
      .rows = rows, .cols = cols, .order = order, .to = {codes.as<std::uint8_t>(), scales.as<float>()}};
  if (tiles) {
    args.tiles = {packed.as<std::uint8_t>(), rows};
  } else {
    args.x = plain.as<Bf16>();
    args.x_stride = cols;
  }
  round_rows_cuda(args, nullptr);
  codes.copy_to(std::span(found.codes));
  scales.copy_to(std::span(found.scales));
  return found;
}

// What rounded_rows.h says of a row, in the order of its columns.
float scale_of(std::span<const Bf16> row) {
  float largest = 0;
  for (const Bf16 value : row) {
    const float magnitude = std::abs(value.to_float());
    if (!std::isfinite(magnitude)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, magnitude);
  }
  if (largest == 0) return 1;
  float scale = 0x1p-100f;
  while (largest / scale > 448) scale *= 2;
  return scale;
}

// The code of a column, taken from where the layout has it.
std::uint8_t code_at(const Rounded& rows, int row, int col, int cols, ColumnOrder order) {
  const int in_block = col % block_k, sixteen = in_block / 16;
  for (int word = 0; word < 4; ++word) {
    for (int byte = 0; byte < 4; ++byte) {
      if (rounded_element(order, word, byte) != in_block % 16) continue;
      return rows.codes[static_cast<std::size_t>(row * rounded_row_bytes(cols) + col / block_k * block_k +
                                                 rounded_word_place(order, sixteen, word) + byte)];
    }
  }
  return 0xcd;
}

// Every bfloat16 beside larger ones, up to 2^16 times as large.
TEST_F(OnTheGpu, RowsAreRoundedToTheNearestCodesOfTheirScale) {
  constexpr int cols = 144;
  std::vector<Bf16> x;
  for (int bits = 0; bits < 1 << 16; bits += small_cases ? 37 : 1)
    x.push_back({static_cast<std::uint16_t>(bits)});
  std::mt19937 random(5);
  std::shuffle(x.begin(), x.end(), random);
  // Neighbours of one size share a row, so that few rows have a value that is none.
  std::stable_sort(x.begin(), x.end(), [](Bf16 a, Bf16 b) { return (a.bits & 0x7800) < (b.bits & 0x7800); });
  x.resize(x.size() / cols * cols);
  for (const bool tiles : {false, true}) {
    for (const ColumnOrder order : {ColumnOrder::quarters, ColumnOrder::steps}) {
      const Rounded found = rounded_on_gpu(x, cols, order, tiles);
      for (std::size_t row = 0; row < found.scales.size(); ++row) {
        const std::span<const Bf16> values = std::span(x).subspan(row * cols, cols);
        const float scale = scale_of(values);
        if (std::isnan(scale)) {
          EXPECT_TRUE(std::isnan(found.scales[row])) << row;
          continue;
        }
        ASSERT_EQ(found.scales[row], scale) << row;
        for (int col = 0; col < cols; ++col) {
          const E4m3 expected = E4m3::from_float(values[static_cast<std::size_t>(col)].to_float() / scale);
          ASSERT_EQ(code_at(found, static_cast<int>(row), col, cols, order), expected.bits)
              << row << ", " << col;
        }
        for (int col = cols; col < rounded_row_bytes(cols); ++col)
          ASSERT_EQ(code_at(found, static_cast<int>(row), col, cols, order), 0) << row << ", " << col;
      }
    }
  }
}

std::vector<float> rounded_product_on_gpu(RandomBlocks<E4m3Codes>& matrix, const std::vector<Bf16>& x) {
  return product_on_gpu(matrix, x, BlockLinearPath::fastest, true);
}

class RoundedOnTheGpu : public OnTheGpu, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Scales, RoundedOnTheGpu, testing::Values(false, true),
                         [](const auto& each) { return each.param ? "OfRows" : "OfBlocks"; });

TEST_F(OnTheGpu, ScalesComeOnceForEachCopy) {
  std::mt19937 random(6);
  const std::vector<Bf16> x = random_bf16(random, 3 * 16);
  DeviceBuffer plain = on_device(x), codes = device_bytes(3 * 128, 0),
               scales = device_bytes(3 * 20 * 4, 0xcd);
  round_rows_cuda({.x = plain.as<Bf16>(),
                   .x_stride = 16,
                   .rows = 3,
                   .cols = 16,
                   .to = {codes.as<std::uint8_t>(), scales.as<float>()},
                   .copies = 20},
                  nullptr);
  std::vector<float> found(3 * 20);
  scales.copy_to(std::span(found));
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(found[i], scale_of(std::span(x).subspan(i / 20 * 16, 16))) << i;
}

TEST_P(RoundedOnTheGpu, ProductsAreNearThoseOfRoundedRowsAndARowsBitsDependOnNoOther) {
  if (IsSkipped()) return;
  std::mt19937 random(1);
  struct Case {
    int rows, cols;
  };
  for (const Case& each :
       {Case{144, 336}, Case{32, 16}, Case{16, 2288}, Case{48, 4400}, Case{272, 1216}, Case{8800, 144}}) {
    if (small_cases && each.rows > 200) continue;
    RandomBlocks<E4m3Codes> matrix(random, 1, 1, each.rows, each.cols);
    if (GetParam()) matrix.scale_rows(random);
    matrix.upload(ColumnOrder::steps);
    const int tokens = small_cases ? 37 : 300;
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * each.cols));
    const std::vector<float> y = rounded_product_on_gpu(matrix, x);
    double apart = 0, norm = 0;
    for (int token = 0; token < tokens; token += 9) {
      const std::span<const Bf16> row = std::span(x).subspan(static_cast<std::size_t>(token * each.cols),
                                                             static_cast<std::size_t>(each.cols));
      const float scale = scale_of(row);
      std::vector<float> rounded;
      for (const Bf16 value : row)
        rounded.push_back(E4m3::from_float(value.to_float() / scale).to_float() * scale);
      for (int of = 0; of < each.rows; ++of) {
        const double exact = matrix.product(0, of, rounded.data());
        apart += std::pow(y[static_cast<std::size_t>(token * each.rows + of)] - exact, 2);
        norm += exact * exact;
      }
    }
    RecordProperty("apart", std::to_string(std::sqrt(apart / norm)));
    EXPECT_LT(std::sqrt(apart / norm), 1e-3) << each.rows << " x " << each.cols;
    for (const int count : {1, 8, 19, 33, 37, 70}) {
      if (count > tokens) continue;
      const std::vector<Bf16> first(x.begin(), x.begin() + count * each.cols);
      const std::vector<float> some = rounded_product_on_gpu(matrix, first);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), y.begin())) << count << " of " << tokens;
    }
  }
}

TEST_F(OnTheGpu, ARowWithAValueThatIsNoNumberHasNoProductAndItsNeighboursDo) {
  std::mt19937 random(7);
  RandomBlocks<E4m3Codes> matrix(random, 1, 1, 32, 144);
  matrix.upload(ColumnOrder::steps);
  std::vector<Bf16> x = random_bf16(random, 3 * 144);
  x[144 + 17] = Bf16::from_float(std::numeric_limits<float>::infinity());
  const std::vector<float> y = rounded_product_on_gpu(matrix, x);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 1) << i;
}

TEST_F(OnTheGpu, RowsInFrontOfNvfp4AreNotRounded) {
  std::uint8_t codes;
  float scales, y;
  const Status status = block_linear_cuda(BlockLinearCudaArgs<Nvfp4Codes>{.x = {nullptr, 1},
                                                                          .weight = {.shape = {16, 64}},
                                                                          .y = &y,
                                                                          .y_stride = 16,
                                                                          .rounding = {&codes, &scales}},
                                          nullptr);
  EXPECT_NE(status.message().find("FP8 weights alone"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace nibble
