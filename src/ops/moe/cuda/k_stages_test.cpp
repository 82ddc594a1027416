// How chunks of K are cut into stages.
#include "ops/moe/cuda/k_stages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/moe/cuda/mxfp4_granules.h"

namespace nibble {
namespace {

TEST(KChunks, HaveEveryBlockOnceInStagesOfNearlyEqualNumbers) {
  for (const int most : {3, 5, 6}) {
    for (int cols = 32; cols <= 8192; cols += 32) {
      const Mxfp4GranuleShape shape{16, cols};
      int block = 0;
      const KChunks chunks = k_chunks(shape, most);
      for (const KChunk& chunk : chunks.chunk) {
        ASSERT_EQ(chunk.begin, block) << cols << " columns";
        int least = most, largest = 0, stages = 0;
        while (block < chunk.begin + chunk.blocks) {
          const int count = chunk.stage_blocks(stages++);
          ASSERT_GT(count, 0);
          ASSERT_TRUE(chunks.has_stage_of(count));
          least = std::min(least, count);
          largest = std::max(largest, count);
          block += count;
        }
        ASSERT_EQ(block, chunk.begin + chunk.blocks) << cols << " columns";
        ASSERT_LE(largest, most);
        if (stages > 0) {
          ASSERT_LE(largest - least, 1);
        }
        ASSERT_EQ(stages, (chunk.blocks + most - 1) / most) << "as few as will do";
      }
      ASSERT_EQ(block, shape.blocks());
    }
  }
}

}  // namespace
}  // namespace nibble
