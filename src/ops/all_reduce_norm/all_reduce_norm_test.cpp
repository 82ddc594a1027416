#include "ops/all_reduce_norm/all_reduce_norm.h"

#include <gtest/gtest.h>

#include "comm/comm_test_util.h"
#include "comm/leaves.h"
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

struct Case {
  std::vector<std::vector<float>> parts;  // of each rank
  std::vector<float> residual;
  std::vector<Bf16> weight;
};

Case case_of(unsigned seed, int ranks, const Shape& shape) {
  std::mt19937 random(seed);
  const std::size_t count = static_cast<std::size_t>(shape.rows) * static_cast<std::size_t>(shape.hidden);
  Case c{.residual = random_floats(random, count, 3.0f),
         .weight = random_bf16(random, static_cast<std::size_t>(shape.hidden))};
  for (int i = 0; i < ranks; ++i)
    c.parts.push_back(wide_floats(seed + static_cast<unsigned>(i) * 100, count));
  return c;
}

struct Answer {
  std::vector<float> residual, out;
};
AllReduceNormArgs args_of(const Case& c, const Shape& shape, const Variant& variant, Answer& into) {
  into = {c.residual, std::vector<float>(c.residual.size(), 7.0f)};
  return {.residual = variant.residual ? into.residual.data() : nullptr,
          .weight = variant.norm ? c.weight.data() : nullptr,
          .weight_less_one = variant.less_one,
          .out = into.out.data(),
          .rows = shape.rows,
          .hidden = shape.hidden,
          .eps = 1e-5f};
}

Answer reference(const OpContext& context, const Case& c, const Shape& shape, const Variant& variant) {
  Answer answer;
  std::vector<const float*> parts;
  for (const auto& part : c.parts) parts.push_back(part.data());
  all_reduce_norm_ref(context, parts, args_of(c, shape, variant, answer));
  return answer;
}

TEST(AllReduceNorm, GivesTheReferencesBitsInEveryVariantOnEveryRank) {
  for (const int ranks : {1, 2, 4, 8}) {
    // Slots of five rows of 2,880: the larger cases go in pieces.
    std::vector<Communicator> members = members_of(whole_world(ranks), 5 * 2880 * 4);
    unsigned seed = 0;
    for (const Shape& shape : {Shape{1, 2880}, Shape{12, 2880}, Shape{0, 64}, Shape{33, 72}, Shape{3, 8}}) {
      const Case c = case_of(++seed, ranks, shape);
      for (const Variant& variant : variants) {
        for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
          ThreadPool one(1);
          const OpContext plain{.threads = one, .activations = InputValues::bf16};
          const Answer expected = reference(plain, c, shape, variant);
          on_each(members, [&](Communicator& member) {
            ThreadPool threads(member.member() % 2 + 1);
            OpContext context{.threads = threads, .activations = InputValues::bf16};
            Answer found;
            AllReduceNormArgs args = args_of(c, shape, variant, found);
            args.parts = c.parts[static_cast<std::size_t>(member.member())].data();
            args.algorithm = algorithm;
            const Status status = all_reduce_norm(context, member, args);
            EXPECT_TRUE(status.ok()) << status.message();
            EXPECT_TRUE(same_bits(found.residual, expected.residual)) << ranks << " ranks, " << shape.rows;
            EXPECT_TRUE(same_bits(found.out, expected.out)) << ranks << " ranks, " << shape.rows;
          });
        }
      }
    }
  }
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
  EXPECT_EQ(members[0].steps(), 0u);
}

}  // namespace
}  // namespace nibble
