// On two GPUs or more, or on emulated ones: what ranks merge is what each had.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/cuda/peer_test_util.h"
#include "ops/cuda/device_test_util.h"
#include "ops/peer_gather/cuda/merge_parts_cuda.h"

namespace nibble {
namespace {

class MergePartsOnGpus : public OnSeveralGpus {
 protected:
  void SetUp() override {
    OnSeveralGpus::SetUp();
    if (!IsSkipped() && !nccl_functions().ok()) GTEST_SKIP() << nccl_functions().status().message();
  }

  // body(merge, stream) on each of so many ranks.
  template <class Body>
  static void on_joined(int ranks, const Body& body) {
    const Result<NcclId> id = RankMerge::draw_id();
    ASSERT_TRUE(id.ok()) << id.status().message();
    on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
      RankMerge merge(rank, ranks);
      const Status joined = merge.join(*id, stream);
      ASSERT_TRUE(joined.ok()) << joined.message();
      body(merge, stream);
    });
  }
};

std::vector<std::uint32_t> words_at(const DeviceBuffer& buffer) {
  std::vector<std::uint32_t> words(buffer.size() / 4);
  buffer.copy_to(std::span(words));
  return words;
}

// Bits of numbers that arithmetic would change: infinities, NaNs with their payloads, zeros with a sign.
std::uint32_t word_of(int rank, int row, int column) {
  constexpr std::uint32_t odd[] = {0x7f800000, 0xff800000, 0x7fc00001, 0xffffffff, 0x80000000, 0x00000001};
  return (row + column) % 3 == 0 ? odd[static_cast<std::size_t>(rank + row + column) % std::size(odd)]
                                 : static_cast<std::uint32_t>((rank * 64 + row) * 4096 + column);
}

// Of 16 bytes and of 4, more than a block has threads, and of a rank that has none.
TEST_F(MergePartsOnGpus, ColumnsOfAllRanksAreWhereTheyBelongWithTheirBits) {
  for (const int ranks : group_sizes()) {
    for (const int width : {4, 1028, 7}) {
      constexpr int rows = 5, rounds = 3;
      on_joined(ranks, [&](const RankMerge& merge, cudaStream_t stream) {
        const std::size_t row_bytes = static_cast<std::size_t>(ranks * width) * 4,
                          bytes = static_cast<std::size_t>(width) * 4;
        DeviceBuffer whole = device_bytes(rows * row_bytes, 0xa5);
        for (int round = 0; round < rounds; ++round) {
          const bool has_some = round < 2 || merge.rank() != 1;
          std::vector<std::uint32_t> own;
          for (int i = 0; i < rows * width; ++i)
            own.push_back(word_of(merge.rank() + round, i / width, i % width));
          const DeviceBuffer from = on_device(own);
          const Status status = merge_columns_cuda(merge,
                                                   {.from = from.data(),
                                                    .to = whole.data(),
                                                    .rows = rows,
                                                    .row_bytes = row_bytes,
                                                    .first = static_cast<std::size_t>(merge.rank()) * bytes,
                                                    .bytes = has_some ? bytes : 0},
                                                   stream);
          ASSERT_TRUE(status.ok()) << status.message();
          cuda_check(cudaStreamSynchronize(stream));
          const std::vector<std::uint32_t> found = words_at(whole);
          for (int i = 0; i < rows * ranks * width; ++i) {
            const int row = i / (ranks * width), column = i % (ranks * width), rank = column / width;
            const bool is_there = round < 2 || rank != 1;
            ASSERT_EQ(found[static_cast<std::size_t>(i)],
                      is_there ? word_of(rank + round, row, column % width) : 0u)
                << ranks << " ranks, round " << round << ", word " << i;
          }
        }
        EXPECT_TRUE(merge.failure().ok());
      });
    }
  }
}

TEST_F(MergePartsOnGpus, WhatIsNoWholeWordIsRefused) {
  const Status status = place_own_columns_cuda({.rows = 1, .row_bytes = 6}, nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("multiples of 4 bytes"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace nibble
