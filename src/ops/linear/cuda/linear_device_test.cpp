// On a GPU, or on its emulation: dense products against double precision, and their bits against themselves.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "ops/cuda/device_test_util.h"
#include "ops/linear/cuda/dense_runs.h"
#include "ops/linear/cuda/linear_device_test_util.h"
#include "ops/op_test_util.h"

namespace nibble {
namespace {

using LinearOnTheGpu = OnTheGpu;

struct Matrix {
  DenseShape shape;
  std::vector<Bf16> weights, bias;
  DeviceBuffer tiles, device_bias;

  Matrix(std::mt19937& random, int rows, int cols)
      : shape{rows, cols},
        weights(random_bf16(random, static_cast<std::size_t>(rows * cols))),
        bias(random_bf16(random, static_cast<std::size_t>(rows))),
        tiles(tiles_of(weights, shape)),
        device_bias(on_device(bias)) {}

  std::vector<float> times(const std::vector<Bf16>& x, LinearPath path, int blocks = 0, int beside = 0) {
    const int tokens = static_cast<int>(x.size()) / shape.cols;
    const DeviceBuffer packed = tokens_of(x, shape.cols);
    std::vector<float> result(static_cast<std::size_t>(tokens * shape.rows));
    DeviceBuffer y = device_bytes(result.size() * 4, 0xff);
    LinearWorkspace workspace(tokens);
    const Status status = linear_cuda({.x = {reinterpret_cast<const std::uint8_t*>(packed.data()), tokens},
                                       .weight = {tiles.as<std::uint8_t>(), shape},
                                       .bias = device_bias.as<Bf16>(),
                                       .y = y.as<float>(),
                                       .y_stride = shape.rows,
                                       .workspace = workspace.get(),
                                       .path = path,
                                       .blocks = blocks,
                                       .beside = beside},
                                      nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
    y.copy_to(std::span(result));
    return result;
  }

  double exact(const std::vector<Bf16>& x, int token, int row) const {
    double sum = bias[static_cast<std::size_t>(row)].to_float();
    for (int k = 0; k < shape.cols; ++k) {
      sum += static_cast<double>(x[static_cast<std::size_t>(token * shape.cols + k)].to_float()) *
             weights[static_cast<std::size_t>(row * shape.cols + k)].to_float();
    }
    return sum;
  }
};

struct Case {
  int rows, cols, tokens;
};

std::vector<Case> cases() {
  // The last has more tiles than blocks have at once.
  std::vector<Case> some = {{128, 640, 3},   {70, 200, 12},  {1, 16, 1},     {200, 1088, 21},
                            {130, 1100, 60}, {200, 96, 330}, {520, 160, 140}};
  if (!small_cases) {
    some.insert(some.end(), {{5120, 2880, 1},
                             {2880, 4096, 8},
                             {128, 2880, 40},
                             {5120, 2880, 300},
                             {2880, 4096, 64},
                             {5120, 2880, 100},
                             {2880, 4096, 128},
                             {130, 4200, 50},
                             {4096, 8192, 64},
                             {5120, 2880, 160},
                             {5120, 2880, 256},
                             {5120, 2880, 320},
                             {5120, 2880, 512},
                             {5120, 2880, 1280},
                             {2880, 4096, 256},
                             {25024, 2880, 2}});
  }
  return some;
}

TEST_F(LinearOnTheGpu, AgreesWithDoublePrecision) {
  std::mt19937 random(1);
  for (const Case& c : cases()) {
    Matrix matrix(random, c.rows, c.cols);
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.cols));
    for (const LinearPath path : {LinearPath::few, LinearPath::many}) {
      const std::vector<float> y = matrix.times(x, path);
      const int apart =
          small_cases ? 1 : c.rows / 97 + 1;  // the device's rows are more than the host's patience
      double difference = 0, norm = 0;
      for (int token = 0; token < c.tokens; ++token) {
        for (int row = 0; row < c.rows; row += apart) {
          const double expected = matrix.exact(x, token, row);
          const double error = y[static_cast<std::size_t>(token * c.rows + row)] - expected;
          difference += error * error, norm += expected * expected;
        }
      }
      EXPECT_LT(std::sqrt(difference / norm), 1e-5)
          << c.rows << " x " << c.cols << ", " << c.tokens << " tokens, path " << static_cast<int>(path);
    }
  }
}

TEST_F(LinearOnTheGpu, BothPathsAndAllBlocksGiveTheSameBits) {
  std::mt19937 random(2);
  for (const Case& c : cases()) {
    Matrix matrix(random, c.rows, c.cols);
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.cols));
    const std::vector<float> expected = matrix.times(x, LinearPath::many);
    for (const int blocks : small_cases ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 1, 5, 131}) {
      for (const LinearPath path : {LinearPath::few, LinearPath::many}) {
        const std::vector<float> found = matrix.times(x, path, blocks);
        std::size_t different = 0;
        for (std::size_t i = 0; i < found.size(); ++i)
          different += std::memcmp(&found[i], &expected[i], sizeof found[i]) != 0;
        EXPECT_EQ(different, 0u) << "of " << found.size() << ": " << c.rows << " x " << c.cols << ", "
                                 << c.tokens << " tokens, path " << static_cast<int>(path) << ", " << blocks
                                 << " blocks";
      }
    }
  }
}

