#include "ops/row/row_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "ops/fixed_math.h"
#include "ops/op_test_util.h"
#include "ops/row/clamped_swiglu.h"

namespace nibble {
namespace {

constexpr int widths[] = {1, 7, 8, 15, 16, 17, 31, 32, 64, 100, 1000, 2880};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class RowKernel : public testing::TestWithParam<RowKernels> {
 protected:
  void SetUp() override {
    if (!GetParam().supported()) GTEST_SKIP() << "this machine lacks " << GetParam().name;
  }
  const RowKernels& tried_ = GetParam();
  const RowKernels& plain_ = row_kernels().back();
};

TEST_P(RowKernel, AddsSquaresAndScalesAsTheScalarOne) {
  std::mt19937 random(1);
  for (const int n : widths) {
    const std::vector<float> start = random_floats(random, static_cast<std::size_t>(n), 3.0f);
    const std::vector<float> delta = random_floats(random, start.size());
    const std::vector<Bf16> weight = random_bf16(random, start.size());
    for (const float* added : {delta.data(), static_cast<const float*>(nullptr)}) {
      std::vector<float> a = start, b = start;
      EXPECT_EQ(tried_.add_and_square(a.data(), added, n), plain_.add_and_square(b.data(), added, n)) << n;
      EXPECT_TRUE(same_bits(a, b)) << n;
    }
    for (const bool narrow : {false, true}) {
      std::vector<float> x = start, a(start.size()), b(start.size());
      x[0] = std::bit_cast<float>(0x7f800001u);  // a signalling NaN, which must not round to infinity
      tried_.scale(x.data(), 0.37f, weight.data(), narrow, n, a.data());
      plain_.scale(x.data(), 0.37f, weight.data(), narrow, n, b.data());
      EXPECT_TRUE(std::isnan(a[0]));
      a[0] = b[0] = 0;
      EXPECT_TRUE(same_bits(a, b)) << n << (narrow ? " narrow" : "");
    }
  }
}

TEST_P(RowKernel, RotatesAsTheScalarOne) {
  std::mt19937 random(2);
  for (const int half : widths) {
    const std::size_t n = static_cast<std::size_t>(half);
    const std::vector<float> cos = random_floats(random, n), sin = random_floats(random, n);
    std::vector<float> a = random_floats(random, 2 * n), b = a;
    tried_.rotate(a.data(), cos.data(), sin.data(), half);
    plain_.rotate(b.data(), cos.data(), sin.data(), half);
    EXPECT_TRUE(same_bits(a, b)) << half;
  }
}

TEST_P(RowKernel, MultipliesAndAddsAsTheScalarOne) {
  std::mt19937 random(5);
  for (const int n : widths) {
    const std::vector<float> x = random_floats(random, static_cast<std::size_t>(n), 3.0f);
    std::vector<float> a = random_floats(random, x.size()), b = a;
    const float product = tried_.dot(x.data(), a.data(), n);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(product),
              std::bit_cast<std::uint32_t>(plain_.dot(x.data(), a.data(), n)))
        << n;
    double exact = 0;
    for (std::size_t i = 0; i < x.size(); ++i) exact += double{x[i]} * a[i];
    EXPECT_NEAR(product, exact, 1e-6 * n + 1e-5) << n;
    tried_.add_scaled(a.data(), -0.73f, x.data(), n);
    plain_.add_scaled(b.data(), -0.73f, x.data(), n);
    EXPECT_TRUE(same_bits(a, b)) << n;
  }
}

TEST_P(RowKernel, SumsAndWeighsAsTheScalarOne) {
  std::mt19937 random(3);
  for (const int n : widths) {
    for (const float spread : {0.1f, 4.0f, 60.0f}) {
      const std::vector<float> x = random_floats(random, static_cast<std::size_t>(n), spread);
      const RowScan scan = tried_.scan(x.data(), n);
      EXPECT_TRUE(scan.finite);
      EXPECT_EQ(scan.largest, plain_.scan(x.data(), n).largest);
      EXPECT_EQ(tried_.exp_sum(x.data(), scan.largest, n), plain_.exp_sum(x.data(), scan.largest, n)) << n;
      for (const float temperature : {1.0f, 0.3f, 1e-30f, 7.0f}) {
        std::vector<float> a(x.size()), b(x.size());
        tried_.weigh(x.data(), scan.largest, temperature, n, a.data());
        plain_.weigh(x.data(), scan.largest, temperature, n, b.data());
        EXPECT_TRUE(same_bits(a, b)) << n << " at " << temperature;
      }
    }
  }
}

TEST_P(RowKernel, ExpHasTheScalarBitsOverItsWholeRange) {
  std::vector<float> x, out(16);
  for (float value = -110.0f; value < 110.0f; value += 0.0137f) x.push_back(value);
  for (float edge :
       {-87.33654f, -87.33655f, -87.336555f, 88.72283f, 88.72284f, 88.3762589f, 0.0f, -0.0f, 1e30f, -1e30f})
    x.push_back(edge);
  while (x.size() % 16 != 0) x.push_back(1.0f);
  for (std::size_t i = 0; i < x.size(); i += 16) {
    tried_.weigh(x.data() + i, 0.0f, 1.0f, 16, out.data());
    for (std::size_t lane = 0; lane < 16; ++lane) ASSERT_EQ(out[lane], fixed_exp(x[i + lane])) << x[i + lane];
  }
}

TEST_P(RowKernel, ActivatesAsTheScalarOne) {
  std::mt19937 random(4);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                  infinity = std::numeric_limits<float>::infinity();
  for (const int n : widths) {
    for (const float spread : {0.5f, 8.0f, 400.0f}) {
      std::vector<float> totals = random_floats(random, 2 * static_cast<std::size_t>(n), spread);
      for (const float wild : {nan, infinity, -infinity, 0.0f, -0.0f, 7.0f, -7.0f})
        totals[random() % totals.size()] = wild;
      const std::vector<Bf16> bias = random_bf16(random, totals.size());
      for (const bool narrow : {false, true}) {
        std::vector<float> a(static_cast<std::size_t>(n)), b = a;
        tried_.swiglu(totals.data(), bias.data(), 7.0f, narrow, n, a.data());
        plain_.swiglu(totals.data(), bias.data(), 7.0f, narrow, n, b.data());
        for (std::size_t i = 0; i < a.size(); ++i) {
          if (std::isnan(b[i])) {
            EXPECT_TRUE(std::isnan(a[i])) << i << " of " << n;
            a[i] = b[i] = 0;
          }
        }
        EXPECT_TRUE(same_bits(a, b)) << n << " by " << spread << (narrow ? " narrow" : "");
      }
    }
  }
}

TEST_P(RowKernel, GatesAnyUnitAsTheScalarOneDoes) {
  std::mt19937 random(11);
  for (const GatedUnit& unit : {silu_unit, clamped_silu_unit(1.5f), gpt_oss_unit(7.0f)}) {
    for (const int n : {1, 7, 8, 16, 23}) {
      for (const bool narrow : {false, true}) {
        std::vector<float> gates = random_floats(random, static_cast<std::size_t>(n), 20.0f);
        const std::vector<float> ups = random_floats(random, static_cast<std::size_t>(n), 20.0f);
        std::vector<float> expected(static_cast<std::size_t>(n));
        plain_.gate(gates.data(), ups.data(), unit, narrow, n, expected.data());
        tried_.gate(gates.data(), ups.data(), unit, narrow, n, gates.data());
        EXPECT_TRUE(same_bits(gates, expected)) << n << (narrow ? " narrow" : "");
      }
    }
  }
  EXPECT_NEAR(gated(2, 3, silu_unit), 2 / (1 + std::exp(-2.0)) * 3, 1e-6);
  EXPECT_EQ(gated(1.5f, 2, gpt_oss_unit(7)), clamped_swiglu(1.5f, 2, 7));
  EXPECT_TRUE(std::isnan(gated(NAN, 1, silu_unit)));
}

TEST_P(RowKernel, ScanSeesANumberThatIsNoneWhereverItIs) {
  for (const int n : widths) {
    for (int at = 0; at < n; at += 1 + n / 40) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        std::vector<float> x(static_cast<std::size_t>(n), -3.0f);
        x[static_cast<std::size_t>(at)] = bad;
        EXPECT_FALSE(tried_.scan(x.data(), n).finite) << n << " at " << at;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowKernel, testing::ValuesIn(row_kernels()),
                         [](const auto& kernel) { return std::string(kernel.param.name); });

}  // namespace
}  // namespace nibble
