// On a GPU: the expert layer against the CPU's scalar form, and its bits against themselves, for each format
// of weights.
#include "ops/moe/cuda/moe_device_test_util.h"
#include "ops/moe/cuda/moe_some.h"

namespace nibble {
namespace {

template <class Weights>
class MoeOnTheGpu : public OnTheGpu {};
struct WeightsName {
  template <class Weights>
  static std::string GetName(int) {
    return std::is_same_v<Weights, Mxfp4Weights>   ? "Mxfp4"
           : std::is_same_v<Weights, Nvfp4Weights> ? "Nvfp4"
                                                   : "Int4";
  }
};
using Formats = testing::Types<Mxfp4Weights, Nvfp4Weights, Int4Weights>;
TYPED_TEST_SUITE(MoeOnTheGpu, Formats, WeightsName);

template <class Weights>
constexpr bool takes_sixteens = Weights::Granules::Layout::scale_group == 16;

struct Case {
  int experts, top_k, hidden, intermediate, tokens;
};

TYPED_TEST(MoeOnTheGpu, RepacksAsTheHostDoes) {
  std::mt19937 random(1);
  using Shape = typename TypeParam::Shape;
  std::vector<Shape> shapes = {{16, 32}, {48, 96}, {16, 2880}};
  if (takes_sixteens<TypeParam>) shapes.push_back({32, 144});
  if (!small_cases) shapes.push_back({5760, 2880});
  for (const Shape& shape : shapes) {
    TypeParam weights(random, 2, shape.rows, shape.cols);
    weights.spoil_first_scale();
    weights.upload();
    std::vector<std::uint8_t> found(2 * shape.bytes()), expected(2 * shape.bytes());
    weights.granules.copy_to(std::span(found));
    for (int e = 0; e < 2; ++e) {
      weights.pack(e,
                   std::span(expected).subspan(static_cast<std::size_t>(e) * shape.bytes(), shape.bytes()));
    }
    EXPECT_TRUE(found == expected) << shape.rows << " x " << shape.cols;
  }
}

TYPED_TEST(MoeOnTheGpu, AgreesWithTheScalarForm) {
  std::mt19937 random(2);
  // The last one's chunks fill a warp's ring in the kernel for few tokens.
  std::vector<Case> cases = {{1, 1, 32, 32, 1},   {6, 3, 96, 96, 9},     {2, 1, 576, 64, 21},
                             {40, 4, 64, 32, 20}, {1, 1, 2880, 2880, 2}, {3, 2, 2048, 768, 3}};
  const std::vector<Case> large = {{5, 1, 160, 64, 40},   {3, 2, 576, 320, 70},   {9, 8, 128, 256, 130},
                                   {600, 4, 64, 32, 50},  {4, 4, 2880, 2880, 1},  {8, 4, 2880, 2880, 20},
                                   {16, 8, 2048, 768, 4}, {16, 8, 4096, 1536, 9}, {12, 10, 2048, 512, 40},
                                   {9, 8, 7168, 2048, 3}, {9, 8, 6144, 1024, 7}};
  if (takes_sixteens<TypeParam>) cases.push_back({3, 2, 112, 80, 11});
  if (!small_cases) cases.insert(cases.end(), large.begin(), large.end());
  for (const Case& c : cases) {
    MoeTestLayer<TypeParam> layer(random, c.experts, c.top_k, c.hidden, c.intermediate);
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.hidden));
    const MoeRouting routing(random, c.tokens, c.experts, c.top_k);
    const double error = relative_error(layer.on_gpu(x, routing.ids, routing.weights),
                                        layer.on_cpu(x, routing.ids, routing.weights));
    // Both round h to bfloat16; sums that differ in their last bits then sometimes round apart.
    EXPECT_LT(error, 1e-3) << c.experts << " experts, top " << c.top_k << ", " << c.hidden << " x "
                           << c.intermediate << ", " << c.tokens << " tokens";
  }
}

// Of other families: without biases, with another unit, and with more choices than a launch of eight adds up.
TYPED_TEST(MoeOnTheGpu, TakesLayersWithoutBiasesAndOtherUnits) {
  std::mt19937 random(14);
  for (const GatedUnit& unit : {silu_unit, clamped_silu_unit(0.5f), gpt_oss_unit(7.0f)}) {
    MoeTestLayer<TypeParam> layer(random, 20, 13, 64, 64);
    layer.unit = unit;
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, 9 * 64);
    const MoeRouting routing(random, 9, 20, 13);
    for (const bool biased : {false, true}) {
      layer.biased = biased;
      const std::vector<float> few = layer.on_gpu(x, routing.ids, routing.weights);
      EXPECT_LT(relative_error(few, layer.on_cpu(x, routing.ids, routing.weights)), 1e-3)
          << unit.alpha << ", offset " << unit.offset << ", biased " << biased;
      EXPECT_EQ(layer.on_gpu(x, routing.ids, routing.weights, 0, true), few);
    }
  }
}

