// On two GPUs or more, or on emulated ones: what ranks gather is what each had.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/cuda/on_device.h"
#include "comm/cuda/peer_rooms.h"
#include "comm/cuda/peer_test_util.h"
#include "ops/cuda/device_test_util.h"
#include "ops/linear/cuda/dense_tiles.h"
#include "ops/peer_gather/cuda/peer_gather_cuda.h"

namespace nibble {
namespace {

class PeerGatherOnGpus : public OnSeveralGpus {};

std::unique_ptr<PeerRooms> rooms_of(int ranks, std::size_t bytes,
                                    std::chrono::milliseconds deadline = patient) {
  auto rooms = PeerRooms::make(first_ranks(ranks).members, bytes, deadline);
  NIBBLE_CHECK(rooms.ok(), rooms.status().message());
  return std::move(rooms).value();
}

// What rank `rank` has in column `column` of row `row` in round `round`.
std::uint32_t word_of(int round, int rank, int row, int column) {
  return static_cast<std::uint32_t>(((round * 8 + rank) * 64 + row) * 4096 + column);
}

std::vector<std::uint32_t> from_device(const std::byte* at, std::size_t words) {
  std::vector<std::uint32_t> host(words);
  cuda_check(cudaMemcpy(host.data(), at, words * 4, cudaMemcpyDeviceToHost));
  return host;
}

// Two matrices take turns, as in a forward: one is read while the other is filled.
TEST_F(PeerGatherOnGpus, ColumnsOfAllRanksAreWhereTheyBelong) {
  for (const int ranks : group_sizes()) {
    for (const int width : {4, 36, 7}) {  // of a rank; the last in words
      constexpr int rows = 5, rounds = 6;
      const std::size_t row_words = static_cast<std::size_t>(ranks * width), words = rows * row_words;
      const auto rooms = rooms_of(ranks, 2 * words * 4);
      on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
        std::vector<std::uint32_t> own(static_cast<std::size_t>(rows * width));
        DeviceBuffer from = device_bytes(own.size() * 4, 0);
        for (int round = 0; round < rounds; ++round) {
          for (int i = 0; i < rows * width; ++i)
            own[static_cast<std::size_t>(i)] = word_of(round, rank, i / width, i % width);
          cuda_check(cudaMemcpy(from.data(), own.data(), own.size() * 4, cudaMemcpyHostToDevice));
          std::byte* const whole = rooms->content(rank) + static_cast<std::size_t>(round % 2) * words * 4;
          const Status status = gather_columns_cuda(rooms->of(rank),
                                                    {.from = from.data(),
                                                     .from_stride = static_cast<std::size_t>(width) * 4,
                                                     .to = whole + static_cast<std::size_t>(rank * width) * 4,
                                                     .to_stride = row_words * 4,
                                                     .bytes = static_cast<std::size_t>(width) * 4,
                                                     .rows = rows},
                                                    stream);
          ASSERT_TRUE(status.ok()) << status.message();
          cuda_check(cudaStreamSynchronize(stream));
          const std::vector<std::uint32_t> found = from_device(whole, words);
          for (std::size_t i = 0; i < words; ++i) {
            const int column = static_cast<int>(i % row_words);
            ASSERT_EQ(found[i],
                      word_of(round, column / width, static_cast<int>(i / row_words), column % width))
                << ranks << " ranks, round " << round << ", word " << i;
          }
        }
      });
      for (int rank = 0; rank < ranks; ++rank) EXPECT_TRUE(rooms->failure(rank).ok());
    }
  }
}

TEST_F(PeerGatherOnGpus, WhatOneRankWantsGoesToIt) {
  const int ranks = group_sizes().back();
  const auto rooms = rooms_of(ranks, static_cast<std::size_t>(ranks) * 16);
  on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
    DeviceBuffer from = on_device(std::vector<std::uint32_t>(4, static_cast<std::uint32_t>(rank + 1)));
    ASSERT_TRUE(gather_columns_cuda(rooms->of(rank),
                                    {.from = from.data(),
                                     .from_stride = 16,
                                     .to = rooms->content(rank) + 16 * rank,
                                     .to_stride = 16,
                                     .bytes = 16,
                                     .rows = 1,
                                     .wanted_by = 1},
                                    stream)
                    .ok());
    cuda_check(cudaStreamSynchronize(stream));
    const std::vector<std::uint32_t> found =
        from_device(rooms->content(rank), static_cast<std::size_t>(ranks) * 4);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_EQ(found[i], rank == 1 ? static_cast<std::uint32_t>(i / 4 + 1) : 0u) << rank;
  });
}

