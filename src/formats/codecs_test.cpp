// Every codec against a scalar model of its own: values from the bit fields by ldexp, encodings by looking
// for the nearest value in a sorted table. The last test compares with ml_dtypes
// (tests/data/formats/ml_dtypes.txt, written by tools/make_format_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/fp16.h"

namespace nibble {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint32_t to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A format as the standards describe it.
struct Fields {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool infinities;         // the top exponent holds infinity and NaNs
  std::uint32_t last;      // the largest finite code without a sign
  std::uint32_t sign_bit;  // as a mask
};
constexpr Fields bf16{8, 7, 127, true, 0x7f7f, 0x8000};
constexpr Fields fp16{5, 10, 15, true, 0x7bff, 0x8000};
constexpr Fields e4m3{4, 3, 7, false, 0x7e, 0x80};
constexpr Fields e2m1{2, 1, 1, false, 0x7, 0x8};

// The magnitude of a finite code, from its fields.
double magnitude(const Fields& f, std::uint32_t code) {
  const int exponent = static_cast<int>(code >> f.mantissa_bits);
  const double fraction =
      std::ldexp(static_cast<double>(code & ((1u << f.mantissa_bits) - 1)), -f.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - f.bias) : std::ldexp(1.0 + fraction, exponent - f.bias);
}

// The code nearest to |value|, ties to the even code; one past `last` stands for an overflow.
std::uint32_t nearest(const std::vector<double>& table, double value) {
  const auto above = std::lower_bound(table.begin(), table.end(), value);
  if (above == table.end()) return static_cast<std::uint32_t>(table.size() - 1);
  const auto upper = static_cast<std::uint32_t>(above - table.begin());
  if (*above == value || upper == 0) return upper;
  const std::uint32_t lower = upper - 1;
  const double down = value - table[lower], up = table[upper] - value;
  if (down != up) return down < up ? lower : upper;
  return lower % 2 == 0 ? lower : upper;
}

// All finite magnitudes, and where the format overflows to infinity the value that would come next.
std::vector<double> magnitudes(const Fields& f) {
  std::vector<double> table;
  for (std::uint32_t code = 0; code <= f.last + (f.infinities ? 1 : 0); ++code)
    table.push_back(magnitude(f, code));
  return table;
}

template <class Codec>
void expect_decodes(const Fields& f) {
  for (std::uint32_t code = 0; code < 2 * f.sign_bit; ++code) {
    const float value = Codec{static_cast<decltype(Codec::bits)>(code)}.to_float();
    const std::uint32_t unsigned_code = code & (f.sign_bit - 1);
    ASSERT_EQ(std::signbit(value), (code & f.sign_bit) != 0) << code;
    if (unsigned_code <= f.last) {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), magnitude(f, unsigned_code)) << code;
    } else if (f.infinities && unsigned_code == f.last + 1) {
      ASSERT_EQ(std::fabs(value), infinity) << code;
    } else {
      ASSERT_TRUE(std::isnan(value)) << code;
    }
  }
}

template <class Codec>
void expect_encodes(const Fields& f, const std::vector<float>& inputs) {
  const std::vector<double> table = magnitudes(f);
  for (const float input : inputs) {
    const std::uint32_t expected =
        nearest(table, std::fabs(static_cast<double>(input))) | (std::signbit(input) ? f.sign_bit : 0);
    ASSERT_EQ(Codec::from_float(input).bits, expected) << input;
  }
}

// Every value of the format, every midpoint between two, and the float32 neighbours of both.
std::vector<float> edges(const Fields& f) {
  std::vector<float> inputs;
  const std::vector<double> table = magnitudes(f);
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (const double value :
         {table[i], i + 1 < table.size() ? (table[i] + table[i + 1]) / 2 : table[i] * 1.5}) {
      const auto exact = static_cast<float>(value);
      for (const float near : {exact, std::nextafter(exact, 0.0f), std::nextafter(exact, infinity)}) {
        if (!std::isfinite(near)) continue;
        inputs.push_back(near);
        inputs.push_back(-near);
      }
    }
  }
  return inputs;
}

