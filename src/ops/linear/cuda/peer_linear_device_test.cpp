// On two GPUs or more, or on emulated ones: a product of which each rank has some columns, against one GPU's.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "comm/cuda/peer_rooms.h"
#include "comm/cuda/peer_test_util.h"
#include "ops/linear/cuda/linear_device_test_util.h"
#include "ops/linear/cuda/peer_linear_cuda.h"

namespace nibble {
namespace {

class PeerLinearOnGpus : public OnSeveralGpus {};

std::vector<Bf16> random_matrix(int rows, int cols, unsigned seed) {
  std::minstd_rand draw(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<Bf16> matrix(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
  for (Bf16& value : matrix) value = Bf16::from_float(uniform(draw));
  return matrix;
}

// What rank `rank` of so many has of the columns.
std::vector<Bf16> columns_of(const std::vector<Bf16>& x, int cols, int rank, int ranks) {
  const std::size_t width = static_cast<std::size_t>(cols / ranks);
  std::vector<Bf16> own;
  for (std::size_t at = static_cast<std::size_t>(rank) * width; at < x.size();
       at += static_cast<std::size_t>(cols))
    own.insert(own.end(), x.begin() + static_cast<std::ptrdiff_t>(at),
               x.begin() + static_cast<std::ptrdiff_t>(at + width));
  return own;
}

// One GPU's bits, of products that take turns through the same windows with ever other tokens.
TEST_F(PeerLinearOnGpus, HasTheBitsOfOneGpu) {
  constexpr DenseShape shape{200, 1024};
  const std::vector<Bf16> weight = random_matrix(shape.rows, shape.cols, 1),
                          bias = random_matrix(1, shape.rows, 2);
  constexpr int most_tokens = peer_linear_tokens;
  const std::vector<int> turns = {1, 8, 3, 1, 1, 5, 8};
  std::vector<std::vector<Bf16>> inputs;
  std::vector<std::vector<float>> wanted;
  {
    cuda_check(cudaSetDevice(0));
    LinearWorkspace workspace(most_tokens);
    const DeviceBuffer tiles = tiles_of(weight, shape), on_gpu = on_device(bias);
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      const int tokens = turns[turn];
      inputs.push_back(random_matrix(tokens, shape.cols, static_cast<unsigned>(10 + turn)));
      const DeviceBuffer x = tokens_of(inputs.back(), shape.cols);
      std::vector<float> y(static_cast<std::size_t>(tokens * shape.rows));
      DeviceBuffer out = device_bytes(y.size() * 4, 0xff);
      const Status status =
          linear_cuda({.x = {reinterpret_cast<const std::uint8_t*>(x.data()), tokens},
                       .weight = {reinterpret_cast<const std::uint8_t*>(tiles.data()), shape},
                       .bias = turn % 2 == 0 ? reinterpret_cast<const Bf16*>(on_gpu.data()) : nullptr,
                       .y = out.as<float>(),
                       .y_stride = shape.rows,
                       .workspace = workspace.get()},
                      nullptr);
      ASSERT_TRUE(status.ok()) << status.message();
      out.copy_to(std::span(y));
      wanted.push_back(std::move(y));
    }
  }
  for (const int ranks : group_sizes()) {
    ASSERT_TRUE(peer_linear_takes(shape, ranks));
    const std::size_t floats = peer_linear_floats(shape);
    auto rooms = PeerRooms::make(first_ranks(ranks).members, floats * 4, patient);
    ASSERT_TRUE(rooms.ok()) << rooms.status().message();
    for (int rank = 0; rank < ranks; ++rank) {
      const OnDevice on(rank);
      cuda_check(cudaMemset(rooms.value()->content(rank), 0xff, floats * 4));
      cuda_check(cudaDeviceSynchronize());
    }
    on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
      const DeviceBuffer tiles = tiles_of(weight, shape), on_gpu = on_device(bias);
      DeviceBuffer steps = device_bytes(static_cast<std::size_t>(processors_of_device()) * 4, 0);
      for (std::size_t turn = 0; turn < turns.size(); ++turn) {
        const int tokens = turns[turn], stride = shape.rows + 8;
        const DeviceBuffer x =
            tokens_of(columns_of(inputs[turn], shape.cols, rank, ranks), shape.cols / ranks);
        std::vector<float> y(static_cast<std::size_t>(tokens * stride));
        DeviceBuffer out = device_bytes(y.size() * 4, 0);
        cuda_check(cudaDeviceSynchronize());
        const Status status =
            peer_linear_cuda(rooms.value()->of(rank),
                             {.x = {reinterpret_cast<const std::uint8_t*>(x.data()), tokens},
                              .weight = {reinterpret_cast<const std::uint8_t*>(tiles.data()), shape},
                              .bias = turn % 2 == 0 ? reinterpret_cast<const Bf16*>(on_gpu.data()) : nullptr,
                              .y = out.as<float>(),
                              .y_stride = stride,
                              .windows = reinterpret_cast<float*>(rooms.value()->content(rank)),
                              .steps = steps.as<std::uint32_t>()},
                             stream);
        ASSERT_TRUE(status.ok()) << status.message();
        cuda_check(cudaStreamSynchronize(stream));
        out.copy_to(std::span(y));
        for (int token = 0; token < tokens; ++token) {
          for (int row = 0; row < shape.rows; ++row) {
            const float found = y[static_cast<std::size_t>(token * stride + row)],
                        of_one = wanted[turn][static_cast<std::size_t>(token * shape.rows + row)];
            ASSERT_EQ(std::memcmp(&found, &of_one, 4), 0)
                << ranks << " ranks, rank " << rank << ", turn " << turn << ", token " << token << ", row "
                << row << ": " << found << ", not " << of_one;
          }
        }
      }
    });
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(rooms.value()->failure(rank).ok()) << rooms.value()->failure(rank).message();
      std::vector<std::uint32_t> left(floats);
      const OnDevice on(rank);
      cuda_check(cudaMemcpy(left.data(), rooms.value()->content(rank), floats * 4, cudaMemcpyDeviceToHost));
      EXPECT_EQ(std::count(left.begin(), left.end(), absent_bits), std::ssize(left))
          << "the next launch would take a sum of this one";
    }
  }
}