// Slots of all ranks' experts, of nobody's, and ranks without any.
TEST_F(PeerGatherOnGpus, ProductsOfEachRanksExpertsReachAll) {
  for (const int ranks : group_sizes()) {
    constexpr int slots = 12, hidden = 1028, experts = 16;
    constexpr std::int32_t cases[3][slots] = {{0, 15, 7, 8, -1, 3, 4, 11, 12, 1, -1, 9},
                                              {1, 1, 1, 0, 0, 0, 1, 1, -1, 0, 0, 1},
                                              {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}};
    const int each = experts / ranks;
    SlotOwners owners;
    for (int i = 0; i <= ranks; ++i) owners.first_expert[i] = i * each;
    const auto rooms = rooms_of(ranks, 2 * slots * hidden * 4);
    on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
      for (int round = 0; round < 9; ++round) {
        const auto& ids = cases[round % 3];
        std::byte* const products =
            rooms->content(rank) + static_cast<std::size_t>(round % 2) * slots * hidden * 4;
        // This rank's alone are its own. Written before the meeting to which others bring theirs, so they
        // must not lie where those come.
        std::vector<float> own(hidden);
        for (int slot = 0; slot < slots; ++slot) {
          if (ids[slot] < 0 || ids[slot] / each != rank) continue;
          for (int i = 0; i < hidden; ++i)
            own[static_cast<std::size_t>(i)] = static_cast<float>(round * 100000 + slot * 5000 + i);
          cuda_check(
              cudaMemcpy(products + slot * hidden * 4, own.data(), hidden * 4, cudaMemcpyHostToDevice));
        }
        DeviceBuffer on_gpu = on_device(std::vector<std::int32_t>(ids, ids + slots));
        const Status status = gather_products_cuda(rooms->of(rank),
                                                   {.products = reinterpret_cast<float*>(products),
                                                    .expert_ids = on_gpu.as<std::int32_t>(),
                                                    .slots = slots,
                                                    .hidden = hidden,
                                                    .owners = owners},
                                                   stream);
        ASSERT_TRUE(status.ok()) << status.message();
        cuda_check(cudaStreamSynchronize(stream));
        std::vector<float> found(slots * hidden);
        cuda_check(cudaMemcpy(found.data(), products, found.size() * 4, cudaMemcpyDeviceToHost));
        for (int i = 0; i < slots * hidden; ++i) {
          if (ids[i / hidden] < 0) continue;
          ASSERT_EQ(found[static_cast<std::size_t>(i)],
                    static_cast<float>(round * 100000 + i / hidden * 5000 + i % hidden))
              << ranks << " ranks, round " << round << ", slot " << i / hidden;
        }
      }
    });
  }
}

TEST_F(PeerGatherOnGpus, OfManySlotsEachRankGetsTheRowsThatItAddsUp) {
  for (const int ranks : group_sizes()) {
    constexpr int slots = 14, hidden = 260, experts = 8;
    const int each = experts / ranks, a_rank = (slots + ranks - 1) / ranks;
    const auto rooms = rooms_of(ranks, slots * hidden * 4);
    SlotOwners owners;
    for (int i = 0; i <= ranks; ++i) owners.first_expert[i] = i * each;
    on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
      std::vector<std::int32_t> ids(slots);
      std::vector<float> products(slots * hidden, -1.0f);
      for (int slot = 0; slot < slots; ++slot) {
        ids[static_cast<std::size_t>(slot)] = slot * 3 % experts;
        for (int i = 0; i < hidden && slot * 3 % experts / each == rank; ++i)
          products[static_cast<std::size_t>(slot * hidden + i)] = static_cast<float>(slot * 1000 + i);
      }
      float* const room = reinterpret_cast<float*>(rooms->content(rank));
      cuda_check(cudaMemcpy(room, products.data(), products.size() * 4, cudaMemcpyHostToDevice));
      DeviceBuffer on_gpu = on_device(ids);
      // What others send may come before all have what is their own: as in a forward a meeting is between.
      ASSERT_TRUE(gather_columns_cuda(rooms->of(rank), {}, stream).ok());
      ASSERT_TRUE(gather_products_cuda(rooms->of(rank),
                                       {.products = room,
                                        .expert_ids = on_gpu.as<std::int32_t>(),
                                        .slots = slots,
                                        .hidden = hidden,
                                        .owners = owners,
                                        .slots_a_group = a_rank},
                                       stream)
                      .ok());
      cuda_check(cudaStreamSynchronize(stream));
      cuda_check(cudaMemcpy(products.data(), room, products.size() * 4, cudaMemcpyDeviceToHost));
      for (int slot = rank * a_rank; slot < std::min((rank + 1) * a_rank, slots); ++slot) {
        for (int i = 0; i < hidden; ++i) {
          ASSERT_EQ(products[static_cast<std::size_t>(slot * hidden + i)],
                    static_cast<float>(slot * 1000 + i))
              << ranks << " ranks, rank " << rank << ", slot " << slot;
        }
      }
    });
  }
}

