// What doctor asks of a GPU, and what is asked before a model is loaded.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "ops/cuda/device_test_util.h"
#include "runtime/cuda/gpu_check_util.h"
#include "runtime/cuda/gpu_worker_test_util.h"
#include "runtime/gpu.h"

namespace nibble {
namespace {

TEST_F(OnTheGpu, MatricesInBlocksAreFoundInOrder) {
  for (const auto check :
       {check_fp8_linear, check_rounded_linear, check_nvfp4_linear, check_fp8_experts, check_bf16_experts}) {
    const Result<std::string> found = check();
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, "");
  }
}

TEST_F(OnTheGpu, ExpertsInEachFormatOfFourBitsAreFoundInOrder) {
  for (const auto check : {check_mxfp4_experts, check_nvfp4_experts, check_int4_experts}) {
    const Result<std::string> found = check();
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, "");
  }
}

TEST_F(OnTheGpu, LatentAttentionAndTheGatedDeltaRuleAreFoundInOrder) {
  for (const auto check : {check_latent_attention, check_gated_delta}) {
    const Result<std::string> found = check();
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, "");
  }
}

#ifdef NIBBLE_GPU_EMULATION
TEST(GpuCheck, AGridWithoutPlacesForItsBlocksIsRefusedBeforeWeightsAreRead) {
  bool reads = false;
  GpuWeights weights{.source = must(WeightSource::open(example)),
                     .progress = [&reads](double, double) { reads = true; }};
  emulation::most_threads = 512;
  const Result<std::unique_ptr<Worker>> worker =
      start_gpu_worker(example_config(), std::move(weights), limits_of(example_config(), false));
  emulation::most_threads = 2048;
  ASSERT_FALSE(worker.ok());
  EXPECT_NE(worker.status().message().find("blocks of sm90_attention_few wait for each other"),
            std::string::npos)
      << worker.status().message();
  EXPECT_FALSE(reads);
}
#endif

}  // namespace
}  // namespace nibble