std::vector<float> random_floats(int count) {
  std::mt19937 random(20261121);
  std::uniform_real_distribution<float> exponents(-12, 12);
  std::vector<float> inputs;
  while (inputs.size() < static_cast<std::size_t>(count)) {
    const float any = from_bits(static_cast<std::uint32_t>(random()));
    if (std::isfinite(any)) inputs.push_back(any);
    // The range where the narrow formats have their codes.
    inputs.push_back(std::exp2(exponents(random)) * (random() % 2 == 0 ? 1.0f : -1.0f));
  }
  return inputs;
}

TEST(Bf16, DecodesAll65536Codes) { expect_decodes<Bf16>(bf16); }
TEST(Fp16, DecodesAll65536Codes) { expect_decodes<Fp16>(fp16); }
TEST(E4m3, DecodesAll256Codes) { expect_decodes<E4m3>(e4m3); }
TEST(E2m1, DecodesAll16Codes) {
  expect_decodes<E2m1>(e2m1);
  const float magnitudes_by_code[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (std::uint8_t code = 0; code < 8; ++code) EXPECT_EQ(E2m1{code}.to_float(), magnitudes_by_code[code]);
}

TEST(Bf16, EncodesEveryEdgeToTheNearest) { expect_encodes<Bf16>(bf16, edges(bf16)); }
TEST(Fp16, EncodesEveryEdgeToTheNearest) { expect_encodes<Fp16>(fp16, edges(fp16)); }
TEST(E4m3, EncodesEveryEdgeToTheNearest) { expect_encodes<E4m3>(e4m3, edges(e4m3)); }
TEST(E2m1, EncodesEveryEdgeToTheNearest) { expect_encodes<E2m1>(e2m1, edges(e2m1)); }

TEST(Codecs, EncodeRandomFloatsToTheNearest) {
  const std::vector<float> inputs = random_floats(200'000);
  expect_encodes<Bf16>(bf16, inputs);
  expect_encodes<Fp16>(fp16, inputs);
  expect_encodes<E4m3>(e4m3, inputs);
  expect_encodes<E2m1>(e2m1, inputs);
}

TEST(E2m1, RoundsTheTiesOfTheContract) {
  const std::pair<float, float> ties[] = {{.25f, 0}, {.75f, 1}, {1.25f, 1}, {1.75f, 2},
                                          {2.5f, 2}, {3.5f, 4}, {5, 4}};
  for (const auto& [value, expected] : ties) {
    EXPECT_EQ(E2m1::from_float(value).to_float(), expected) << value;
    EXPECT_EQ(E2m1::from_float(-value).to_float(), -expected) << value;
  }
}

TEST(Codecs, OverflowsSaturateOrBecomeInfinity) {
  for (const float huge : {1e30f, std::numeric_limits<float>::max(), infinity}) {
    EXPECT_EQ(E2m1::from_float(huge).to_float(), 6.0f);
    EXPECT_EQ(E2m1::from_float(-huge).to_float(), -6.0f);
    EXPECT_EQ(E4m3::from_float(huge).to_float(), 448.0f);
    EXPECT_EQ(E4m3::from_float(-huge).to_float(), -448.0f);
    EXPECT_EQ(Fp16::from_float(huge).to_float(), infinity);
    EXPECT_EQ(Fp16::from_float(-huge).to_float(), -infinity);
  }
  EXPECT_EQ(Bf16::from_float(std::numeric_limits<float>::max()).to_float(), infinity);
  EXPECT_EQ(Bf16::from_float(-infinity).to_float(), -infinity);
  EXPECT_EQ(Fp16::from_float(65519.996f).to_float(), 65504.0f);
  EXPECT_EQ(Fp16::from_float(65520.0f).to_float(), infinity);
}

TEST(Codecs, NanFollowsTheStatedPolicy) {
  // A quiet NaN and signalling ones whose payload lies wholly in the bits that are cut off.
  for (const std::uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xff800001u, 0xffffffffu}) {
    const float nan = from_bits(bits);
    const bool negative = (bits & 0x80000000u) != 0;
    const float through_bf16 = Bf16::from_float(nan).to_float();
    const float through_fp16 = Fp16::from_float(nan).to_float();
    const float through_e4m3 = E4m3::from_float(nan).to_float();
    EXPECT_TRUE(std::isnan(through_bf16) && std::signbit(through_bf16) == negative);
    EXPECT_TRUE(std::isnan(through_fp16) && std::signbit(through_fp16) == negative);
    EXPECT_TRUE(std::isnan(through_e4m3) && std::signbit(through_e4m3) == negative);
    EXPECT_EQ(E2m1::from_float(nan).to_float(), 6.0f);
    EXPECT_TRUE(E8m0::from_float(nan).is_nan());
  }
  EXPECT_EQ(Bf16::from_float(from_bits(0x7fa20000u)).bits, 0x7fe2) << "payload kept, made quiet";
  EXPECT_EQ(Fp16::from_float(from_bits(0x7fa20000u)).bits, 0x7f10) << "payload kept, made quiet";
}

TEST(Codecs, ZerosKeepTheirSign) {
  EXPECT_EQ(Bf16::from_float(-0.0f).bits, 0x8000);
  EXPECT_EQ(Fp16::from_float(-0.0f).bits, 0x8000);
  EXPECT_EQ(E4m3::from_float(-0.0f).bits, 0x80);
  EXPECT_EQ(E2m1::from_float(-0.0f).bits, 0x8);
}

TEST(E8m0, DecodesAll256Codes) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(E8m0{static_cast<std::uint8_t>(code)}.to_float(), std::ldexp(1.0f, code - 127)) << code;
  }
  EXPECT_EQ(to_bits(E8m0{0}.to_float()), 0x00400000u) << "a subnormal, not zero";
  EXPECT_TRUE(std::isnan(E8m0{255}.to_float()));
}

