#include "ops/moe/cuda/granule_stamp.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "formats/sm90_w4_layout.h"

namespace nibble {
namespace {

struct Experts {
  Shape shape;
  std::vector<std::uint8_t> blocks, scales, granules;

  Mxfp4Checkpoint matrix(std::int64_t expert) const {
    const std::int64_t values = shape[1] * shape[2];
    return {blocks.data() + expert * values / 2, scales.data() + expert * values / 32, shape[1], shape[2]};
  }
};

// Random codes, scales that a bfloat16 holds with every code.
Experts random_experts(std::int64_t experts, std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937 random(seed);
  Experts made{.shape = {experts, rows, cols}};
  made.blocks.resize(static_cast<std::size_t>(made.shape.count() / 2));
  made.scales.resize(static_cast<std::size_t>(made.shape.count() / 32));
  for (std::uint8_t& byte : made.blocks) byte = static_cast<std::uint8_t>(random());
  for (std::uint8_t& byte : made.scales) byte = static_cast<std::uint8_t>(100 + random() % 29);
  const Mxfp4GranuleShape shape{static_cast<int>(rows), static_cast<int>(cols)};
  made.granules.resize(static_cast<std::size_t>(experts) * shape.bytes());
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    pack_granules(
        made.matrix(expert), 0,
        std::span(made.granules).subspan(static_cast<std::size_t>(expert) * shape.bytes(), shape.bytes()));
  }
  return made;
}

// Every weight is found where the kernels read it, with its sign: nothing is lost, nothing lies twice.
RC_GTEST_PROP(GranuleStamp, GranulesHoldEveryWeightOfEveryLegalShape, ()) {
  const Experts made =
      random_experts(*rc::gen::inRange<std::int64_t>(1, 4), 16 * *rc::gen::inRange<std::int64_t>(1, 5),
                     32 * *rc::gen::inRange<std::int64_t>(1, 20), *rc::gen::arbitrary<unsigned>());
  const Result<Mxfp4Granules> taken =
      take_granules(stamp_granules(made.shape, made.granules), made.shape, made.granules, 0);
  RC_ASSERT(taken.ok());
  std::vector<float> row(static_cast<std::size_t>(made.shape[2]));
  for (std::int64_t expert = 0; expert < made.shape[0]; ++expert) {
    for (std::int64_t r = 0; r < made.shape[1]; ++r) {
      mxfp4_decode_row(made.matrix(expert), r, row);
      for (std::int64_t c = 0; c < made.shape[2]; ++c) {
        const float found =
            granule_value(*taken, static_cast<int>(expert), static_cast<int>(r), static_cast<int>(c));
        RC_ASSERT(found == row[static_cast<std::size_t>(c)]);
        RC_ASSERT(std::signbit(found) == std::signbit(row[static_cast<std::size_t>(c)]));
      }
    }
  }
}

TEST(GranuleStamp, BytesOfAnotherLayoutShapeOrModelAreRefused) {
  const Experts made = random_experts(2, 64, 128, 1);
  const LayoutStamp good = stamp_granules(made.shape, made.granules);
  EXPECT_TRUE(take_granules(good, made.shape, made.granules, 0).ok());
  const LayoutStamp other = stamp<Sm90W4Layout>(made.shape, made.granules);
  EXPECT_EQ(
      take_granules(other, made.shape, made.granules, 0).status().message(),
      "\"expert weights\" is in the layout \"flashinfer_sm90_w4\", not \"mxfp4_granules\"; convert it first");
  EXPECT_FALSE(take_granules(good, {2, 128, 64}, made.granules, 0).ok());
  EXPECT_FALSE(take_granules(good, {2, 60, 128}, made.granules, 0).ok());
  const Experts another = random_experts(2, 64, 128, 2);
  EXPECT_FALSE(take_granules(good, made.shape, another.granules, 0).ok());
  // A stamp that speaks of the bytes, but of more weights than they hold.
  const Shape more = {3, 64, 128};
  EXPECT_FALSE(take_granules(stamp_granules(more, made.granules), more, made.granules, 0).ok());
}

}  // namespace
}  // namespace nibble
