#include "ops/all_reduce_norm/all_reduce_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/comm_test_util.h"
#include "comm/leaves.h"
#include "formats/e4m3.h"
#include "formats/e4m3_row.h"
#include "formats/nvfp4.h"
#include "ops/op_test_util.h"
#include "ops/rms_norm/rms_norm.h"

namespace nibble {
namespace {

struct Shape {
  int rows, hidden;
};
struct Variant {
  bool residual, norm, less_one;
};
constexpr Variant variants[] = {
    {true, true, false}, {true, true, true}, {true, false, false}, {false, true, false}};

// What the norm is written as; FP4 below one global scale, or one a row.
enum class Form { floats, fp8, fp4, fp4_rows };
constexpr Form forms[] = {Form::floats, Form::fp8, Form::fp4, Form::fp4_rows};
bool takes(Form form, const Shape& shape) { return form < Form::fp4 || shape.hidden % 16 == 0; }

struct Case {
  std::vector<std::vector<float>> parts;  // of each rank
  std::vector<float> residual;
  std::vector<Bf16> weight;
  std::vector<float> global_scales;  // of each row
};

Case case_of(unsigned seed, int ranks, const Shape& shape) {
  std::mt19937 random(seed);
  const std::size_t count = static_cast<std::size_t>(shape.rows) * static_cast<std::size_t>(shape.hidden);
  Case c{.residual = random_floats(random, count, 3.0f),
         .weight = random_bf16(random, static_cast<std::size_t>(shape.hidden)),
         .global_scales = {1.0f}};
  for (int i = 0; i < shape.rows; ++i)
    c.global_scales.push_back(std::ldexp(1.0f + 0.3f * static_cast<float>(i % 3), i % 16 - 2));
  for (int i = 0; i < ranks; ++i)
    c.parts.push_back(wide_floats(seed + static_cast<unsigned>(i) * 100, count));
  return c;
}

struct Answer {
  std::vector<float> residual, out, row_scales;
  std::vector<std::uint8_t> codes, block_scales;
};
NormOutput output_to(Answer& into, const Case& c, const Shape& shape, Form form) {
  if (form == Form::floats) return into.out.data();
  if (form == Form::fp8) return E4m3Rows{into.codes.data(), into.row_scales.data()};
  const bool one = form == Form::fp4;
  return Nvfp4Rows{into.codes.data(), into.block_scales.data(), c.global_scales.data() + (one ? 0 : 1),
                   one ? 1 : shape.rows};
}
AllReduceNormArgs args_of(const Case& c, const Shape& shape, const Variant& variant, Answer& into,
                          Form form = Form::floats) {
  const std::size_t count = c.residual.size();
  into = {c.residual, std::vector<float>(count, 7.0f),
          std::vector<float>(static_cast<std::size_t>(shape.rows), 7.0f),
          std::vector<std::uint8_t>(count, std::uint8_t{0xcd}),
          std::vector<std::uint8_t>(count / 16, std::uint8_t{0xcd})};
  return {.residual = variant.residual ? into.residual.data() : nullptr,
          .weight = variant.norm ? c.weight.data() : nullptr,
          .weight_less_one = variant.less_one,
          .out = output_to(into, c, shape, form),
          .rows = shape.rows,
          .hidden = shape.hidden,
          .eps = 1e-5f};
}
void expect_equal(const Answer& found, const Answer& expected) {
  EXPECT_TRUE(same_bits(found.residual, expected.residual));
  EXPECT_TRUE(same_bits(found.out, expected.out));
  EXPECT_TRUE(same_bits(found.row_scales, expected.row_scales));
  EXPECT_EQ(found.codes, expected.codes);
  EXPECT_EQ(found.block_scales, expected.block_scales);
}

Answer reference(const OpContext& context, const Case& c, const Shape& shape, const Variant& variant,
                 Form form = Form::floats) {
  Answer answer;
  std::vector<const float*> parts;
  for (const auto& part : c.parts) parts.push_back(part.data());
  all_reduce_norm_ref(context, parts, args_of(c, shape, variant, answer, form));
  return answer;
}

void expect_reference(std::vector<Communicator>& members, const Case& c, const Shape& shape,
                      const Variant& variant, Algorithm algorithm, Form form) {
  ThreadPool one(1);
  const OpContext plain{.threads = one, .activations = InputValues::bf16};
  const Answer expected = reference(plain, c, shape, variant, form);
  on_each(members, [&](Communicator& member) {
    SCOPED_TRACE(std::to_string(members.size()) + " ranks, " + std::to_string(shape.rows) + " rows, form " +
                 std::to_string(static_cast<int>(form)));
    ThreadPool threads(member.member() % 2 + 1);
    OpContext context{.threads = threads, .activations = InputValues::bf16};
    Answer found;
    AllReduceNormArgs args = args_of(c, shape, variant, found, form);
    args.parts = c.parts[static_cast<std::size_t>(member.member())].data();
    args.algorithm = algorithm;
    const Status status = all_reduce_norm(context, member, args);
    EXPECT_TRUE(status.ok()) << status.message();
    expect_equal(found, expected);
  });
}

TEST(AllReduceNorm, GivesTheReferencesBitsInEveryVariantOnEveryRank) {
  for (const int ranks : {1, 2, 4, 8}) {
    // Slots of five rows of 2,880: the larger cases go in pieces.
    std::vector<Communicator> members = members_of(whole_world(ranks), 5 * 2880 * 4);
    unsigned seed = 0;
    for (const Shape& shape :
         {Shape{1, 2880}, Shape{12, 2880}, Shape{0, 64}, Shape{33, 72}, Shape{3, 8}, Shape{18, 80}}) {
      const Case c = case_of(++seed, ranks, shape);
      for (const Variant& variant : variants) {
        for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
          for (const Form form : forms) {
            if (takes(form, shape)) expect_reference(members, c, shape, variant, algorithm, form);
          }
        }
      }
    }
  }
}

// Codes are of the bfloat16 norm whatever enters products.
TEST(AllReduceNorm, WritesTheCodesThatThePlainNormIsRoundedTo) {
  const Shape shape{5, 2880};
  const Case c = case_of(5, 2, shape);
  ThreadPool threads(1);
  std::vector<Communicator> members = members_of(whole_world(2), 1 << 20);
  const std::size_t hidden = static_cast<std::size_t>(shape.hidden);
  for (const Variant& variant : variants) {
    if (!variant.norm) continue;
    const Answer plain = reference({.threads = threads, .activations = InputValues::bf16}, c, shape, variant);
    on_each(members, [&](Communicator& member) {
      ThreadPool own(1);
      OpContext context{.threads = own};
      Answer found;
      AllReduceNormArgs args = args_of(c, shape, variant, found, Form::fp8);
      args.parts = c.parts[static_cast<std::size_t>(member.member())].data();
      EXPECT_TRUE(all_reduce_norm(context, member, args).ok());
      for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
        const std::span<const float> norm = std::span(plain.out).subspan(row * hidden, hidden);
        std::vector<float> rounded(hidden), decoded;
        round_to_e4m3(norm, e4m3_row_factor(norm), rounded.data());
        for (std::size_t i = 0; i < hidden; ++i)
          decoded.push_back(E4m3{found.codes[row * hidden + i]}.to_float() * found.row_scales[row]);
        EXPECT_TRUE(same_bits(decoded, rounded)) << row;
      }
      args = args_of(c, shape, variant, found, Form::fp4_rows);
      args.parts = c.parts[static_cast<std::size_t>(member.member())].data();
      EXPECT_TRUE(all_reduce_norm(context, member, args).ok());
      for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
        std::vector<std::uint8_t> codes(hidden / 2), scales(hidden / 16);
        nvfp4_encode(std::span(plain.out).subspan(row * hidden, hidden), c.global_scales[row + 1],
                     codes.data(), scales.data());
        EXPECT_TRUE(std::equal(codes.begin(), codes.end(), found.codes.data() + row * hidden / 2)) << row;
        EXPECT_TRUE(std::equal(scales.begin(), scales.end(), found.block_scales.data() + row * hidden / 16))
            << row;
      }
    });
  }
}