TEST(E8m0, EncodesToTheNearestPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const float power = std::ldexp(1.0f, code - 127);
    EXPECT_EQ(E8m0::from_float(power).bits, code);
    EXPECT_EQ(E8m0::from_float(std::nextafter(power * 1.5f, 0.0f)).bits, code);
    EXPECT_EQ(E8m0::from_float(power * 1.5f).bits, std::min(code + 1, 254));
    EXPECT_EQ(E8m0::from_exponent(code - 127).bits, code);
  }
  EXPECT_EQ(E8m0::from_float(0.0f).bits, 0);
  EXPECT_EQ(E8m0::from_float(-0.0f).bits, 0);
  EXPECT_EQ(E8m0::from_float(from_bits(1)).bits, 0);
  EXPECT_EQ(E8m0::from_float(std::numeric_limits<float>::max()).bits, 254);
  EXPECT_TRUE(E8m0::from_float(infinity).is_nan());
  EXPECT_TRUE(E8m0::from_float(-1.0f).is_nan());
  EXPECT_EQ(E8m0::from_exponent(-128).bits, 0);
  EXPECT_EQ(E8m0::from_exponent(128).bits, 254);
}

TEST(Codecs, AgreeWithMlDtypes) {
  std::ifstream goldens(NIBBLE_SOURCE_DIR "/tests/data/formats/ml_dtypes.txt");
  ASSERT_TRUE(goldens.is_open());
  std::string line;
  int compared = 0;
  while (std::getline(goldens, line)) {
    if (line.starts_with("#")) continue;
    std::istringstream fields(line);
    std::string input, codes[5];
    fields >> input >> codes[0] >> codes[1] >> codes[2] >> codes[3] >> codes[4];
    const float value = from_bits(static_cast<std::uint32_t>(std::stoul(input, nullptr, 16)));
    const std::uint32_t ours[] = {Bf16::from_float(value).bits, Fp16::from_float(value).bits,
                                  E4m3::from_float(value).bits, E2m1::from_float(value).bits,
                                  E8m0::from_float(value).bits};
    for (int i = 0; i < 5; ++i) {
      if (codes[i] == "-") continue;
      EXPECT_EQ(ours[i], std::stoul(codes[i], nullptr, 16)) << input << ", format " << i;
      ++compared;
    }
  }
  EXPECT_GT(compared, 2000);
}

}  // namespace
}  // namespace nibble
