// What tests of several GPUs share: members of a group, each in a thread with a device and a stream of its
// own. On the emulation there are four devices.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/cuda/peer_workspace.h"

namespace nibble {

// A kernel that is loaded at its first launch may wait for a device that waits for that launch.
inline const bool kernels_load_at_once = ::setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0;

// Skips where there are fewer than two.
class OnSeveralGpus : public testing::Test {
 protected:
  void SetUp() override {
#ifdef NIBBLE_GPU_EMULATION
    emulation::device_count = 4;
#endif
    if (cudaGetDeviceCount(&devices_) != cudaSuccess || devices_ < 2) {
      cudaGetLastError();
      GTEST_SKIP() << "needs two GPUs or more";
    }
    RecordProperty("gpus", devices_);
  }
#ifdef NIBBLE_GPU_EMULATION
  void TearDown() override { emulation::device_count = 1; }
#endif

  // 2, 4, 8, as far as there are GPUs.
  std::vector<int> group_sizes() const {
    std::vector<int> sizes;
    for (int size = 2; size <= devices_ && size <= most_ranks; size *= 2) sizes.push_back(size);
    return sizes;
  }

  int devices_ = 0;
};

#ifdef NIBBLE_GPU_EMULATION
inline constexpr std::chrono::milliseconds patient{120000};
#else
inline constexpr std::chrono::milliseconds patient{5000};
#endif

inline std::unique_ptr<PeerWorkspace> workspace_of(const Group& group, int most_rows, int hidden,
                                                   std::chrono::milliseconds deadline = patient) {
  auto workspace = PeerWorkspace::make(group, group.members,
                                       {.most_rows = most_rows, .hidden = hidden, .deadline = deadline});
  NIBBLE_CHECK(workspace.ok(), workspace.status().message());
  return std::move(workspace).value();
}

inline Group first_ranks(int count) {
  Group group{std::vector<int>(static_cast<std::size_t>(count))};
  std::iota(group.members.begin(), group.members.end(), 0);
  return group;
}

// body(rank, stream) in a thread for each of the ranks, whose devices they are.
template <class Body>
void on_each_gpu(const Group& group, const Body& body) {
  std::vector<std::thread> threads;
  for (const int rank : group.members) {
    threads.emplace_back([rank, &body] {
      cuda_check(cudaSetDevice(rank));
      cudaStream_t stream = nullptr;
      cuda_check(cudaStreamCreate(&stream));
      body(rank, stream);
      cuda_check(cudaStreamSynchronize(stream));
      cuda_check(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace nibble