TEST(AllReduceNorm, NanAndInfinityVoidTheirScaleAndZerosHaveTheirOwn) {
  const Shape shape{3, 32};
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<Communicator> members = members_of(whole_world(2), 1 << 20);
  Case c = case_of(1, 2, shape);
  for (auto& part : c.parts) {
    std::fill(part.begin(), part.end(), 0.0f);
    part[1] = part[32 + 17] = infinity;  // x times 1 / infinity: NaN there, and zeros elsewhere
    part[0] = part[2] = 1.0f;
  }
  c.weight.assign(32, Bf16::from_float(-1));
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
    for (const Form form : {Form::fp8, Form::fp4})
      expect_reference(members, c, shape, {false, true, false}, algorithm, form);
  }
  ThreadPool one(1);
  const Answer fp8 = reference({.threads = one}, c, shape, {false, true, false}, Form::fp8);
  EXPECT_TRUE(std::isnan(fp8.row_scales[0]));
  EXPECT_TRUE(std::isnan(fp8.row_scales[1]));
  EXPECT_EQ(fp8.row_scales[2], 1.0f);
  EXPECT_EQ(fp8.codes[1], 0x7f);
  EXPECT_EQ(fp8.codes[0], 0x80) << "1 / infinity times -1";
  EXPECT_EQ(fp8.codes[64], 0x80);
  const Answer fp4 = reference({.threads = one}, c, shape, {false, true, false}, Form::fp4);
  EXPECT_EQ(fp4.block_scales, (std::vector<std::uint8_t>{0x7f, 0, 0, 0x7f, 0, 0}));
  for (std::size_t at = 0; at < 48; ++at)
    EXPECT_EQ(fp4.codes[at], at / 8 == 0 || at / 8 == 3 ? 0x00 : 0x88) << at;
}

