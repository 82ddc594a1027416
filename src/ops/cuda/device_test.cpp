// What the record of a run says about the machine and the program (tools/device_record.py).
#include <csignal>
#include <string>
#include <vector>

#include "ops/cuda/device_sources.h"
#include "ops/cuda/device_test_util.h"
#include "ops/embedding/cuda/embedding_cuda.h"

namespace nibble {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

using Device = OnTheGpu;

TEST_F(Device, IsOneTheKernelsWereWrittenFor) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, 0));
  int devices = 0, runtime = 0, driver = 0;
  cuda_check(cudaGetDeviceCount(&devices));
  cuda_check(cudaRuntimeGetVersion(&runtime));
  cuda_check(cudaDriverGetVersion(&driver));
  RecordProperty("gpu", properties.name);
  RecordProperty("gpus", devices);
  RecordProperty("cuda_runtime", version_text(runtime));
  RecordProperty("cuda_of_driver", version_text(driver));
  RecordProperty("sources", NIBBLE_DEVICE_SOURCES_HASH);
  EXPECT_EQ(properties.major, 9) << properties.name << " has compute capability " << properties.major << "."
                                 << properties.minor;
  EXPECT_EQ(properties.minor, 0);
}

// In a process of its own, begun anew: CUDA does not survive a fork, nor this.
TEST_F(Device, AnIllegalAddressEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto read_from_nowhere = [] {
    DeviceBuffer ids = device_bytes(sizeof(std::int32_t), 0), out = device_bytes(8 * sizeof(float), 0);
    const Status queued = embedding_cuda({.table = reinterpret_cast<const Bf16*>(0x100),
                                          .ids = ids.as<std::int32_t>(),
                                          .rows = 1,
                                          .hidden = 8,
                                          .out = out.as<float>()},
                                         nullptr);
    std::vector<float> row(8);
    if (queued.ok()) out.copy_to(std::span(row));
  };
  EXPECT_EXIT(read_from_nowhere(), testing::KilledBySignal(SIGABRT),
              "cudaErrorIllegalAddress: an illegal memory access");
}

}  // namespace
}  // namespace nibble
