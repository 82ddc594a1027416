#include "models/dense_conversion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "models/decoder.h"
#include "models/model_traits.h"
#include "plan/memory.h"
#include "plan/rank_part.h"

namespace nibble {
namespace {

struct Weights {
  std::vector<Bf16> values;
  int rows, cols;
  Bf16Matrix view() const { return {values.data(), rows, cols}; }
};

Weights random_weights(int rows, int cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Weights weights{{}, rows, cols};
  for (int i = 0; i < rows * cols; ++i) weights.values.push_back(Bf16::from_float(normal(random)));
  return weights;
}

// The largest difference of any value from its original, relative to its block's largest magnitude.
template <class Matrix, class DecodeRow>
double worst_error(const Weights& weights, const Matrix& matrix, DecodeRow decode_row) {
  std::vector<float> row(static_cast<std::size_t>(weights.cols));
  double worst = 0;
  for (int r = 0; r < weights.rows; ++r) {
    decode_row(matrix, r, row);
    for (int block = 0; block < weights.cols; block += 32) {
      float largest = 0, difference = 0;
      for (int i = block; i < block + 32; ++i) {
        const float original = weights.values[static_cast<std::size_t>(r * weights.cols + i)].to_float();
        largest = std::max(largest, std::abs(original));
        difference = std::max(difference, std::abs(original - row[static_cast<std::size_t>(i)]));
      }
      worst = std::max(worst, static_cast<double>(difference / largest));
    }
  }
  return worst;
}

TEST(ConvertDense, KeepsShapesAndValuesWithinTheFormatsStep) {
  const Weights first = random_weights(37, 96, 1), second = random_weights(5, 64, 2);
  const WeightSource source;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (const DenseFormat format : {DenseFormat::q8, DenseFormat::mxfp4}) {
      WeightMatrix a = first.view(), b = second.view();
      WeightMatrix* const matrices[] = {&a, &b};
      std::vector<double> seen;
      const Result<Buffer> memory =
          convert_dense(matrices, format, source, pool, [&](double done, double total) {
            seen.push_back(done);
            EXPECT_EQ(total, 37 * 96 + 5 * 64);
          });
      ASSERT_TRUE(memory.ok());
      EXPECT_EQ(seen, (std::vector<double>{37 * 96, 37 * 96 + 5 * 64}));
      for (const auto& [weights, matrix] : {std::pair(&first, &a), std::pair(&second, &b)}) {
        EXPECT_EQ(weight_rows(*matrix), weights->rows);
        EXPECT_EQ(weight_cols(*matrix), weights->cols);
        if (format == DenseFormat::q8) {
          // Half of a step, which is up to a 64th of the largest value.
          EXPECT_LE(worst_error(*weights, std::get<Q8Matrix>(*matrix), q8_decode_row), 1.0 / 127);
        } else {
          // Half of the widest step, 2 of codes up to 6, where a block's largest value may be just above 3.
          EXPECT_LE(worst_error(*weights, std::get<Mxfp4Checkpoint>(*matrix), mxfp4_decode_row), 1.0 / 3);
        }
      }
    }
  }
}

TEST(ConvertDense, AProgressMayBeMissing) {
  const Weights weights = random_weights(3, 32, 3);
  WeightMatrix matrix = weights.view();
  WeightMatrix* const matrices[] = {&matrix};
  ThreadPool pool(1);
  const Result<Buffer> memory = convert_dense(matrices, DenseFormat::q8, WeightSource(), pool, {});
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(std::holds_alternative<Q8Matrix>(matrix));
}

// Bytes that the matrices of one rank's part take once they are converted.
std::int64_t bytes_of_part(const std::filesystem::path& folder, const RankPart& part, DenseFormat format) {
  const ModelConfig config = read_model_config(folder).value();
  const WeightSource source = WeightSource::open(folder).value();
  DecoderWeights weights = bind_decoder_weights(config, source, part).value();
  ThreadPool pool(1);
  const std::vector<WeightMatrix*> matrices = convertible_matrices(weights);
  return static_cast<std::int64_t>(convert_dense(matrices, format, source, pool, {}).value().size());
}

TEST(ConvertDense, TakesTheBytesThatThePlanCounts) {
  const std::filesystem::path checkpoints = std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/parity";
  for (const char* model : {"example", "tied_full", "qwen3_moe_bf16", "qwen3_next_bf16",
                            "qwen3_5_moe_stacked", "deepseek_v3_bf16", "glm4_moe_lite"}) {
    const ModelTraits traits = traits_of(read_model_config(checkpoints / model).value(), model).value();
    for (const auto& [quantization, format] :
         {std::pair{Quantization::q8, DenseFormat::q8}, std::pair{Quantization::mxfp4, DenseFormat::mxfp4}}) {
      EXPECT_EQ(bytes_of_part(checkpoints / model, rank_part(traits, 1, 1, 0), format),
                converted_bytes(traits, quantization, 1))
          << model;
      for (const int ranks : {2, 4}) {
        std::int64_t of_all = 0;
        for (int rank = 0; rank < ranks; ++rank)
          of_all += bytes_of_part(checkpoints / model, rank_part(traits, ranks, 1, rank), format);
        // Of a model of two heads four ranks have none, one or two. Each matrix of a part begins at a
        // multiple of 64.
        const std::int64_t planned = ranks * converted_bytes(traits, quantization, ranks);
        EXPECT_LE(of_all, planned + planned / 400) << model << " on " << ranks;
        EXPECT_GE(of_all, ranks == 2 ? planned - planned / 400 : planned * 3 / 4) << model << " on " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace nibble
