#include <bit>
#include <string>

#include "models/cuda/gpt_oss_cuda.h"
#include "models/rope_frequencies.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

DenseTiles tiles(DeviceArena& arena, std::int64_t rows, std::int64_t cols) {
  const DenseShape shape{static_cast<int>(rows), static_cast<int>(cols)};
  return {arena.take<std::uint8_t>(shape.bytes()), shape};
}

Mxfp4Granules granules(DeviceArena& arena, std::int64_t experts, std::int64_t rows, std::int64_t cols) {
  const Mxfp4GranuleShape shape{static_cast<int>(rows), static_cast<int>(cols)};
  return {arena.take<std::uint8_t>(size(experts) * shape.bytes()), static_cast<int>(experts), shape};
}

}  // namespace

int cuda_heads(const ModelConfig& config) {
  const std::int64_t group = config.num_attention_heads / config.num_key_value_heads;
  return static_cast<int>(config.num_key_value_heads) *
         static_cast<int>(std::bit_ceil(static_cast<unsigned>(group)));
}

GptOssCudaWeights lay_out_gpt_oss_weights(const ModelConfig& config, DeviceArena& arena) {
  const std::int64_t hidden = config.hidden_size, experts = config.num_local_experts;
  const std::int64_t q_width = cuda_heads(config) * config.head_dim;
  const std::int64_t qkv_width = q_width + 2 * config.num_key_value_heads * config.head_dim;
  GptOssCudaWeights weights;
  weights.embedding = arena.take<Bf16>(size(config.vocab_size * hidden));
  for (std::int64_t index = 0; index < config.num_hidden_layers; ++index) {
    GptOssCudaLayer layer;
    layer.attention_norm = arena.take<Bf16>(size(hidden));
    layer.qkv = tiles(arena, qkv_width, hidden);
    layer.wo = tiles(arena, hidden, q_width);
    if (config.attention_bias) {
      layer.qkv_bias = arena.take<Bf16>(size(qkv_width));
      layer.wo_bias = arena.take<Bf16>(size(hidden));
    }
    layer.sinks = arena.take<float>(size(cuda_heads(config)));
    layer.window = static_cast<int>(config.layers[size(index)].window);
    layer.expert_norm = arena.take<Bf16>(size(hidden));
    layer.router = tiles(arena, experts, hidden);
    layer.router_bias = arena.take<Bf16>(size(experts));
    layer.experts.gate_up = granules(arena, experts, 2 * config.intermediate_size, hidden);
    layer.experts.down = granules(arena, experts, hidden, config.intermediate_size);
    layer.experts.gate_up_bias = arena.take<Bf16>(size(experts * 2 * config.intermediate_size));
    layer.experts.down_bias = arena.take<Bf16>(size(experts * hidden));
    layer.experts.unit = gpt_oss_unit(static_cast<float>(config.swiglu_limit));
    weights.layers.push_back(layer);
  }
  weights.final_norm = arena.take<Bf16>(size(hidden));
  weights.lm_head = tiles(arena, config.vocab_size, hidden);
  weights.inv_freq = arena.take<float>(size(config.head_dim / 2));
  return weights;
}

Status place_gpt_oss_weights(const ModelConfig& config, GptOssCudaWeights& weights, WeightPlacing& placing) {
  const std::int64_t hidden = config.hidden_size, experts = config.num_local_experts;
  const std::int64_t q_width = config.num_attention_heads * config.head_dim;
  const std::int64_t kv_width = config.num_key_value_heads * config.head_dim;
  // Query heads of one head of keys, in the checkpoint and here.
  const std::int64_t group = config.num_attention_heads / config.num_key_value_heads;
  const std::int64_t wide_group = cuda_heads(config) / config.num_key_value_heads;
  const std::int64_t part = group * config.head_dim, apart = wide_group * config.head_dim;
  const std::int64_t up_width = 2 * config.intermediate_size;
  NIBBLE_RETURN_IF_ERROR(
      placing.plain("model.embed_tokens.weight", {config.vocab_size, hidden}, weights.embedding));
  for (std::size_t index = 0; index < weights.layers.size(); ++index) {
    GptOssCudaLayer& layer = weights.layers[index];
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    NIBBLE_RETURN_IF_ERROR(placing.plain(prefix + "input_layernorm.weight", {hidden}, layer.attention_norm));
    // q's heads, k's and v's, one after the other in one matrix.
    NIBBLE_RETURN_IF_ERROR(
        placing.spread_rows(attention + "q_proj.weight", q_width, hidden, part, apart, layer.qkv));
    if (layer.qkv_bias != nullptr)
      NIBBLE_RETURN_IF_ERROR(placing.spread(attention + "q_proj.bias", q_width, part, apart, layer.qkv_bias));
    int row = cuda_heads(config) * static_cast<int>(config.head_dim);
    for (const char* name : {"k_proj", "v_proj"}) {
      NIBBLE_RETURN_IF_ERROR(placing.dense(attention + name + ".weight", kv_width, hidden, layer.qkv, row));
      if (layer.qkv_bias != nullptr)
        NIBBLE_RETURN_IF_ERROR(placing.plain(attention + name + ".bias", {kv_width}, layer.qkv_bias + row));
      row += static_cast<int>(kv_width);
    }
    NIBBLE_RETURN_IF_ERROR(
        placing.spread_columns(attention + "o_proj.weight", hidden, q_width, part, apart, layer.wo));
    if (layer.wo_bias != nullptr)
      NIBBLE_RETURN_IF_ERROR(placing.plain(attention + "o_proj.bias", {hidden}, layer.wo_bias));
    NIBBLE_RETURN_IF_ERROR(placing.spread_floats(attention + "sinks", config.num_attention_heads, group,
                                                 wide_group, layer.sinks));

    NIBBLE_RETURN_IF_ERROR(
        placing.plain(prefix + "post_attention_layernorm.weight", {hidden}, layer.expert_norm));
    NIBBLE_RETURN_IF_ERROR(placing.dense(mlp + "router.weight", experts, hidden, layer.router));
    NIBBLE_RETURN_IF_ERROR(placing.plain(mlp + "router.bias", {experts}, layer.router_bias));
    NIBBLE_RETURN_IF_ERROR(placing.experts(mlp + "experts.gate_up_proj", layer.experts.gate_up));
    NIBBLE_RETURN_IF_ERROR(placing.plain(mlp + "experts.gate_up_proj_bias", {experts, up_width},
                                         const_cast<Bf16*>(layer.experts.gate_up_bias)));
    NIBBLE_RETURN_IF_ERROR(placing.experts(mlp + "experts.down_proj", layer.experts.down));
    NIBBLE_RETURN_IF_ERROR(placing.plain(mlp + "experts.down_proj_bias", {experts, hidden},
                                         const_cast<Bf16*>(layer.experts.down_bias)));
  }
  NIBBLE_RETURN_IF_ERROR(placing.plain("model.norm.weight", {hidden}, weights.final_norm));
  NIBBLE_RETURN_IF_ERROR(
      placing.dense(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                    config.vocab_size, hidden, weights.lm_head));
  const RopeFrequencies rope = rope_frequencies(config);
  cuda_check(cudaMemcpy(weights.inv_freq, rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float),
                        cudaMemcpyHostToDevice));
  return placing.finish();
}

}  // namespace nibble