TYPED_TEST(MoeOnTheGpu, MoreChoicesThanItAddsUpAreRefused) {
  const MoeCudaWeightsOf<typename TypeParam::Granules> weights{.gate_up = {nullptr, 32, {64, 64}},
                                                               .down = {nullptr, 32, {64, 32}}};
  const Status refusal = moe_few_cuda(weights, {.x_stride = 64, .tokens = 1, .top_k = 17}, nullptr);
  EXPECT_NE(refusal.message().find("a top-k from 1 to 16 is supported, not 17"), std::string::npos)
      << refusal.message();
}

// Where each warp of a block has several granules one has all of K; elsewhere three share a granule.
TYPED_TEST(MoeOnTheGpu, BitsDependNotOnWhetherAWarpHasAWholeGranule) {
  std::mt19937 random(15);
  const std::vector<Case> cases = {{12, 3, 192, 192, 20}, {5, 2, 256, 320, 90}, {40, 3, 192, 208, 33}};
  for (const Case& c : cases) {
    if (c.intermediate % 32 != 0 && !takes_sixteens<TypeParam>) continue;
    MoeTestLayer<TypeParam> layer(random, c.experts, c.top_k, c.hidden, c.intermediate);
    layer.biased = c.experts != 5;
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.hidden));
    const MoeRouting routing(random, c.tokens, c.experts, c.top_k);
    const int granules = std::min(c.experts, c.tokens * c.top_k) * 2 * c.intermediate / granule_rows;
    const std::vector<float> shared = layer.on_gpu(x, routing.ids, routing.weights, 100);
    for (const int blocks : {1, 2, 3, 4, 6}) {
      if (granules / blocks < moe_some_least_granules) break;
      EXPECT_EQ(layer.on_gpu(x, routing.ids, routing.weights, blocks), shared)
          << c.experts << " experts, " << blocks << " blocks";
    }
  }
}

TYPED_TEST(MoeOnTheGpu, ARowsBitsDependOnNeitherItsBatchNorItsPlaceNorTheBlocks) {
  std::mt19937 random(3);
  const std::vector<Case> cases = small_cases
                                      ? std::vector<Case>{{3, 2, 640, 64, 11}}
                                      : std::vector<Case>{{6, 3, 96, 160, 75}, {5, 4, 2880, 2880, 33}};
  const std::vector<int> sizes = small_cases ? std::vector<int>{2, 9} : std::vector<int>{1, 2, 5, 8, 17};
  for (const Case& c : cases) {
    MoeTestLayer<TypeParam> layer(random, c.experts, c.top_k, c.hidden, c.intermediate);
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.hidden));
    const MoeRouting routing(random, c.tokens, c.experts, c.top_k);
    const std::vector<float> together = layer.on_gpu(x, routing.ids, routing.weights);
    for (const int blocks : {1, 7, 131}) {
      const std::vector<float> again = layer.on_gpu(x, routing.ids, routing.weights, blocks);
      EXPECT_EQ(std::memcmp(together.data(), again.data(), together.size() * 4), 0) << blocks << " blocks";
    }
    for (const int size : sizes) {
      for (int first = 0; first < c.tokens; first += size) {
        const int count = std::min(size, c.tokens - first);
        const auto cut = [&](const auto& all, int width) {
          return std::vector(all.begin() + first * width, all.begin() + (first + count) * width);
        };
        const std::vector<float> part =
            layer.on_gpu(cut(x, c.hidden), cut(routing.ids, c.top_k), cut(routing.weights, c.top_k));
        ASSERT_EQ(std::memcmp(part.data(), together.data() + first * c.hidden, part.size() * 4), 0)
            << "batches of " << size << ", from token " << first;
      }
    }
  }
}

