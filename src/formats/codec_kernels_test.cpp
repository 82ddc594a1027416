// Every instruction set against the scalar code: the same bytes for every kind of block, and the same floats.
#include "formats/codec_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

template <class T>
T narrow(float value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return Bf16::from_float(value);
  } else {
    return value;
  }
}

float widened(Bf16 value) { return value.to_float(); }
float widened(float value) { return value; }

// Blocks of every magnitude a float has: ordinary ones, zeros, subnormals, middles between codes, some that
// are not finite.
template <class T>
std::vector<T> hostile_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> values;
  int base = 0;
  unsigned kind = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 16 == 0) {
      base = static_cast<int>(random() % 255);
      kind = random() % 32;
    }
    const int exponent = std::clamp(base - static_cast<int>(random() % (kind < 16 ? 4 : 14)), 0, 254);
    std::uint32_t bits = (random() & 0x80000000u) | static_cast<std::uint32_t>(exponent) << 23;
    bits |= random() & (kind % 2 == 0 ? 0x7fffffu : 0x700000u);
    if (kind == 1) bits &= 0x80000000u;
    if (kind == 2 && random() % 8 == 0) bits |= 0x7f800000u;
    if (kind == 3 && random() % 8 == 0) bits = 0x7f800000u;
    values.push_back(narrow<T>(std::bit_cast<float>(bits)));
  }
  return values;
}

std::vector<const CodecKernels*> vector_kernels() {
  std::vector<const CodecKernels*> found;
  for (const CodecKernels& each : codec_kernels()) {
    if (each.name != "scalar" && each.supported()) found.push_back(&each);
  }
  return found;
}

template <class T>
const EncodeKernels<T>& encoders(const CodecKernels& kernels) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return kernels.bf16;
  } else {
    return kernels.f32;
  }
}

struct Encoded {
  std::vector<std::uint8_t> codes, scales;
  friend bool operator==(const Encoded&, const Encoded&) = default;
};

template <class T>
Encoded mxfp4_by(const CodecKernels& kernels, const std::vector<T>& values, Mxfp4Scale convention) {
  Encoded out{std::vector<std::uint8_t>(values.size() / 2), std::vector<std::uint8_t>(values.size() / 32)};
  encoders<T>(kernels).mxfp4(values.data(), values.size() / 32, convention, out.codes.data(),
                             out.scales.data());
  return out;
}

template <class T>
Encoded mxfp8_by(const CodecKernels& kernels, const std::vector<T>& values) {
  Encoded out{std::vector<std::uint8_t>(values.size()), std::vector<std::uint8_t>(values.size() / 32)};
  encoders<T>(kernels).mxfp8(values.data(), values.size() / 32, out.codes.data(), out.scales.data());
  return out;
}

template <class T>
Encoded nvfp4_by(const CodecKernels& kernels, const std::vector<T>& values, float global) {
  Encoded out{std::vector<std::uint8_t>(values.size() / 2), std::vector<std::uint8_t>(values.size() / 16)};
  encoders<T>(kernels).nvfp4(values.data(), values.size() / 16, global, out.codes.data(), out.scales.data());
  return out;
}

template <class T>
void expect_equal_encodings(unsigned seed) {
  // An odd number of blocks: groups end early.
  const std::vector<T> values = hostile_values<T>(std::size_t{32} * 301, seed);
  for (const CodecKernels* kernels : vector_kernels()) {
    for (const Mxfp4Scale convention : {Mxfp4Scale::ocp_floor, Mxfp4Scale::round_up}) {
      ASSERT_EQ(mxfp4_by(*kernels, values, convention), mxfp4_by(scalar_codec_kernels, values, convention))
          << kernels->name;
    }
    ASSERT_EQ(mxfp8_by(*kernels, values), mxfp8_by(scalar_codec_kernels, values)) << kernels->name;
    for (const float global : {1.0f, 2688.0f, 0x1p-126f, 0x1.8p127f, 3.14159e-20f, 1.7e19f}) {
      ASSERT_EQ(nvfp4_by(*kernels, values, global), nvfp4_by(scalar_codec_kernels, values, global))
          << kernels->name << ", global scale " << global;
    }
  }
}

TEST(CodecKernels, EncodeToTheBytesOfTheScalarCode) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    expect_equal_encodings<Bf16>(seed);
    expect_equal_encodings<float>(seed);
  }
}