TEST_F(PeerLinearOnGpus, ARankThatDoesNotComeIsNamed) {
  constexpr DenseShape shape{64, 1024};
  const std::vector<Bf16> weight = random_matrix(shape.rows, shape.cols, 1);
  auto rooms =
      PeerRooms::make(first_ranks(2).members, peer_linear_floats(shape) * 4, std::chrono::milliseconds(200));
  ASSERT_TRUE(rooms.ok()) << rooms.status().message();
  const OnDevice on(0);
  cuda_check(cudaMemset(rooms.value()->content(0), 0xff, peer_linear_floats(shape) * 4));
  const DeviceBuffer tiles = tiles_of(weight, shape), x = tokens_of(random_matrix(1, 512, 3), 512);
  DeviceBuffer steps = device_bytes(static_cast<std::size_t>(processors_of_device()) * 4, 0),
               out = device_bytes(64 * 4, 0);
  cuda_check(cudaDeviceSynchronize());
  ASSERT_TRUE(peer_linear_cuda(rooms.value()->of(0),
                               {.x = {reinterpret_cast<const std::uint8_t*>(x.data()), 1},
                                .weight = {reinterpret_cast<const std::uint8_t*>(tiles.data()), shape},
                                .y = out.as<float>(),
                                .y_stride = 64,
                                .windows = reinterpret_cast<float*>(rooms.value()->content(0)),
                                .steps = steps.as<std::uint32_t>()},
                               nullptr)
                  .ok());
  cuda_check(cudaDeviceSynchronize());
  const Status failure = rooms.value()->failure(0);
  ASSERT_FALSE(failure.ok());
  EXPECT_NE(failure.message().find("rank 1"), std::string::npos) << failure.message();
}

TEST_F(PeerLinearOnGpus, TakesWholeChunksAlone) {
  EXPECT_TRUE(peer_linear_takes({2880, 4096}, 4));
  EXPECT_TRUE(peer_linear_takes({2880, 4096}, 8));
  EXPECT_FALSE(peer_linear_takes({2880, 4096}, 1));
  EXPECT_FALSE(peer_linear_takes({2880, 1088}, 2));  // 17 blocks of 64 columns
  const auto rooms = PeerRooms::make(first_ranks(2).members, 64, patient);
  EXPECT_FALSE(
      peer_linear_cuda(rooms.value()->of(0), {.x = {nullptr, 1}, .weight = {nullptr, {64, 1088}}}, nullptr)
          .ok());
  EXPECT_FALSE(
      peer_linear_cuda(rooms.value()->of(0), {.x = {nullptr, 9}, .weight = {nullptr, {64, 1024}}}, nullptr)
          .ok());
}

}  // namespace
}  // namespace nibble
