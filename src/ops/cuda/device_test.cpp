// What the record of a run says about the machine and the program (tools/device_record.py).
#include <string>

#include "ops/cuda/device_sources.h"
#include "ops/cuda/device_test_util.h"

namespace nibble {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

using Device = OnTheGpu;

TEST_F(Device, IsOneTheKernelsWereWrittenFor) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, 0));
  int runtime = 0, driver = 0;
  cuda_check(cudaRuntimeGetVersion(&runtime));
  cuda_check(cudaDriverGetVersion(&driver));
  RecordProperty("gpu", properties.name);
  RecordProperty("cuda_runtime", version_text(runtime));
  RecordProperty("cuda_of_driver", version_text(driver));
  RecordProperty("sources", NIBBLE_DEVICE_SOURCES_HASH);
  EXPECT_EQ(properties.major, 9) << properties.name << " has compute capability " << properties.major << "."
                                 << properties.minor;
  EXPECT_EQ(properties.minor, 0);
}

}  // namespace
}  // namespace nibble