// A row alone has a kernel of its own. Chunks of K may lack blocks or have several stages, a block more
// granules than teams, and a choice no expert.
TYPED_TEST(MoeOnTheGpu, ARowAloneHasTheBitsOfARowInCompany) {
  std::mt19937 random(16);
  std::vector<Case> cases = {{6, 3, 96, 96, 2}, {3, 2, 32, 32, 2}, {4, 3, 704, 192, 2}};
  if (takes_sixteens<TypeParam>) cases.push_back({3, 2, 16, 16, 2});
  const std::vector<Case> large = {{16, 8, 2048, 768, 2}, {12, 10, 2048, 512, 2}, {16, 8, 4096, 1536, 2},
                                   {9, 4, 2048, 1536, 2}, {9, 8, 7168, 2048, 2},  {17, 16, 2880, 64, 2}};
  if (!small_cases) cases.insert(cases.end(), large.begin(), large.end());
  for (const Case& c : cases) {
    MoeTestLayer<TypeParam> layer(random, c.experts, c.top_k, c.hidden, c.intermediate);
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(2 * c.hidden));
    MoeRouting routing(random, 2, c.experts, c.top_k);
    routing.ids[1] = -1;
    const std::vector<float> both = layer.on_gpu(x, routing.ids, routing.weights);
    for (const bool settles_rows : {false, true}) {
      layer.settles_rows = settles_rows;
      for (const int blocks : {0, 1, 3}) {
        for (int row = 0; row < 2; ++row) {
          const auto alone = [&](const auto& all, int width) {
            return std::vector(all.begin() + row * width, all.begin() + (row + 1) * width);
          };
          const std::vector<float> found = layer.on_gpu(alone(x, c.hidden), alone(routing.ids, c.top_k),
                                                        alone(routing.weights, c.top_k), blocks);
          EXPECT_EQ(std::memcmp(found.data(), both.data() + row * c.hidden, found.size() * 4), 0)
              << c.hidden << " x " << c.intermediate << ", " << blocks << " blocks, row " << row;
        }
      }
    }
    layer.settles_rows = false;
  }
}

TYPED_TEST(MoeOnTheGpu, GivesTheSameBitsForManyTokensAsForFew) {
  std::mt19937 random(8);
  std::vector<Case> cases =
      small_cases
          ? std::vector<Case>{{3, 2, 576, 160, 13},
                              {2, 1, 96, 224, 131},
                              {1, 1, 64, 32, 300},
                              {150, 8, 32, 32, 2050},
                              {2, 2, 704, 768, 3}}
          : std::vector<Case>{{3, 2, 576, 160, 13},     {6, 3, 96, 160, 700},     {5, 4, 2880, 2880, 10},
                              {2, 1, 2880, 2880, 29},   {5, 4, 2880, 2880, 300},  {3, 2, 2880, 2880, 1900},
                              {4, 3, 2880, 2880, 64},   {4, 3, 2880, 2880, 92},   {4, 3, 2880, 2880, 130},
                              {150, 8, 96, 32, 2050},   {40, 4, 576, 160, 4096},  {32, 4, 576, 160, 200},
                              {16, 8, 2048, 768, 4},    {16, 8, 2048, 768, 90},   {16, 8, 4096, 1536, 30},
                              {16, 8, 4096, 1536, 300}, {12, 10, 2048, 512, 300}, {9, 8, 7168, 2048, 30},
                              {9, 8, 6144, 1024, 200}};
  if (takes_sixteens<TypeParam>) cases.push_back({3, 2, 112, 80, 23});
  for (const Case& c : cases) {
    MoeTestLayer<TypeParam> layer(random, c.experts, c.top_k, c.hidden, c.intermediate);
    layer.upload();
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(c.tokens * c.hidden));
    MoeRouting routing(random, c.tokens, c.experts, c.top_k);
    routing.ids[0] = -1;
    const std::vector<float> few = layer.on_gpu(x, routing.ids, routing.weights);
    const std::vector<float> many = layer.on_gpu(x, routing.ids, routing.weights, 0, true);
    std::size_t different = 0;
    for (std::size_t i = 0; i < few.size(); ++i)
      different += std::memcmp(&few[i], &many[i], sizeof few[i]) != 0;
    EXPECT_EQ(different, 0u) << "of " << few.size() << ", " << c.tokens << " tokens, error "
                             << relative_error(many, few);
  }
}

// So with tiles of all widths, full and not.
TYPED_TEST(MoeOnTheGpu, GivesTheSameBitsForAnyNumberOfAnExpertsTokens) {
  std::mt19937 random(13);
  MoeTestLayer<TypeParam> layer(random, 1, 1, 64, 32);
  layer.upload();
  const int most = 330;
  const std::vector<Bf16> x = random_bf16(random, most * 64);
  const std::vector<std::int32_t> ids(most, 0);
  const std::vector<float> weights(most, 1.0f);
  const std::vector<float> few = layer.on_gpu(x, ids, weights);
  for (int tokens = 1; tokens <= most; tokens += small_cases ? 23 : 1) {
    const auto first = [&](const auto& all, int width) {
      return std::vector(all.begin(), all.begin() + tokens * width);
    };
    const std::vector<float> many = layer.on_gpu(first(x, 64), first(ids, 1), first(weights, 1), 0, true);
    ASSERT_EQ(std::memcmp(many.data(), few.data(), many.size() * 4), 0) << tokens << " tokens";
  }
}