// A row of tiles whose last is cut, one of them with a scale that stands for values that cannot be encoded.
template <class T>
void expect_equal_rows_of_tiles(unsigned seed) {
  const std::size_t cols = 128 * 4 + 1 + seed;
  const std::vector<T> row = hostile_values<T>(cols, seed);
  std::vector<T> finite = row;  // of which alone there are codes
  for (T& value : finite) value = std::isfinite(widened(value)) ? value : T{};
  const std::vector<float> before = {0, 1e30f, 0, 0x1p-140f, 0};
  const std::vector<float> scales = {3.1e-4f, std::numeric_limits<float>::quiet_NaN(), 0x1.8p-100f, 1.0f,
                                     0x1.3p90f};
  std::vector<float> expected_amax = before;
  std::vector<std::uint8_t> expected_codes(cols);
  encoders<T>(scalar_codec_kernels).raise_tile_amax(row.data(), cols, expected_amax.data());
  encoders<T>(scalar_codec_kernels).e4m3_tiles(finite.data(), cols, scales.data(), expected_codes.data());
  for (const CodecKernels* kernels : vector_kernels()) {
    std::vector<float> amax = before;
    std::vector<std::uint8_t> codes(cols);
    encoders<T>(*kernels).raise_tile_amax(row.data(), cols, amax.data());
    encoders<T>(*kernels).e4m3_tiles(finite.data(), cols, scales.data(), codes.data());
    ASSERT_EQ(amax, expected_amax) << kernels->name;
    ASSERT_EQ(codes, expected_codes) << kernels->name;
  }
}

template <class T>
void expect_equal_tiles(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> values = hostile_values<T>(777, seed);
  for (const CodecKernels* kernels : vector_kernels()) {
    for (int round = 0; round < 40; ++round) {
      const std::size_t first = random() % 300, count = random() % 400;
      const float expected = encoders<T>(scalar_codec_kernels).amax(values.data() + first, count);
      ASSERT_EQ(encoders<T>(*kernels).amax(values.data() + first, count), expected) << kernels->name;
      if (!std::isfinite(expected)) continue;
      const float scale = std::ldexp(1.0f + 0x1p-23f * static_cast<float>(random() % 8388608),
                                     static_cast<int>(random() % 253) - 126);
      std::vector<std::uint8_t> codes(count), expected_codes(count);
      encoders<T>(*kernels).e4m3(values.data() + first, count, scale, codes.data());
      encoders<T>(scalar_codec_kernels).e4m3(values.data() + first, count, scale, expected_codes.data());
      ASSERT_EQ(codes, expected_codes) << kernels->name << ", scale " << scale;
    }
  }
}

// Where a quotient that is off by one unit in the last place would become another code.
TEST(CodecKernels, DivideAsTheScalarCodeDoesBesideTheMiddleBetweenTwoCodes) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const float scale = std::ldexp(1.0f + 0x1p-23f * static_cast<float>(random() % 8388608),
                                   static_cast<int>(random() % 150) - 75);
    std::vector<float> wide;
    std::vector<Bf16> narrow;
    for (int i = 0; i < 256; ++i) {
      const auto code = static_cast<std::uint8_t>(random() % 0x7e);
      const double middle = 0.5 * (static_cast<double>(E4m3{code}.to_float()) +
                                   static_cast<double>(E4m3{static_cast<std::uint8_t>(code + 1)}.to_float()));
      const auto nearest =
          std::bit_cast<std::uint32_t>(static_cast<float>(middle * static_cast<double>(scale)));
      wide.push_back(std::bit_cast<float>(nearest + static_cast<std::uint32_t>(random() % 7) - 3));
      narrow.push_back(Bf16::from_float(wide.back()));
    }
    std::vector<std::uint8_t> codes(256), expected(256);
    for (const CodecKernels* kernels : vector_kernels()) {
      kernels->f32.e4m3(wide.data(), wide.size(), scale, codes.data());
      scalar_codec_kernels.f32.e4m3(wide.data(), wide.size(), scale, expected.data());
      ASSERT_EQ(codes, expected) << kernels->name << ", scale " << scale;
      kernels->bf16.e4m3(narrow.data(), narrow.size(), scale, codes.data());
      scalar_codec_kernels.bf16.e4m3(narrow.data(), narrow.size(), scale, expected.data());
      ASSERT_EQ(codes, expected) << kernels->name << ", scale " << scale;
    }
  }
}