// Through windows, as often as they take turns several times; token tiles and products take turns too. On the
// emulation a block has several slots.
TEST_F(PeerGatherOnGpus, FewRowsComeThroughWindows) {
  for (const int ranks : group_sizes()) {
    constexpr int columns = 192, hidden = 260, slots = 41, experts = 16;
    const int all = columns * ranks, each = experts / ranks;
    const std::size_t window = 2 * DenseShape{0, all}.token_bytes(gather_few_tokens),
                      rows = static_cast<std::size_t>(gather_few_slots) * hidden * 4;
    const auto rooms = rooms_of(ranks, window + rows);
    SlotOwners by_experts;
    for (int i = 0; i <= ranks; ++i) by_experts.first_expert[i] = i * each;
    for (int rank = 0; rank < ranks; ++rank) {
      const OnDevice on(rank);
      cuda_check(cudaMemset(rooms->content(rank), 0xff, window + rows));
      cuda_check(cudaDeviceSynchronize());
    }
    on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
      DeviceBuffer steps = device_bytes(gather_token_steps * 4, 0);
      for (int round = 0; round < 7; ++round) {
        const int tokens = 1 + round * 11 % 20;
        const std::size_t own_bytes = DenseShape{0, columns}.token_bytes(tokens),
                          all_bytes = DenseShape{0, all}.token_bytes(tokens);
        std::vector<std::uint8_t> own(own_bytes), found(all_bytes);
        const auto value = [&](int of, int token, int column) {
          return static_cast<std::uint8_t>(round * 31 + of * 17 + token * 3 + column);
        };
        for (int token = 0; token < tokens; ++token) {
          for (int column = 0; column < columns; ++column)
            own[token_offset(columns / 64, token, column)] = value(rank, token, column);
        }
        DeviceBuffer from = on_device(own), to = device_bytes(all_bytes, 0);
        ASSERT_TRUE(gather_tokens_cuda(rooms->of(rank),
                                       {.from = from.as<std::uint8_t>(),
                                        .to = to.as<std::uint8_t>(),
                                        .windows = reinterpret_cast<std::uint8_t*>(rooms->content(rank)),
                                        .steps = steps.as<std::uint32_t>(),
                                        .columns = columns,
                                        .tokens = tokens},
                                       stream)
                        .ok());
        SlotOwners owners = by_experts;
        owners.by_turns = round % 2 == 1;
        std::vector<std::int32_t> ids(slots);
        std::vector<float> products(slots * hidden, -1.0f);
        for (int slot = 0; slot < slots; ++slot) {
          ids[static_cast<std::size_t>(slot)] = slot == 4 ? -1 : (slot * 5 + round) % experts;
          const int owner = owners.by_turns ? slot % ranks : (slot * 5 + round) % experts / each;
          for (int i = 0; i < hidden && owner == rank; ++i)
            products[static_cast<std::size_t>(slot * hidden + i)] =
                static_cast<float>(slot * 1000 + i + round);
        }
        DeviceBuffer on_gpu = on_device(ids), rows_here = on_device(products);
        ASSERT_TRUE(gather_products_cuda(rooms->of(rank),
                                         {.products = rows_here.as<float>(),
                                          .expert_ids = on_gpu.as<std::int32_t>(),
                                          .slots = slots,
                                          .hidden = hidden,
                                          .owners = owners,
                                          .window = reinterpret_cast<float*>(rooms->content(rank) + window)},
                                         stream)
                        .ok());
        cuda_check(cudaStreamSynchronize(stream));
        to.copy_to(std::span(found));
        rows_here.copy_to(std::span(products));
        for (int token = 0; token < tokens; ++token) {
          for (int column = 0; column < all; ++column) {
            ASSERT_EQ(found[token_offset(all / 64, token, column)],
                      value(column / columns, token, column % columns))
                << ranks << " ranks, round " << round << ", token " << token << ", column " << column;
          }
        }
        for (int slot = 0; slot < slots; ++slot) {
          if (slot == 4) continue;
          for (int i = 0; i < hidden; ++i) {
            ASSERT_EQ(products[static_cast<std::size_t>(slot * hidden + i)],
                      static_cast<float>(slot * 1000 + i + round))
                << ranks << " ranks, round " << round << ", slot " << slot;
          }
        }
      }
    });
    for (int rank = 0; rank < ranks; ++rank) EXPECT_TRUE(rooms->failure(rank).ok());
  }
}