TYPED_TEST(MoeOnTheGpu, HasRoomForExpertsOfOneTokenBesideOneOfMany) {
  std::mt19937 random(10);
  const int experts = 8;
  MoeTestLayer<TypeParam> layer(random, experts, 1, 64, 32);
  layer.upload();
  for (const int tokens : {40, 400, 900}) {  // all three kinds of tiles
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * 64));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens), 0);
    for (int expert = 1; expert < experts; ++expert) ids[static_cast<std::size_t>(5 * expert)] = expert;
    const std::vector<float> weights(ids.size(), 1.0f);
    EXPECT_EQ(layer.on_gpu(x, ids, weights, 0, true), layer.on_gpu(x, ids, weights)) << tokens;
  }
}

TYPED_TEST(MoeOnTheGpu, TakesMoreTokensThanOneLaunchHolds) {
  std::mt19937 random(4);
  const int tokens = moe_cuda_max_slots / 8 + 22;
  MoeTestLayer<TypeParam> layer(random, 8, 8, 32, 32);
  layer.upload();
  const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * 32));
  const MoeRouting routing(random, tokens, 8, 8);
  EXPECT_LT(relative_error(layer.on_gpu(x, routing.ids, routing.weights),
                           layer.on_cpu(x, routing.ids, routing.weights)),
            1e-3);
}

TYPED_TEST(MoeOnTheGpu, LeavesTheSumOfATokensExpertsToTheNextKernelIfAsked) {
  std::mt19937 random(9);
  MoeTestLayer<TypeParam> layer(random, 3, 2, 64, 32);
  layer.upload();
  const std::vector<Bf16> x = random_bf16(random, 5 * 64);
  MoeRouting routing(random, 5, 3, 2);
  routing.ids[2] = -1;
  for (const bool many : {false, true}) {
    layer.leave_sum = false;
    const std::vector<float> added = layer.on_gpu(x, routing.ids, routing.weights, 0, many);
    layer.leave_sum = true;
    EXPECT_EQ(layer.on_gpu(x, routing.ids, routing.weights, 0, many), added) << many;
  }
  const std::size_t too_many = moe_cuda_max_slots / 2 + 1;
  const MoeCudaWeightsOf<typename TypeParam::Granules> weights{.gate_up = {nullptr, 3, layer.gate_up.shape},
                                                               .down = {nullptr, 3, layer.down.shape}};
  const Status refusal =
      moe_few_cuda(weights, {.x_stride = 64, .tokens = static_cast<int>(too_many), .top_k = 2}, nullptr);
  EXPECT_EQ(refusal.code(), StatusCode::invalid_argument);
  EXPECT_NE(refusal.message().find("only those of 512"), std::string::npos) << refusal.message();
}

TYPED_TEST(MoeOnTheGpu, LeavesOutChoicesOfNoExpert) {
  std::mt19937 random(5);
  MoeTestLayer<TypeParam> layer(random, 4, 2, 64, 32);
  layer.upload();
  const std::vector<Bf16> x = random_bf16(random, 3 * 64);
  const std::vector<float> none = layer.on_gpu(x, {-1, -1, 2, -1, -1, 3}, {1, 1, 0.5f, 1, 1, 0.25f});
  const std::vector<float> some = layer.on_gpu(x, {0, 1, 2, 1, 1, 3}, {0, 0, 0.5f, 0, 0, 0.25f});
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(none[i], 0.0f);
  for (std::size_t i = 64; i < 192; ++i) EXPECT_EQ(none[i], some[i]);
}

TYPED_TEST(MoeOnTheGpu, AScaleOfNotANumberReachesOnlyTheRowsRoutedToIt) {
  std::mt19937 random(7);
  MoeTestLayer<TypeParam> layer(random, 3, 1, 64, 64);
  layer.down.spoil_first_scale();  // expert 0, output 0
  layer.upload();
  const std::vector<Bf16> x = random_bf16(random, 2 * 64);
  const std::vector<float> out = layer.on_gpu(x, {0, 1}, {1, 1});
  EXPECT_TRUE(std::isnan(out[0]));
  for (std::size_t i = 1; i < 128; ++i) EXPECT_TRUE(std::isfinite(out[i]));
}

}  // namespace
}  // namespace nibble
