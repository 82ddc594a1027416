#include "plan/gpu_fit.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "plan/budget.h"
#include "plan/kernel_formats.h"

namespace nibble {
namespace {

// Architectures with a forward in models/cuda/.
constexpr std::string_view gpu_forwards[] = {"GptOssForCausalLM",
                                             "Qwen3MoeForCausalLM",
                                             "Qwen3NextForCausalLM",
                                             "Qwen3_5ForCausalLM",
                                             "Qwen3_5MoeForCausalLM",
                                             "Qwen3_5ForConditionalGeneration",
                                             "Qwen3_5MoeForConditionalGeneration",
                                             "DeepseekV3ForCausalLM",
                                             "KimiK25ForConditionalGeneration",
                                             "Glm4MoeLiteForCausalLM"};

// Positions of a sequence where none are asked for.
constexpr std::int64_t some_length = 8192;

// Of so many ranks, as what is asked for says, those that have the same sequences.
std::int64_t sharers_asked_for(const Situation& s, std::int64_t ranks) {
  const std::int64_t owners = s.options.data_parallel > 0 ? s.options.data_parallel
                              : s.options.dp_attention    ? ranks
                                                          : 1;
  return ranks % owners == 0 ? ranks / owners : ranks;
}

// What the attention that is built for GPUs takes.
bool fits_gpu_attention(const ModelTraits& model) {
  if (model.attention == AttentionKind::latent) {
    return model.latent.rank % 16 == 0 && model.latent.rank <= 512 && model.latent.rotated_dim % 16 == 0 &&
           model.latent.width() <= 576 && model.value_dim % 16 == 0;
  }
  const std::int64_t group = model.heads / std::max<std::int64_t>(model.kv_heads, 1);
  return model.attention == AttentionKind::grouped &&
         (model.query_dim == 64 || model.query_dim == 128 || model.query_dim == 256) && group > 0 &&
         group <= 16;
}

}  // namespace

bool runs_on_this_gpu(const Situation& s) {
  const std::span<const ExpertKernel> kernels = expert_kernels();
  return std::count(std::begin(gpu_forwards), std::end(gpu_forwards), s.model.architecture) != 0 &&
         fits_gpu_attention(s.model) && s.model.dense_format != StoredFormat::mxfp4 &&
         s.model.dense_format != StoredFormat::int4 &&
         std::any_of(kernels.begin(), kernels.end(), [&](const ExpertKernel& kernel) {
           return kernel.facts.device == DeviceKind::cuda && kernel.facts.built &&
                  kernel.facts.compute_capability == s.machine.gpu.compute_capability &&
                  takes_format(kernel, s.model.expert_format);
         });
}

std::int64_t least_bytes(const Situation& s, std::int64_t ranks) {
  const EngineOptions& options = s.options;
  const int rows = asked_step_tokens(options);
  const int sequences = asked_step_sequences(options) > 0 ? options.max_num_seqs : usual_gpu_sequences;
  const std::int64_t sharers = sharers_asked_for(s, ranks), owners = ranks / sharers;
  const auto of_owner = [&](std::int64_t all) { return (all + owners - 1) / owners; };
  const StepLimits limits{.rows = of_owner(rows > 0 ? rows : usual_gpu_rows),
                          .logit_rows = std::max(sequences, scoring_rows),
                          .sequences = of_owner(sequences),
                          .positions = s.model.max_positions,
                          .ranks = static_cast<int>(ranks),
                          .owners = static_cast<int>(owners),
                          .on_gpu = true,
                          .fp8_prompts = options.dtype == FloatType::fp8_e4m3};
  const std::int64_t weights =
      (owners > 1 ? owner_weight_bytes(s.model, Quantization::none, limits.ranks, limits.owners)
                  : weight_bytes(s.model, Quantization::none, limits.ranks)) +
      whole_weight_bytes(s.model, static_cast<int>(sharers));
  const std::int64_t positions =
      options.max_model_len > 0 ? options.max_model_len : std::min(some_length, s.model.max_positions);
  return weights + workspace_bytes(s.model, limits) + (options.enforce_eager ? 0 : graph_bytes(limits)) +
         state_bytes_of_rank(s.model, static_cast<int>(sharers), 0) * limits.sequences +
         positions * kv_position_bytes(s.model, DType::bf16, static_cast<int>(sharers));
}

std::int64_t room_beside_copies(const Situation& s) {
  const int ranks = static_cast<int>(s.number(Field::tensor_parallel));
  const std::int64_t sequences = sequences_of_rank(s);
  const std::int64_t positions = sequences * std::min<std::int64_t>(some_length, s.model.max_positions);
  return memory_budget(s) - weights_of(s) - expert_copies_bytes(s.model, ranks) -
         workspace_bytes(s.model, step_limits(s, s.model.max_positions)) - graph_bytes(step_limits(s, 0)) -
         positions * kv_position_bytes(s.model, kv_dtype_of(s), sharers_of(s));
}

bool heads_divide(const Situation& s, std::int64_t all_ranks) {
  const std::int64_t ranks = sharers_asked_for(s, all_ranks);
  const std::int64_t heads = s.model.heads, kv_heads = std::max<std::int64_t>(s.model.kv_heads, 1);
  if (ranks > 1 && s.model.attention == AttentionKind::latent &&
      heads / ranks * s.model.value_dim % gathered_columns != 0)
    return false;
  return heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0);
}

bool states_divide(const Situation& s, std::int64_t all_ranks) {
  const std::int64_t ranks = sharers_asked_for(s, all_ranks);
  const DeltaShape& delta = s.model.delta;
  if (ranks == 1 || s.model.linear_layers == 0) return true;
  return delta.key_heads % ranks == 0 && delta.values() / ranks % gathered_columns == 0;
}
bool dense_layers_divide(const Situation& s, std::int64_t all_ranks) {
  const std::int64_t ranks = sharers_asked_for(s, all_ranks);
  return ranks == 1 || s.model.dense_width == 0 || s.model.dense_width >= ranks * gathered_columns;
}

}  // namespace nibble
