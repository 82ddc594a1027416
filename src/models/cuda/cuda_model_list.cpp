#include "models/cuda/decoder_cuda.h"

namespace nibble {
namespace {

struct CudaModelLoader {
  std::string_view architecture;
  Result<std::unique_ptr<CudaModel>> (*load)(const ModelConfig&, const CudaForwardLimits&, const CudaPlace&,
                                             WeightFeed&, cudaStream_t);
};

// plan/rules.cpp has the same names for plans without a GPU.
constexpr CudaModelLoader loaders[] = {
    {"GptOssForCausalLM", load_decoder_cuda},
    {"Qwen3MoeForCausalLM", load_decoder_cuda},
    {"Qwen3NextForCausalLM", load_decoder_cuda},
    {"Qwen3_5ForCausalLM", load_decoder_cuda},
    {"Qwen3_5ForConditionalGeneration", load_decoder_cuda},
    {"Qwen3_5MoeForCausalLM", load_decoder_cuda},
    {"Qwen3_5MoeForConditionalGeneration", load_decoder_cuda},
    {"DeepseekV3ForCausalLM", load_decoder_cuda},
    {"KimiK25ForConditionalGeneration", load_decoder_cuda},
    {"Glm4MoeLiteForCausalLM", load_decoder_cuda},
};

}  // namespace

Result<std::unique_ptr<CudaModel>> load_cuda_model(const ModelConfig& config, const CudaForwardLimits& limits,
                                                   const CudaPlace& place, WeightFeed& feed,
                                                   cudaStream_t stream) {
  for (const CudaModelLoader& loader : loaders) {
    if (loader.architecture == config.architecture) return loader.load(config, limits, place, feed, stream);
  }
  return invalid_argument("no GPU kernels are built for the architecture " + config.architecture +
                          "; give --device cpu");
}

}  // namespace nibble