// Eight leaves, held by 1, 2, 4 or 8 ranks, against one rank's norm of the leaves' sum.
TEST(AllReduceNorm, GivesTheBitsOfOneRankWhateverTheirNumber) {
  const Shape shape{9, 2880};
  const Case leaves = case_of(77, leaf_count, shape);
  const auto sum_of_leaves = [&](int first, int count) {
    std::vector<float> sum(leaves.residual.size());
    for (std::size_t at = 0; at < sum.size(); ++at)
      sum[at] = tree_sum(count, [&](int i) { return leaves.parts[static_cast<std::size_t>(first + i)][at]; });
    return sum;
  };
  ThreadPool one(1);
  OpContext alone{.threads = one};
  Answer expected{leaves.residual, std::vector<float>(leaves.residual.size())};
  const std::vector<float> delta = sum_of_leaves(0, leaf_count);
  add_rms_norm(alone, {.residual = expected.residual.data(),
                       .delta = delta.data(),
                       .weight = leaves.weight.data(),
                       .out = expected.out.data(),
                       .rows = shape.rows,
                       .hidden = shape.hidden,
                       .eps = 1e-5f});
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<Communicator> members = members_of(whole_world(ranks), 1 << 20);
    on_each(members, [&](Communicator& member) {
      ThreadPool threads(1);
      OpContext context{.threads = threads};
      const int each = leaf_count / ranks;
      const std::vector<float> part = sum_of_leaves(member.member() * each, each);
      Answer found;
      AllReduceNormArgs args = args_of(leaves, shape, {true, true, false}, found);
      args.parts = part.data();
      EXPECT_TRUE(all_reduce_norm(context, member, args).ok());
      EXPECT_TRUE(same_bits(found.residual, expected.residual)) << ranks;
      EXPECT_TRUE(same_bits(found.out, expected.out)) << ranks;
    });
  }
}

TEST(AllReduceNorm, RefusesWhatItCannotDo) {
  std::vector<Communicator> members = members_of(whole_world(1), 4096);
  ThreadPool threads(1);
  OpContext context{.threads = threads};
  std::vector<float> values(4096);
  const auto said = [&](const AllReduceNormArgs& args) {
    return all_reduce_norm(context, members[0], args).message();
  };
  EXPECT_EQ(said({.parts = values.data(), .residual = values.data(), .rows = 1, .hidden = 12}),
            "all_reduce_norm takes a multiple of 8 columns, not 12");
  EXPECT_EQ(said({.parts = values.data(), .rows = 1, .hidden = 8}),
            "all_reduce_norm has nothing to do without a residual and without a weight");
  EXPECT_EQ(
      said({.parts = values.data(), .residual = values.data(), .rows = 1, .hidden = 2880}),
      "a row of 2880 columns does not fit into slots of 4096 bytes; make the group with at least 11520");
  std::vector<Bf16> weight(96);
  const auto said_of = [&](const NormOutput& out, int hidden) {
    return said({.parts = values.data(), .weight = weight.data(), .out = out, .rows = 2, .hidden = hidden});
  };
  std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(values.data());
  float global_scales[] = {1, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(said_of(E4m3Rows{bytes, nullptr}, 72),
            "all_reduce_norm to FP8 needs room for codes and for a float32 scale a row");
  EXPECT_EQ(said_of(Nvfp4Rows{bytes, bytes, global_scales}, 72),
            "all_reduce_norm to FP4 takes a multiple of 16 columns, which share a scale, not 72");
  EXPECT_EQ(said_of(Nvfp4Rows{bytes, nullptr, global_scales}, 96),
            "all_reduce_norm to FP4 needs room for codes and for a scale each 16 columns");
  EXPECT_EQ(said_of(Nvfp4Rows{bytes, bytes}, 96),
            "all_reduce_norm to FP4 needs a global scale, usually 448 * 6 / amax or a checkpoint's 1 / "
            "input_scale");
  EXPECT_EQ(said_of(Nvfp4Rows{bytes, bytes, global_scales, 3}, 96),
            "all_reduce_norm to FP4 takes one global scale or one a row, which are 2, not 3");
  EXPECT_EQ(said_of(Nvfp4Rows{bytes, bytes, global_scales, 2}, 96),
            "a global scale of inf; it must be finite and above zero, usually 448 * 6 / amax");
  EXPECT_EQ(members[0].steps(), 0u);
}

}  // namespace
}  // namespace nibble
