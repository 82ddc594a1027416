// On a GPU, or on its emulation: embedding, norms and angles against the CPU's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/cuda/device_test_util.h"
#include "ops/embedding/cuda/embedding_cuda.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/op_test_util.h"
#include "ops/rms_norm/cuda/rms_norm_cuda.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/cuda/rope_cuda.h"
#include "ops/rope/rope.h"

namespace nibble {
namespace {

using AddRmsNormOnTheGpu = OnTheGpu;
using RopeAnglesOnTheGpu = OnTheGpu;
using EmbeddingOnTheGpu = OnTheGpu;

struct Norm {
  std::vector<float> residual;
  std::vector<Bf16> out;                // [rows, stride]
  std::vector<std::uint8_t> out_tiles;  // of the same
};

struct NormCase {
  int rows, hidden, stride;
  bool less_one = false;  // the weight is kept less one
};

Norm on_gpu(const NormCase& c, const std::vector<float>& residual, const std::vector<float>* delta,
            const std::vector<Bf16>& weight, const ExpertParts& experts = {}) {
  const DenseShape shape{0, c.hidden};
  DeviceBuffer device_residual = on_device(residual), device_weight = on_device(weight);
  DeviceBuffer device_delta = delta == nullptr ? DeviceBuffer() : on_device(*delta);
  DeviceBuffer out = device_bytes(static_cast<std::size_t>(c.rows * c.stride) * 2, 0xff);
  DeviceBuffer tiles = device_bytes(shape.token_bytes(c.rows), 0xff);
  const Status status = add_rms_norm_cuda({.residual = device_residual.as<float>(),
                                           .residual_out = device_residual.as<float>(),
                                           .delta = delta == nullptr ? nullptr : device_delta.as<float>(),
                                           .experts = experts,
                                           .weight = device_weight.as<Bf16>(),
                                           .weight_less_one = c.less_one,
                                           .out = out.as<Bf16>(),
                                           .out_stride = c.stride,
                                           .out_tiles = tiles.as<std::uint8_t>(),
                                           .rows = c.rows,
                                           .hidden = c.hidden,
                                           .eps = 1e-5f},
                                          nullptr);
  NIBBLE_CHECK(status.ok(), status.message());
  Norm norm{residual, std::vector<Bf16>(static_cast<std::size_t>(c.rows * c.stride)),
            std::vector<std::uint8_t>(tiles.size())};
  device_residual.copy_to(std::span(norm.residual));
  out.copy_to(std::span(norm.out));
  tiles.copy_to(std::span(norm.out_tiles));
  return norm;
}

TEST_F(AddRmsNormOnTheGpu, AgreesWithTheCpu) {
  std::mt19937 random(1);
  ThreadPool threads(1);
  OpContext context{.threads = threads, .activations = InputValues::bf16};
  for (const NormCase& c : {NormCase{3, 2880, 2880},
                            {9, 72, 128},
                            {1, 8, 8},
                            {2, 4096, 4104},
                            {1, 12256, 12256},
                            {3, 640, 640, true}}) {
    const std::size_t n = static_cast<std::size_t>(c.rows * c.hidden);
    const std::vector<float> residual = random_floats(random, n, 3.0f), delta = random_floats(random, n);
    const std::vector<Bf16> weight = random_bf16(random, static_cast<std::size_t>(c.hidden));
    const Norm found = on_gpu(c, residual, &delta, weight);
    std::vector<float> expected_residual = residual, expected(n);
    add_rms_norm(context, {.residual = expected_residual.data(),
                           .delta = delta.data(),
                           .weight = weight.data(),
                           .out = expected.data(),
                           .rows = c.rows,
                           .hidden = c.hidden,
                           .eps = 1e-5f,
                           .zero_centred = c.less_one});
    EXPECT_TRUE(found.residual == expected_residual);
    const int blocks = DenseShape{0, c.hidden}.blocks();
    for (int row = 0; row < c.rows; ++row) {
      for (int i = 0; i < std::max(c.stride, blocks * 64); ++i) {
        Bf16 in_tile;
        if (i < blocks * 64) std::memcpy(&in_tile, found.out_tiles.data() + token_offset(blocks, row, i), 2);
        if (i < c.hidden) {
          const float wanted = expected[static_cast<std::size_t>(row * c.hidden + i)];
          const Bf16 got = found.out[static_cast<std::size_t>(row * c.stride + i)];
          // The sum's order differs, so a value may round to its neighbour.
          ASSERT_NEAR(got.to_float(), wanted, std::fabs(wanted) / 128) << row << ", " << i;
          ASSERT_EQ(in_tile, got) << row << ", " << i;
        } else {
          if (i < c.stride) {
            ASSERT_EQ(found.out[static_cast<std::size_t>(row * c.stride + i)], Bf16{});
          }
          ASSERT_EQ(in_tile, Bf16{});
        }
      }
    }
  }
}

TEST_F(AddRmsNormOnTheGpu, ARowsBitsDoNotDependOnItsBatch) {
  std::mt19937 random(2);
  const std::vector<float> residual = random_floats(random, 5 * 640), delta = random_floats(random, 5 * 640);
  const std::vector<Bf16> weight = random_bf16(random, 640);
  const Norm together = on_gpu({5, 640, 640}, residual, &delta, weight);
  for (int row = 0; row < 5; ++row) {
    const auto cut = [&](const auto& all) {
      return std::vector(all.begin() + row * 640, all.begin() + (row + 1) * 640);
    };
    const std::vector<float> own_delta = cut(delta);
    EXPECT_TRUE(on_gpu({1, 640, 640}, cut(residual), &own_delta, weight).out == cut(together.out)) << row;
  }
}

TEST_F(AddRmsNormOnTheGpu, AddsTheExpertsInOrderOfTheTopK) {
  std::mt19937 random(3);
  const int rows = 3, hidden = 200, top_k = 4;
  const std::size_t n = static_cast<std::size_t>(rows * hidden);
  const std::vector<float> residual = random_floats(random, n), products = random_floats(random, n * top_k),
                           weights = random_floats(random, static_cast<std::size_t>(rows * top_k));
  const std::vector<std::int32_t> ids = {3, 1, 2, 0, -1, 5, -1, 6, -1, -1, -1, -1};
  std::vector<float> delta(n);
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < hidden; ++i) {
      bool any = false;
      float sum = 0;
      for (int choice = 0; choice < top_k; ++choice) {
        const std::size_t slot = static_cast<std::size_t>(row * top_k + choice);
        if (ids[slot] < 0) continue;
        const float term =
            weights[slot] * products[slot * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(i)];
        sum = any ? sum + term : term;
        any = true;
      }
      delta[static_cast<std::size_t>(row * hidden + i)] = sum;
    }
  }
  const std::vector<Bf16> weight = random_bf16(random, hidden);
  DeviceBuffer device_products = on_device(products), device_ids = on_device(ids),
               device_weights = on_device(weights);
  const Norm found = on_gpu({rows, hidden, hidden}, residual, nullptr, weight,
                            {.products = device_products.as<float>(),
                             .expert_ids = device_ids.as<std::int32_t>(),
                             .expert_weights = device_weights.as<float>(),
                             .top_k = top_k});
  const Norm expected = on_gpu({rows, hidden, hidden}, residual, &delta, weight);
  EXPECT_TRUE(found.residual == expected.residual);
  EXPECT_TRUE(found.out == expected.out);
}