TEST_F(LinearOnTheGpu, ARowsBitsDependOnNeitherItsBatchNorItsPlace) {
  std::mt19937 random(3);
  const Case c = small_cases ? Case{130, 448, 70} : Case{5120, 2880, 300};
  Matrix matrix(random, c.rows, c.cols);
  const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.cols));
  const std::vector<float> together = matrix.times(x, LinearPath::automatic);
  for (const int size :
       small_cases ? std::vector<int>{9, 33} : std::vector<int>{1, 8, 9, 17, 33, 64, 65, 128}) {
    for (int first = 0; first < c.tokens; first += size) {
      const int count = std::min(size, c.tokens - first);
      const std::vector<float> part =
          matrix.times(std::vector(x.begin() + first * c.cols, x.begin() + (first + count) * c.cols),
                       LinearPath::automatic);
      ASSERT_EQ(std::memcmp(part.data(), together.data() + first * c.rows, part.size() * 4), 0)
          << "batches of " << size << ", from token " << first;
    }
  }
}

TEST_F(LinearOnTheGpu, RoomLeftToOthersMovesNoBit) {
  std::mt19937 random(29);
  Matrix matrix(random, 200, 1088);
  for (const int tokens : {1, 4, 5, 12, 20}) {
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * matrix.shape.cols));
    const std::vector<float> expected = matrix.times(x, LinearPath::few);
    // From a ring as long as it gets to one of three stages, in which two blocks go around often; and beside
    // a block that leaves no room at all.
    for (const int beside : {1, 40 * 1024, 100 * 1024, 120 * 1024, 1024 * 1024}) {
      const std::vector<float> found = matrix.times(x, LinearPath::few, 2, beside);
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0)
          << tokens << " tokens, " << beside << " bytes beside";
    }
  }
}

#ifdef NIBBLE_GPU_EMULATION
TEST_F(LinearOnTheGpu, ADeviceWithoutLargeClustersGivesTheSameBits) {
  std::mt19937 random(31);
  Matrix matrix(random, 130, 448);
  for (const int tokens : {33, 70, 140}) {
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * matrix.shape.cols));
    const std::vector<float> expected = matrix.times(x, LinearPath::few);
    emulation::largest_cluster = 4;
    const std::vector<float> found = matrix.times(x, LinearPath::few);
    emulation::largest_cluster = 16;
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0) << tokens << " tokens";
  }
}
#endif

TEST_F(LinearOnTheGpu, RoundsOnceWhereBfloat16IsAskedFor) {
  std::mt19937 random(4);
  Matrix matrix(random, 66, 96);
  const int tokens = 5, stride = 72;
  const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * 96));
  const std::vector<float> floats = matrix.times(x, LinearPath::few);
  const DeviceBuffer packed = tokens_of(x, 96);
  for (const LinearPath path : {LinearPath::few, LinearPath::many}) {
    DeviceBuffer y = device_bytes(static_cast<std::size_t>(tokens * stride) * 2, 0xee);
    LinearWorkspace workspace(tokens);
    const Status status = linear_cuda({.x = {reinterpret_cast<const std::uint8_t*>(packed.data()), tokens},
                                       .weight = {matrix.tiles.as<std::uint8_t>(), matrix.shape},
                                       .bias = matrix.device_bias.as<Bf16>(),
                                       .y_bf16 = y.as<Bf16>(),
                                       .y_stride = stride,
                                       .workspace = workspace.get(),
                                       .path = path},
                                      nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<Bf16> found(static_cast<std::size_t>(tokens * stride));
    y.copy_to(std::span(found));
    for (int token = 0; token < tokens; ++token) {
      for (int row = 0; row < stride; ++row) {
        const Bf16 expected =
            row < 66 ? Bf16::from_float(floats[static_cast<std::size_t>(token * 66 + row)]) : Bf16{0xeeee};
        ASSERT_EQ(found[static_cast<std::size_t>(token * stride + row)], expected) << token << ", " << row;
      }
    }
  }
}