TEST_F(PeerGatherOnGpus, ARankThatDoesNotComeIsNamedAndTheOthersGoOn) {
  const int ranks = group_sizes().back();
  const auto rooms = rooms_of(ranks, 64, std::chrono::milliseconds(200));
  on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
    if (rank == 1) return;
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(gather_columns_cuda(rooms->of(rank), {.to = rooms->content(rank)}, stream).ok());
    cuda_check(cudaStreamSynchronize(stream));
  });
  EXPECT_TRUE(rooms->failure(1).ok());
  const Status failure = rooms->failure(0);
  ASSERT_FALSE(failure.ok());
  EXPECT_NE(failure.message().find("rank 0 waited 200 ms"), std::string::npos) << failure.message();
  EXPECT_NE(failure.message().find("rank 1, which did not come"), std::string::npos) << failure.message();
}

// The ranks of a group that waits for one in vain do not wait again where all meet.
TEST_F(PeerGatherOnGpus, AWaitThatEndsInAGroupEndsThoseOfAllAndIsTheOneThatIsWrittenDown) {
  if (devices_ < 4) GTEST_SKIP() << "two groups of two ranks need four GPUs";
  constexpr int ranks = 4, missing = 3;
  constexpr std::chrono::seconds of_all{20};
  const auto all = rooms_of(ranks, 64, of_all);
  const std::vector<int> second = {2, 3};
  auto made = PeerRooms::make(second, 64, std::chrono::milliseconds(200), second[0]);
  ASSERT_TRUE(made.ok()) << made.status().message();
  PeerRooms& group = **made;
  group.end_waits_with(*all);
  const auto begin = std::chrono::steady_clock::now();
  const OnDevice on(2);
  ASSERT_TRUE(gather_columns_cuda(group.of(0), {.to = group.content(0)}, nullptr).ok());
  ASSERT_TRUE(gather_columns_cuda(all->of(2), {.to = all->content(2)}, nullptr).ok());
  cuda_check(cudaDeviceSynchronize());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, of_all);
  EXPECT_EQ(group.missed_by(0), missing);
  EXPECT_EQ(all->missed_by(2), std::nullopt);
  EXPECT_NE(group.failure(0).message().find("rank 2 waited 200 ms for rank 3"), std::string::npos)
      << group.failure(0).message();
}

TEST_F(PeerGatherOnGpus, RefusesWhatItCannotCopy) {
  const auto rooms = rooms_of(2, 64);
  EXPECT_FALSE(gather_columns_cuda(rooms->of(0), {.bytes = 6, .rows = 1}, nullptr).ok());
  EXPECT_FALSE(gather_products_cuda(rooms->of(0), {.hidden = 6}, nullptr).ok());
  const std::vector<int> three = {0, 1, 2};
  EXPECT_FALSE(PeerRooms::make(three, 64, patient).ok());
}

}  // namespace
}  // namespace nibble