TEST(CodecKernels, EncodeTilesOfAnyLengthToTheBytesOfTheScalarCode) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    expect_equal_tiles<Bf16>(seed);
    expect_equal_tiles<float>(seed);
    expect_equal_rows_of_tiles<Bf16>(seed);
    expect_equal_rows_of_tiles<float>(seed);
  }
}

// Equal bits, but for those of a NaN.
void expect_same_floats(const std::vector<float>& a, const std::vector<float>& b, std::string_view name) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::isnan(a[i]), std::isnan(b[i])) << name << " at " << i;
    if (!std::isnan(a[i])) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i]))
          << name << " at " << i;
    }
  }
}

TEST(CodecKernels, DecodeEveryCodeWithEveryScaleToTheFloatsOfTheScalarCode) {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  std::vector<float> found(512), expected(512);
  for (const CodecKernels* kernels : vector_kernels()) {
    for (int scale = 0; scale < 256; ++scale) {
      const std::vector<std::uint8_t> scales(32, static_cast<std::uint8_t>(scale));
      kernels->mxfp4_decode(codes.data(), scales.data(), 16, found.data());
      scalar_codec_kernels.mxfp4_decode(codes.data(), scales.data(), 16, expected.data());
      expect_same_floats(found, expected, kernels->name);
      kernels->mxfp8_decode(codes.data(), scales.data(), 8, found.data());
      scalar_codec_kernels.mxfp8_decode(codes.data(), scales.data(), 8, expected.data());
      expect_same_floats(found, expected, kernels->name);
      for (const float global : {1.0f, 7.3e9f, 0x1p-126f, 0x1.cp127f}) {
        kernels->nvfp4_decode(codes.data(), scales.data(), 31, global, found.data());
        scalar_codec_kernels.nvfp4_decode(codes.data(), scales.data(), 31, global, expected.data());
        expect_same_floats(found, expected, kernels->name);
      }
      const float factor = E8m0{static_cast<std::uint8_t>(scale)}.to_float() * 1.37f;
      kernels->e4m3_decode(codes.data(), 251, factor, found.data());
      scalar_codec_kernels.e4m3_decode(codes.data(), 251, factor, expected.data());
      expect_same_floats(found, expected, kernels->name);
    }
  }
}

// What is larger than a core's caches is written in another way.
TEST(CodecKernels, DecodeALargeMatrixToTheFloatsOfTheScalarCode) {
  constexpr std::size_t count = std::size_t{1} << 19;
  std::mt19937 random(7);
  std::vector<std::uint8_t> codes(count), scales(count / 16);
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random());
  for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(random() % 0x7f);
  std::vector<float> found(count + 16), expected(count);
  // On a whole line, and beside one.
  float* const line =
      found.data() + (64 - reinterpret_cast<std::uintptr_t>(found.data()) % 64) % 64 / sizeof(float);
  for (float* to : {line, line == found.data() ? line + 1 : line - 1}) {
    const auto expect_equal = [&](std::string_view name) {
      EXPECT_EQ(std::memcmp(to, expected.data(), count * sizeof(float)), 0) << name;
    };
    for (const CodecKernels* kernels : vector_kernels()) {
      kernels->mxfp4_decode(codes.data(), scales.data(), count / 32, to);
      scalar_codec_kernels.mxfp4_decode(codes.data(), scales.data(), count / 32, expected.data());
      expect_equal("mxfp4");
      kernels->nvfp4_decode(codes.data(), scales.data(), count / 16, 77.7f, to);
      scalar_codec_kernels.nvfp4_decode(codes.data(), scales.data(), count / 16, 77.7f, expected.data());
      expect_equal("nvfp4");
      for (std::uint8_t& code : codes)
        code = code % 0x80 == 0x7f ? 0 : code;  // no NaN, whose bits may differ
      kernels->mxfp8_decode(codes.data(), scales.data(), count / 32, to);
      scalar_codec_kernels.mxfp8_decode(codes.data(), scales.data(), count / 32, expected.data());
      expect_equal("mxfp8");
      kernels->e4m3_decode(codes.data(), count - 5, 0.37f, to);
      scalar_codec_kernels.e4m3_decode(codes.data(), count - 5, 0.37f, expected.data());
      std::copy_n(expected.data() + count - 5, 5, to + count - 5);
      expect_equal("e4m3");
    }
  }
}

TEST(CodecKernels, ListsTheScalarCodeLast) {
  EXPECT_EQ(codec_kernels().back().name, "scalar");
  EXPECT_TRUE(best_codec_kernels().supported());
}

}  // namespace
}  // namespace nibble
