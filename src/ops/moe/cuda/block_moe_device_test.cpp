// On a GPU: the expert layer with weights in blocks of 128 columns.
#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>

#include "formats/e4m3_row.h"
#include "ops/linear/cuda/block_device_test_util.h"
#include "ops/moe/cuda/block_moe_cuda.h"
#include "ops/moe/moe_reference.h"

namespace nibble {
namespace {

template <class Codes_, bool by_row_>
struct Kind {
  using Codes = Codes_;
  static constexpr bool by_row = by_row_;  // scales
};
template <class Kind>
class BlockMoeOnTheGpu : public OnTheGpu {};
using Kinds = testing::Types<Kind<Bf16Codes, false>, Kind<E4m3Codes, false>, Kind<E4m3Codes, true>>;
TYPED_TEST_SUITE(BlockMoeOnTheGpu, Kinds);

// Rows are rounded in front of FP8 alone.
template <class Kind>
class RoundedMoeOnTheGpu : public OnTheGpu {};
using Fp8Kinds = testing::Types<Kind<E4m3Codes, false>, Kind<E4m3Codes, true>>;
TYPED_TEST_SUITE(RoundedMoeOnTheGpu, Fp8Kinds);

template <class Kind>
struct Layer {
  using Codes = typename Kind::Codes;
  int experts, top_k, hidden, intermediate;
  RandomBlocks<Codes> gate_up, down;

  Layer(std::mt19937& random, int experts_, int top_k_, int hidden_, int intermediate_)
      : experts(experts_),
        top_k(top_k_),
        hidden(hidden_),
        intermediate(intermediate_),
        gate_up(random, experts, 2, 2 * intermediate, hidden),
        down(random, experts, 1, hidden, intermediate) {
    if constexpr (Kind::by_row) {
      gate_up.scale_rows(random);
      down.scale_rows(random);
    }
    gate_up.upload();
    down.upload();
  }

  // The products [slots, hidden]; NaN where there is no expert.
  std::vector<float> on_gpu(const std::vector<Bf16>& x, const std::vector<std::int32_t>& ids,
                            BlockMoePath path, bool rounds = false) {
    const std::size_t width = static_cast<std::size_t>(hidden), tokens = x.size() / width;
    const std::size_t stride = static_cast<std::size_t>(gate_up.shape.padded_cols());
    std::vector<Bf16> padded(tokens * stride);
    for (std::size_t token = 0; token < tokens; ++token)
      std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(token * width), width,
                  padded.begin() + static_cast<std::ptrdiff_t>(token * stride));
    DeviceBuffer device_x = on_device(padded), device_ids = on_device(ids);
    DeviceBuffer activations =
        device_bytes(ids.size() * static_cast<std::size_t>(down.shape.padded_cols()) * 2, 0);
    DeviceBuffer products = device_bytes(ids.size() * width * 4, 0xff);
    DeviceBuffer groups = device_bytes(block_moe_group_bytes(static_cast<int>(ids.size()), experts), 0xff);
    const int slots = static_cast<int>(ids.size());
    DeviceBuffer codes = device_bytes(
                     block_moe_rounding_bytes(static_cast<int>(tokens), slots, hidden, intermediate), 0xff),
                 scales = device_bytes(ids.size() * 4, 0xff);
    const RoundingRoom rounding{codes.as<std::uint8_t>(), scales.as<float>()};
    const Status status = block_moe_cuda(
        BlockMoeWeightsOf<Codes>{gate_up.view(), down.view(), silu_unit},
        {.x = device_x.as<Bf16>(),
         .x_stride = static_cast<int>(stride),
         .tokens = static_cast<int>(tokens),
         .top_k = top_k,
         .expert_ids = device_ids.as<std::int32_t>(),
         .workspace = {activations.as<Bf16>(), products.as<float>(), groups.as<std::uint8_t>()},
         .path = path,
         .rounding = rounds ? rounding : RoundingRoom{}},
        nullptr);
    NIBBLE_CHECK(status.ok(), status.message());
    std::vector<float> result(ids.size() * width);
    products.copy_to(std::span(result));
    return result;
  }
};

// A row of a product's inputs as its expert's matrix meets it.
using MeetsRow = std::function<std::vector<float>(const float* row, int cols)>;
std::vector<float> as_it_is(const float* row, int cols) { return {row, row + cols}; }
std::vector<float> rounded(const float* row, int cols) {
  std::vector<float> values(row, row + cols);
  round_to_e4m3(values, e4m3_row_factor(values), values.data());
  return values;
}

// How far the sums over tokens' experts are from those in double precision, of their own size.
template <class Kind>
double apart_from_reference(const Layer<Kind>& layer, const std::vector<Bf16>& x,
                            const std::vector<std::int32_t>& ids, const std::vector<float>& products,
                            const MeetsRow& meets) {
  std::vector<float> floats;
  for (const Bf16 value : x) floats.push_back(value.to_float());
  ThreadPool threads(1);
  const std::vector<float> ones(ids.size(), 1.0f);
  const std::vector<double> exact = moe_reference(
      threads,
      {.top_k = layer.top_k,
       .hidden = layer.hidden,
       .intermediate = layer.intermediate,
       .unit = silu_unit,
       .bf16_h = true},
      floats, ids, ones,
      [&](int e, int row, const float* in) {
        return layer.gate_up.product(e, row, meets(in, layer.hidden).data());
      },
      [&](int e, int row, const float* in) {
        return layer.down.product(e, row, meets(in, layer.intermediate).data());
      });
  const std::size_t width = static_cast<std::size_t>(layer.hidden),
                    choices = static_cast<std::size_t>(layer.top_k);
  double apart = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    double sum = 0;
    for (std::size_t slot = i / width * choices; slot < (i / width + 1) * choices; ++slot) {
      if (ids[slot] >= 0) sum += double{products[slot * width + i % width]};
    }
    apart += (sum - exact[i]) * (sum - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(apart / norm);
}

// The first tokens alone have the bits that they have among all.
template <class Kind>
void expect_the_bits_of_all(Layer<Kind>& layer, const std::vector<Bf16>& x,
                            const std::vector<std::int32_t>& ids, const std::vector<float>& all, int count,
                            const std::function<std::vector<float>(const std::vector<Bf16>&,
                                                                   const std::vector<std::int32_t>&)>& run) {
  const std::vector<Bf16> first(x.begin(), x.begin() + count * layer.hidden);
  const std::vector<std::int32_t> first_ids(ids.begin(), ids.begin() + count * layer.top_k);
  const std::vector<float> some = run(first, first_ids);
  for (std::size_t i = 0; i < some.size(); ++i) {
    if (first_ids[i / static_cast<std::size_t>(layer.hidden)] < 0) continue;
    ASSERT_EQ(some[i], all[i]) << "of " << count << " tokens, at " << i;
  }
}

TYPED_TEST(BlockMoeOnTheGpu, IsNearDoublePrecisionAndATokensBitsDependOnNoOther) {
  std::mt19937 random(3);
  Layer<TypeParam> layer(random, 5, 3, 160, 144);
  const int tokens = small_cases ? 44 : 300;
  const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * layer.hidden));
  MoeRouting routing(random, tokens, layer.experts, layer.top_k);
  for (std::size_t slot = 1; slot < routing.ids.size(); slot += 11) routing.ids[slot] = -1;
  const std::vector<float> many = layer.on_gpu(x, routing.ids, BlockMoePath::many);
  EXPECT_LT(apart_from_reference(layer, x, routing.ids, many, as_it_is), 2e-3);
  for (const int count : {1, 2, 13, tokens}) {
    expect_the_bits_of_all(layer, x, routing.ids, many, count, [&](const auto& rows, const auto& ids) {
      return layer.on_gpu(rows, ids, BlockMoePath::few);
    });
  }
}