TEST_F(LinearOnTheGpu, ANotANumberStaysInItsTokenAndItsRow) {
  std::mt19937 random(5);
  const int tokens = 9;
  Matrix matrix(random, 64, 128);
  std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * 128));
  const std::vector<float> clean = matrix.times(x, LinearPath::few);
  x[static_cast<std::size_t>(3 * 128 + 17)] = Bf16{0x7fc0};
  for (const LinearPath path : {LinearPath::few, LinearPath::many}) {
    const std::vector<float> y = matrix.times(x, path);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (i / 64 == 3) {
        EXPECT_TRUE(std::isnan(y[i])) << i;
      } else {
        EXPECT_EQ(y[i], clean[i]) << i;
      }
    }
  }
}

TEST_F(LinearOnTheGpu, RefusesAStrideTooShort) {
  const Status status = linear_cuda(
      {.weight = {nullptr, {64, 64}}, .y = reinterpret_cast<float*>(16), .y_stride = 60}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("64"), std::string::npos);
}

// Where tokens' keys and values go: scattered, one of them nowhere; or, of many tokens, eight at a time in a
// row at a multiple of eight, beside one, with one of them nowhere, and backwards, and again.
std::vector<std::int32_t> some_places(int tokens, int slots) {
  std::vector<std::int32_t> places;
  for (int token = 0; token < tokens; ++token) {
    const int in_eight = token % 8, eight = token / 8;
    if (tokens < 32) {
      places.push_back(token == 1 ? -1 : (token * 67 + 60) % slots);
    } else if (eight % 4 == 2 && in_eight == 5) {
      places.push_back(-1);
    } else {
      places.push_back(eight * 16 + (eight % 4 == 1 ? 3 : 0) + (eight % 4 == 3 ? 7 - in_eight : in_eight));
    }
  }
  return places;
}

