#include <string>

#include "models/gpt_oss.h"

namespace nibble {
namespace {

// Looks tensors up under one prefix and remembers the first thing that went wrong, so that binding reads
// as a list.
class Binder {
 public:
  Binder(const WeightSource& source, std::string prefix) : source_(source), prefix_(std::move(prefix)) {}

  const Bf16* vector(const std::string& name, std::int64_t size) {
    return data<Bf16>(name, DType::bf16, {size});
  }

  Bf16Matrix matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    return {data<Bf16>(name, DType::bf16, {rows, cols}), static_cast<int>(rows), static_cast<int>(cols)};
  }

  std::vector<Mxfp4Checkpoint> experts(const std::string& name, std::int64_t count, std::int64_t rows,
                                       std::int64_t cols) {
    const std::int64_t groups = cols / mxfp4_block;
    const std::uint8_t* blocks =
        data<std::uint8_t>(name + "_blocks", DType::u8, {count, rows, groups, mxfp4_block_bytes});
    const std::uint8_t* scales = data<std::uint8_t>(name + "_scales", DType::u8, {count, rows, groups});
    std::vector<Mxfp4Checkpoint> views;
    if (!status_.ok()) return views;
    for (std::int64_t expert = 0; expert < count; ++expert) {
      views.push_back(
          {blocks + expert * rows * groups * mxfp4_block_bytes, scales + expert * rows * groups, rows, cols});
    }
    return views;
  }

  const Bf16* matrix_of_vectors(const std::string& name, std::int64_t count, std::int64_t size) {
    return data<Bf16>(name, DType::bf16, {count, size});
  }

  const Status& status() const { return status_; }

 private:
  template <class T>
  const T* data(const std::string& name, DType dtype, const Shape& shape) {
    if (!status_.ok()) return nullptr;
    Result<ConstTensor> tensor = source_.required(prefix_ + name, dtype, shape);
    if (!tensor.ok()) {
      status_ = tensor.status();
      return nullptr;
    }
    return tensor->as<T>().data();
  }

  const WeightSource& source_;
  std::string prefix_;
  Status status_;
};

Result<GptOssLayer> bind_layer(const ModelConfig& config, const WeightSource& source, std::size_t index) {
  Binder bind(source, "model.layers." + std::to_string(index) + ".");
  const std::int64_t hidden = config.hidden_size, experts = config.num_local_experts;
  const std::int64_t q_width = config.num_attention_heads * config.head_dim;
  const std::int64_t kv_width = config.num_key_value_heads * config.head_dim;

  GptOssLayer layer;
  layer.attention_norm = bind.vector("input_layernorm.weight", hidden);
  layer.wq = bind.matrix("self_attn.q_proj.weight", q_width, hidden);
  layer.wk = bind.matrix("self_attn.k_proj.weight", kv_width, hidden);
  layer.wv = bind.matrix("self_attn.v_proj.weight", kv_width, hidden);
  layer.wo = bind.matrix("self_attn.o_proj.weight", hidden, q_width);
  if (config.attention_bias) {
    layer.bq = bind.vector("self_attn.q_proj.bias", q_width);
    layer.bk = bind.vector("self_attn.k_proj.bias", kv_width);
    layer.bv = bind.vector("self_attn.v_proj.bias", kv_width);
    layer.bo = bind.vector("self_attn.o_proj.bias", hidden);
  }
  const Bf16* sinks = bind.vector("self_attn.sinks", config.num_attention_heads);
  layer.expert_norm = bind.vector("post_attention_layernorm.weight", hidden);
  layer.router = bind.matrix("mlp.router.weight", experts, hidden);
  layer.router_bias = bind.vector("mlp.router.bias", experts);
  layer.experts.gate_up =
      bind.experts("mlp.experts.gate_up_proj", experts, 2 * config.intermediate_size, hidden);
  layer.experts.down = bind.experts("mlp.experts.down_proj", experts, hidden, config.intermediate_size);
  layer.experts.gate_up_bias =
      bind.matrix_of_vectors("mlp.experts.gate_up_proj_bias", experts, 2 * config.intermediate_size);
  layer.experts.down_bias = bind.matrix_of_vectors("mlp.experts.down_proj_bias", experts, hidden);
  NIBBLE_RETURN_IF_ERROR(bind.status());

  layer.experts.swiglu_limit = static_cast<float>(config.swiglu_limit);
  for (std::int64_t head = 0; head < config.num_attention_heads; ++head)
    layer.sinks.push_back(sinks[head].to_float());
  if (config.layer_types[index] == LayerType::sliding_attention)
    layer.window = static_cast<int>(config.sliding_window);
  return layer;
}

}  // namespace

Result<GptOssWeights> bind_gpt_oss_weights(const ModelConfig& config, const WeightSource& source) {
  Binder bind(source, "");
  GptOssWeights weights;
  weights.embedding = bind.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  weights.final_norm = bind.vector("model.norm.weight", config.hidden_size);
  weights.lm_head = config.tie_word_embeddings
                        ? weights.embedding
                        : bind.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  NIBBLE_RETURN_IF_ERROR(bind.status());
  for (std::size_t i = 0; i < static_cast<std::size_t>(config.num_hidden_layers); ++i) {
    NIBBLE_ASSIGN(GptOssLayer layer, bind_layer(config, source, i));
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace nibble