// Up to 8 rows after experts, of at most 4,096 columns, are another kernel's than 9.
TEST_F(AddRmsNormOnTheGpu, FewRowsAfterExpertsHaveTheBitsOfMore) {
  std::mt19937 random(6);
  const int all = 9;
  for (const auto& [hidden, top_k] : {std::pair{8, 1}, {72, 4}, {2056, 3}, {2880, 4}, {4096, 6}, {4104, 8}}) {
    const std::size_t n = static_cast<std::size_t>(all * hidden);
    const std::vector<float> residual = random_floats(random, n, 3.0f),
                             products = random_floats(random, n * static_cast<std::size_t>(top_k)),
                             weights = random_floats(random, static_cast<std::size_t>(all * top_k));
    std::vector<std::int32_t> ids(weights.size());
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 8) - 1;
    const std::vector<Bf16> weight = random_bf16(random, static_cast<std::size_t>(hidden));
    DeviceBuffer device_products = on_device(products), device_ids = on_device(ids),
                 device_weights = on_device(weights);
    const auto norm_of = [&](int first, int rows) {
      const auto begin = residual.begin() + first * hidden;
      return on_gpu({rows, hidden, hidden + 8}, std::vector<float>(begin, begin + rows * hidden), nullptr,
                    weight,
                    {.products = device_products.as<float>() + first * top_k * hidden,
                     .expert_ids = device_ids.as<std::int32_t>() + first * top_k,
                     .expert_weights = device_weights.as<float>() + first * top_k,
                     .top_k = top_k});
    };
    const Norm together = norm_of(0, all);
    for (const auto& [first, rows] : {std::pair{0, 1}, {8, 1}, {5, 2}, {1, 8}}) {
      const auto cut = [&, first = first, rows = rows](const auto& of_all, int width) {
        return std::vector(of_all.begin() + first * width, of_all.begin() + (first + rows) * width);
      };
      const Norm few = norm_of(first, rows);
      EXPECT_TRUE(few.residual == cut(together.residual, hidden)) << hidden << ", " << rows << " rows";
      EXPECT_TRUE(few.out == cut(together.out, hidden + 8)) << hidden << ", " << rows << " rows";
      const int blocks = DenseShape{0, hidden}.blocks();
      for (int row = 0; row < rows; ++row) {
        for (int i = 0; i < blocks * 64; i += 8) {
          ASSERT_EQ(std::memcmp(few.out_tiles.data() + token_offset(blocks, row, i),
                                together.out_tiles.data() + token_offset(blocks, first + row, i), 16),
                    0)
              << hidden << ", row " << first + row << ", column " << i;
        }
      }
    }
  }
}