TYPED_TEST(BlockMoeOnTheGpu, OneTokenOfAWideLayerHasTheBitsOfMany) {
  std::mt19937 random(6);
  for (const auto& [experts, top_k, hidden, width] : {std::tuple{9, 8, 2096, 64}, {3, 2, 1408, 640}}) {
    if (small_cases && width > 64) continue;
    Layer<TypeParam> layer(random, experts, top_k, hidden, width);
    const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(hidden));
    const MoeRouting routing(random, 1, experts, top_k);
    EXPECT_EQ(layer.on_gpu(x, routing.ids, BlockMoePath::few),
              layer.on_gpu(x, routing.ids, BlockMoePath::many))
        << hidden << " x " << width;
  }
}

TYPED_TEST(RoundedMoeOnTheGpu, IsNearDoublePrecisionAndATokensBitsDependOnNoOther) {
  std::mt19937 random(8);
  Layer<TypeParam> layer(random, 5, 3, 336, 144);
  const int tokens = small_cases ? 44 : 700;
  const std::vector<Bf16> x = random_bf16(random, static_cast<std::size_t>(tokens * layer.hidden));
  MoeRouting routing(random, tokens, layer.experts, layer.top_k);
  for (std::size_t slot = 1; slot < routing.ids.size(); slot += 11) routing.ids[slot] = -1;
  const auto run = [&](const std::vector<Bf16>& rows, const std::vector<std::int32_t>& ids) {
    return layer.on_gpu(rows, ids, BlockMoePath::faster, true);
  };
  const std::vector<float> all = run(x, routing.ids);
  // A value of h may fall to the other side of a border between two codes.
  EXPECT_LT(apart_from_reference(layer, x, routing.ids, all, rounded), 5e-3);
  for (const int count : {1, 2, 13, 41, 120, tokens}) {
    if (count <= tokens) expect_the_bits_of_all(layer, x, routing.ids, all, count, run);
  }
}

TEST_F(OnTheGpu, BlocksOfShapesThatFitNoKernelAreRefusedByName) {
  BlockMoeWeightsOf<E4m3Codes> weights{.gate_up = {.experts = 1, .shape = {64, 48}},
                                       .down = {.experts = 1, .shape = {48, 48}}};
  const BlockMoeCudaArgs args{.x_stride = 64, .tokens = 1, .top_k = 1};
  EXPECT_NE(block_moe_cuda(weights, args, nullptr).message().find("gate_up [64, 48], down [48, 48]"),
            std::string::npos);
  weights.down.shape.cols = 32;
  weights.gate_up.experts = weights.down.experts = 641;
  EXPECT_NE(block_moe_cuda(weights, args, nullptr).message().find("not 641"), std::string::npos);
}

}  // namespace
}  // namespace nibble