// q, k and v as two kernels would make them: the product in float32, then the embedding.
template <class Kv>
void qkv_turns_and_stores() {
  using Element = typename Kv::Element;
  const auto bytes_of = [](int elements) { return static_cast<std::size_t>(elements) * sizeof(Element); };
  constexpr Element untouched{static_cast<decltype(Element::bits)>(0xeeee)};
  std::mt19937 random(6);
  const int heads = 2, kv_heads = 1, cols = 96, slots = 192;
  for (const int tokens : {3, 11, 43}) {
    Matrix matrix(random, (heads + 2 * kv_heads) * 64, cols);
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * cols));
    const std::vector<float> products = matrix.times(x, LinearPath::few);
    std::vector<float> cos = random_floats(random, static_cast<std::size_t>(tokens * 32)),
                       sin = random_floats(random, static_cast<std::size_t>(tokens * 32));
    // Keys of some tokens are beyond the largest e4m3, of others below the smallest normal one.
    constexpr float sizes[] = {1, 1, 300, 2e-4f};
    for (std::size_t i = 0; i < cos.size(); ++i) {
      cos[i] *= sizes[i / 32 % 4];
      sin[i] *= sizes[i / 32 % 4];
    }
    const std::vector<std::int32_t> places = some_places(tokens, slots);
    for (const LinearPath path : {LinearPath::few, LinearPath::many}) {
      const DeviceBuffer packed = tokens_of(x, cols);
      DeviceBuffer device_cos = on_device(cos), device_sin = on_device(sin),
                   device_places = on_device(places);
      DeviceBuffer q = device_bytes(static_cast<std::size_t>(tokens * heads * 64) * 2, 0xee);
      DeviceBuffer keys = device_bytes(bytes_of(kv_heads * slots * 64), 0xee);
      DeviceBuffer values = device_bytes(bytes_of(kv_heads * slots * 64), 0xee);
      LinearWorkspace workspace(tokens);
      const Status status = qkv_cuda({.x = {reinterpret_cast<const std::uint8_t*>(packed.data()), tokens},
                                      .weight = {matrix.tiles.as<std::uint8_t>(), matrix.shape},
                                      .bias = matrix.device_bias.as<Bf16>(),
                                      .heads = heads,
                                      .cos = device_cos.as<float>(),
                                      .sin = device_sin.as<float>(),
                                      .kv_slots = device_places.as<std::int32_t>(),
                                      .q = q.as<Bf16>(),
                                      .cache = {keys.data(), values.data(), kv_heads, slots, Kv::dtype},
                                      .workspace = workspace.get(),
                                      .path = path},
                                     nullptr);
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<Bf16> expected_q(static_cast<std::size_t>(tokens * heads * 64), Bf16{0xeeee});
      std::vector<Element> expected_keys(static_cast<std::size_t>(kv_heads * slots * 64), untouched);
      std::vector<Element> expected_values = expected_keys;
      for (int token = 0; token < tokens; ++token) {
        const int slot = places[static_cast<std::size_t>(token)];
        for (int head = 0; head < heads + 2 * kv_heads; ++head) {
          const float* sums = products.data() + token * matrix.shape.rows + head * 64;
          for (int d = 0; d < 64; ++d) {
            const float c = cos[static_cast<std::size_t>(token * 32 + d % 32)];
            const float s = sin[static_cast<std::size_t>(token * 32 + d % 32)];
            const float turned = d < 32 ? sums[d] * c - sums[d + 32] * s : sums[d] * c + sums[d - 32] * s;
            const float value = head < heads + kv_heads ? turned : sums[d];
            if (head < heads) {
              expected_q[static_cast<std::size_t>((token * heads + head) * 64 + d)] = Bf16::from_float(value);
            } else if (slot >= 0) {
              const int of_head = (head - heads) % kv_heads * slots * 64 + slot / 64 * 4096;
              if (head < heads + kv_heads) {
                expected_keys[static_cast<std::size_t>(of_head + Kv::key_at(slot % 64, d))] =
                    Element::from_float(value);
              } else {
                expected_values[static_cast<std::size_t>(of_head + Kv::value_at(slot % 64, d))] =
                    Element::from_float(value);
              }
            }
          }
        }
      }
      std::vector<Bf16> found_q(expected_q.size());
      std::vector<Element> found_keys(expected_keys.size()), found_values(expected_values.size());
      q.copy_to(std::span(found_q));
      keys.copy_to(std::span(found_keys));
      values.copy_to(std::span(found_values));
      EXPECT_TRUE(found_q == expected_q) << tokens << " tokens";
      EXPECT_TRUE(found_keys == expected_keys) << tokens << " tokens";
      EXPECT_TRUE(found_values == expected_values) << tokens << " tokens";
    }
  }
}

TEST_F(LinearOnTheGpu, QkvTurnsAndStoresWhatTheProductGives) { qkv_turns_and_stores<KvBf16>(); }
TEST_F(LinearOnTheGpu, QkvStoresInE4m3WhatTheProductGives) { qkv_turns_and_stores<KvE4m3>(); }

TEST_F(LinearOnTheGpu, GathersTheRowsThatAreAskedFor) {
  std::mt19937 random(9);
  const int tokens = 13, cols = 100, count = 10;
  const DenseShape shape{0, cols};
  const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * cols));
  const std::vector<std::int32_t> rows = {12, 0, 0, 3, 8, 7, 11, 1, 2, 12};
  DeviceBuffer plain = on_device(x), device_rows = on_device(rows);
  DeviceBuffer tiles = device_bytes(shape.token_bytes(tokens), 0xff);
  DeviceBuffer out = device_bytes(shape.token_bytes(count), 0xff);
  ASSERT_TRUE(pack_tokens_cuda(plain.as<Bf16>(), tokens, cols, cols, tiles.as<std::uint8_t>(), nullptr).ok());
  ASSERT_TRUE(gather_tokens_cuda({tiles.as<std::uint8_t>(), tokens}, cols, device_rows.as<std::int32_t>(),
                                 count, out.as<std::uint8_t>(), nullptr)
                  .ok());
  std::vector<std::uint8_t> found(out.size());
  out.copy_to(std::span(found));
  for (int i = 0; i < count; ++i) {
    for (int col = 0; col < cols; ++col) {
      Bf16 value;
      std::memcpy(&value, found.data() + token_offset(shape.blocks(), i, col), 2);
      ASSERT_EQ(value, x[static_cast<std::size_t>(rows[static_cast<std::size_t>(i)] * cols + col)])
          << i << ", " << col;
    }
  }
}

}  // namespace
}  // namespace nibble