// With a group of rows for every multiprocessor another kernel is taken; here a last group is not whole.
TEST_F(AddRmsNormOnTheGpu, ManyRowsHaveTheBitsOfEachAlone) {
  std::mt19937 random(4);
  const int rows = 1301, hidden = 2120, top_k = 3;
  const std::size_t n = static_cast<std::size_t>(rows * hidden);
  const std::vector<float> residual = random_floats(random, n, 3.0f), delta = random_floats(random, n);
  const std::vector<float> products = random_floats(random, n * top_k),
                           weights = random_floats(random, static_cast<std::size_t>(rows * top_k));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * top_k));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 4) - 1;
  const std::vector<Bf16> weight = random_bf16(random, hidden);
  DeviceBuffer device_products = on_device(products), device_ids = on_device(ids),
               device_weights = on_device(weights);
  const auto parts_from = [&](int row) {
    return ExpertParts{.products = device_products.as<float>() + row * top_k * hidden,
                       .expert_ids = device_ids.as<std::int32_t>() + row * top_k,
                       .expert_weights = device_weights.as<float>() + row * top_k,
                       .top_k = top_k};
  };
  const Norm added = on_gpu({rows, hidden, hidden + 8}, residual, &delta, weight);
  const Norm of_experts = on_gpu({rows, hidden, hidden + 8}, residual, nullptr, weight, parts_from(0));
  const int blocks = DenseShape{0, hidden}.blocks();
  for (const int row : {0, 1, 7, 8, 131, 1055, 1056, 1299, 1300}) {
    const auto cut = [&](const auto& all, int width) {
      return std::vector(all.begin() + row * width, all.begin() + (row + 1) * width);
    };
    const std::vector<float> own = cut(residual, hidden), own_delta = cut(delta, hidden);
    const auto expect_same = [&](const Norm& alone, const Norm& together, const char* what) {
      EXPECT_TRUE(alone.residual == cut(together.residual, hidden)) << what << " of row " << row;
      EXPECT_TRUE(alone.out == cut(together.out, hidden + 8)) << what << " of row " << row;
      for (int i = 0; i < hidden; i += 8) {
        ASSERT_EQ(std::memcmp(alone.out_tiles.data() + token_offset(blocks, 0, i),
                              together.out_tiles.data() + token_offset(blocks, row, i), 16),
                  0)
            << what << " of row " << row;
      }
    };
    expect_same(on_gpu({1, hidden, hidden + 8}, own, &own_delta, weight), added, "delta");
    expect_same(on_gpu({1, hidden, hidden + 8}, own, nullptr, weight, parts_from(row)), of_experts,
                "experts");
  }
}

