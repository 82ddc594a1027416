#include "ops/embedding/embedding.h"

#include <gtest/gtest.h>

#include "ops/op_test_util.h"

namespace nibble {
namespace {

TEST(Embedding, CopiesTheRowsOfTheIds) {
  std::mt19937 random(1);
  const std::vector<Bf16> table = random_bf16(random, 5 * 8);
  ThreadPool threads(2);
  OpContext context{threads};
  const std::vector<TokenId> ids = {4, 0, 4};
  std::vector<float> out(3 * 8);
  embedding(context, ids, {table.data(), 5, 8}, out.data());
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(out[i], table[4 * 8 + i].to_float());
    EXPECT_EQ(out[8 + i], table[i].to_float());
    EXPECT_EQ(out[16 + i], out[i]);
  }
}

}  // namespace
}  // namespace nibble