TEST_F(AddRmsNormOnTheGpu, RefusesWidthsItCannotLoad) {
  EXPECT_NE(add_rms_norm_cuda({.rows = 1, .hidden = 100}, nullptr).message().find("100"), std::string::npos);
  EXPECT_FALSE(add_rms_norm_cuda({.rows = 1, .hidden = 12264}, nullptr).ok());
}

TEST_F(RopeAnglesOnTheGpu, HaveTheCpusBits) {
  ThreadPool threads(1);
  OpContext context{.threads = threads};
  const RopeFrequencies frequencies = yarn_rope(64, {.truncate = false, .concentration = 1.3465736});
  std::vector<std::int32_t> positions = {0, 1, 2, 127, 4095, 4096, 65537, 131071};
  const std::size_t n = positions.size() * 32;
  std::vector<float> cos(n), sin(n), found_cos(n), found_sin(n);
  rope_angles(context, frequencies, positions, cos.data(), sin.data());
  DeviceBuffer inv_freq = on_device(frequencies.inv_freq), device_positions = on_device(positions);
  DeviceBuffer device_cos = device_bytes(n * 4, 0xff), device_sin = device_bytes(n * 4, 0xff);
  rope_angles_cuda({.inv_freq = inv_freq.as<float>(),
                    .concentration = frequencies.concentration,
                    .positions = device_positions.as<std::int32_t>(),
                    .rows = static_cast<int>(positions.size()),
                    .half = 32,
                    .cos = device_cos.as<float>(),
                    .sin = device_sin.as<float>()},
                   nullptr);
  device_cos.copy_to(std::span(found_cos));
  device_sin.copy_to(std::span(found_sin));
  EXPECT_EQ(std::memcmp(cos.data(), found_cos.data(), n * 4), 0);
  EXPECT_EQ(std::memcmp(sin.data(), found_sin.data(), n * 4), 0);
}

TEST_F(EmbeddingOnTheGpu, HasTheTablesRows) {
  std::mt19937 random(5);
  ThreadPool threads(1);
  OpContext context{.threads = threads};
  const int vocabulary = 11, hidden = 1032;
  const std::vector<Bf16> table = random_bf16(random, static_cast<std::size_t>(vocabulary * hidden));
  const std::vector<std::int32_t> ids = {3, 0, 10, 3, 7};
  DeviceBuffer device_table = on_device(table), device_ids = on_device(ids);
  DeviceBuffer out = device_bytes(ids.size() * hidden * sizeof(float), 0xff);
  const Status status = embedding_cuda({.table = device_table.as<Bf16>(),
                                        .ids = device_ids.as<std::int32_t>(),
                                        .rows = static_cast<int>(ids.size()),
                                        .hidden = hidden,
                                        .out = out.as<float>()},
                                       nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<float> found(ids.size() * hidden), expected(ids.size() * hidden);
  out.copy_to(std::span(found));
  embedding(context, ids, {table.data(), vocabulary, hidden}, expected.data());
  EXPECT_TRUE(found == expected);
}

// What the step before chose may not be known when a step is queued.
TEST_F(EmbeddingOnTheGpu, TakesATokenFromWhereItWasChosen) {
  const int hidden = 8;
  std::vector<Bf16> table;
  for (int i = 0; i < 10 * hidden; ++i) table.push_back(Bf16::from_float(static_cast<float>(i / hidden)));
  const std::vector<std::int32_t> ids = {-3, 4, -1};
  const std::vector<SampledToken> chosen = {{.token = 9}, {.token = 2}, {.token = 7}};
  DeviceBuffer device_table = on_device(table), device_ids = on_device(ids),
               device_chosen = on_device(chosen);
  DeviceBuffer out = device_bytes(ids.size() * hidden * sizeof(float), 0xff);
  const Status status = embedding_cuda({.table = device_table.as<Bf16>(),
                                        .ids = device_ids.as<std::int32_t>(),
                                        .chosen = device_chosen.as<SampledToken>(),
                                        .rows = 3,
                                        .hidden = hidden,
                                        .out = out.as<float>()},
                                       nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<float> found(ids.size() * hidden);
  out.copy_to(std::span(found));
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(found[i], (std::vector<float>{7, 4, 9})[i / hidden]) << i;
}

TEST_F(EmbeddingOnTheGpu, RefusesWidthsItCannotLoad) {
  EXPECT_EQ(embedding_cuda({.rows = 1, .hidden = 12}, nullptr).code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace nibble
