#include "models/cuda/decoder_cuda.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "checkpoint/architecture.h"
#include "ops/cuda/launch.cuh"
#include "ops/embedding/cuda/embedding_cuda.h"
#include "tensor/device_buffer.h"

namespace nibble {
namespace {

class DecoderCuda final : public CudaModel {
 public:
  struct Memory {
    DeviceBuffer weights, room;
  };

  DecoderCuda(ModelConfig config, const CudaPart& part, CudaForwardLimits limits, Memory memory,
              DecoderCudaWeights weights, const DecoderCudaBlocks& blocks)
      : config_(std::move(config)),
        part_(part),
        limits_(limits),
        memory_(std::move(memory)),
        weights_(std::move(weights)),
        blocks_(blocks),
        of_prompts_(blocks.of_prompts()) {}

  const ModelConfig& config() const override { return config_; }
  std::size_t weight_bytes() const override { return memory_.weights.size(); }
  std::size_t workspace_bytes() const override { return memory_.room.size(); }
  // Latents' kernels list splits for themselves: no sequence counts among those of few rows.
  CudaHeads heads() const override {
    if (blocks_.latent)
      return {.a_key_head = attention_tile + 1, .cluster_positions = latent_short_positions};
    const int dim = static_cast<int>(config_.head_dim);
    return {.a_key_head = static_cast<int>(part_.padded_group()),
            .dim = dim,
            .cluster_positions = attention_cluster_positions(dim),
            .most_later_clusters =
                blocks_.attention ? blocks_.attention->most_later_clusters() : attention_any_context};
  }

  float* gathered_logits() const override { return blocks_.head.gathered(); }

  void use_cache(std::span<const KvCudaLayer> layers, std::span<const int> groups, int page_size) override {
    NIBBLE_CHECK(layers.size() == weights_.layers.size() && groups.size() == layers.size());
    caches_.resize(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (std::holds_alternative<AttentionBlockWeights>(weights_.layers[i].mixer))
        caches_[i] = AttentionBlock::Cache{.layer = layers[i], .group = groups[i], .page_size = page_size};
    }
  }

  bool keeps_states() const override { return blocks_.delta.has_value(); }
  void use_states(std::span<const DeltaLayer> layers) override {
    NIBBLE_CHECK(layers.size() == weights_.layers.size());
    caches_.resize(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (std::holds_alternative<DeltaBlockWeights>(weights_.layers[i].mixer)) caches_[i] = layers[i];
    }
  }

  void use_latents(std::span<const LatentCudaLayer> layers, std::span<const int> groups,
                   int page_size) override {
    NIBBLE_CHECK(layers.size() == weights_.layers.size() && groups.size() == layers.size());
    caches_.resize(layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (std::holds_alternative<LatentBlockWeights>(weights_.layers[i].mixer))
        caches_[i] = LatentBlock::Cache{
            .layer = layers[i], .group = groups[i], .page_size = page_size, .behind_a_layer = i > 0};
    }
  }

  Status forward(const CudaForwardInput& input, float* logits, cudaStream_t stream) override {
    NIBBLE_CHECK(input.rows <= input.most_rows && input.most_rows <= limits_.rows &&
                 input.logit_rows <= limits_.logit_rows && input.sequences <= limits_.sequences);
    const DecoderCudaBlocks& blocks = input.of_prompts ? of_prompts_ : blocks_;
    NIBBLE_RETURN_IF_ERROR(embedding_cuda({.table = weights_.embedding,
                                           .ids = input.tokens,
                                           .chosen = input.chosen,
                                           .rows = input.rows,
                                           .hidden = blocks.stream.hidden,
                                           .out = blocks.stream.residual},
                                          stream));
    if (blocks.attention) blocks.attention->turn(input, weights_.inv_freq, stream);
    if (blocks.latent) blocks.latent->begin(input, weights_.inv_freq, stream);
    if (blocks.experts) NIBBLE_RETURN_IF_ERROR(blocks.experts->begin(input, stream));
    PendingSum pending{.residual = blocks.stream.residual};
    for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
      NIBBLE_RETURN_IF_ERROR(mix(blocks, i, pending, input, stream));
      NIBBLE_ASSIGN(pending, feed_forward(blocks, i, input, stream));
    }
    return blocks.head.run(weights_.head, pending, input, logits, stream);
  }

 private:
  // What a layer keeps of sequences, of its mixer's kind.
  using Cache = std::variant<AttentionBlock::Cache, DeltaLayer, LatentBlock::Cache>;

  // residual = pending's; its norm -> delta
  Status mix(const DecoderCudaBlocks& blocks, std::size_t layer, const PendingSum& pending,
             const CudaForwardInput& input, cudaStream_t stream) const {
    const DecoderStream& counts = blocks.stream;
    if (const auto* weights = std::get_if<AttentionBlockWeights>(&weights_.layers[layer].mixer)) {
      counts.count(input.one_row_each ? LaunchKind::attention_one_row : LaunchKind::attention_rows);
      return blocks.attention->run(*weights, std::get<AttentionBlock::Cache>(caches_[layer]), pending, input,
                                   stream);
    }
    if (const auto* weights = std::get_if<DeltaBlockWeights>(&weights_.layers[layer].mixer)) {
      counts.count(DeltaBlock::has_one_row_each(input) ? LaunchKind::delta_one_row : LaunchKind::delta_rows);
      return blocks.delta->run(*weights, std::get<DeltaLayer>(caches_[layer]), pending, input, stream);
    }
    counts.count(input.one_row_each ? LaunchKind::latent_one_row : LaunchKind::latent_rows);
    return blocks.latent->run(std::get<LatentBlockWeights>(weights_.layers[layer].mixer),
                              std::get<LatentBlock::Cache>(caches_[layer]), pending, input, stream);
  }

  // residual + delta and its norm -> what the next norm adds to which residual.
  Result<PendingSum> feed_forward(const DecoderCudaBlocks& blocks, std::size_t layer,
                                  const CudaForwardInput& input, cudaStream_t stream) const {
    const DecoderCudaLayer& of_layer = weights_.layers[layer];
    if (const auto* weights = std::get_if<DenseLayerWeights>(&of_layer.feed_forward))
      return blocks.mlp->run(*weights, input, stream);
    const auto& experts = std::get<ExpertsBlockWeights>(of_layer.feed_forward);
    const auto& shared = of_layer.shared;
    const SharedChoice choice = blocks.experts->shared_choice(experts, input.rows);
    const auto beside = [&]() -> Status {
      return shared ? blocks.mlp->multiply_shared(*shared, choice, input.rows, stream) : Status();
    };
    NIBBLE_ASSIGN(const PendingSum routed, blocks.experts->run(experts, input, beside, stream));
    return shared ? blocks.mlp->add_shared(*shared, routed, choice, input, stream) : routed;
  }

  ModelConfig config_;
  CudaPart part_;
  CudaForwardLimits limits_;
  Memory memory_;
  DecoderCudaWeights weights_;
  DecoderCudaBlocks blocks_;
  DecoderCudaBlocks of_prompts_;  // the same, where the limits say that prompts are rounded
  std::vector<Cache> caches_;     // [layers]
};

// Whether some layer has a half of this kind.
bool has(const ModelConfig& config, Mixer mixer) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [&](const LayerDescription& layer) { return layer.mixer == mixer; });
}
bool has(const ModelConfig& config, FeedForward feed_forward) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [&](const LayerDescription& layer) { return layer.feed_forward == feed_forward; });
}

Status refused(const std::string& what) {
  return invalid_argument("this model cannot run on a GPU: " + what + "; give --device cpu");
}

// Experts of a row of a step.
int most_choices(const ModelConfig& config) {
  return std::max(static_cast<int>(config.num_experts_per_tok), 1);
}

// Of the widest inputs of FP8 weights, of so many rows and as many at the experts.
std::size_t rounding_bytes(const ModelConfig& config, int rows, int expert_rows) {
  std::size_t most = 0;
  visit_weights(config, [&](const Weight& weight) {
    if (weight.format != TensorFormat::fp8_block && weight.format != TensorFormat::fp8_row) return;
    const int choices = weight.role == WeightRole::expert_down ? most_choices(config) : 1;
    const std::size_t inputs =
        static_cast<std::size_t>((weight.part == WeightPart::experts ? expert_rows : rows) * choices);
    most = std::max(most, inputs * static_cast<std::size_t>(rounded_row_bytes(
                                       static_cast<int>(weight.shape[weight.shape.rank() - 1]))));
  });
  return most;
}

// A matrix in a format that no kernel multiplies, or in another than those it lies beside.
Status check_formats(const ModelConfig& config) {
  const TensorFormat of_experts = expert_format(config);
  TensorFormat of_queries = TensorFormat::bf16;
  Status status;
  visit_weights(config, [&](const Weight& weight) {
    if (!status.ok() || !weight.is_matrix()) return;
    const auto refuse = [&](const std::string& what) {
      status = refused((weight.own_experts > 0 ? weight.name_of(0) : weight.name) + " is in " +
                       std::string(tensor_format_name(weight.format)) + ", and " + what);
    };
    if (weight.part == WeightPart::experts) {
      if (weight.format != of_experts)
        refuse("other experts in " + std::string(tensor_format_name(of_experts)));
      return;
    }
    if (weight.part == WeightPart::linear_attention || weight.part == WeightPart::dense_layers ||
        weight.part == WeightPart::shared_expert)
      return;  // their blocks' checks look at those
    const bool of_attention = weight.part == WeightPart::attention;
    if (weight.format != TensorFormat::bf16 && !(of_attention && device_matrix_takes(weight.format)))
      return refuse(std::string("its kernels take ") + (of_attention ? device_matrix_formats : "bf16"));
    if (weight.role == WeightRole::query) of_queries = weight.format;
    if ((weight.role == WeightRole::key || weight.role == WeightRole::value) && weight.format != of_queries)
      refuse("the queries' in " + std::string(tensor_format_name(of_queries)));
  });
  return status;
}

}  // namespace

// Ranks with sequences of their own meet those of other groups only at the experts.
DecoderCudaBlocks DecoderCudaBlocks::lay_out(const ModelConfig& config, const CudaForwardLimits& limits,
                                             CudaPlace& place, int processors, DeviceArena& arena) {
  if (!place.part.owns_sequences())
    return DecoderCudaBlocks(config, limits, {place, place, processors}, arena);
  CudaPlace of_experts = place.among_all();
  DecoderCudaBlocks blocks(config, limits, {place, of_experts, processors}, arena);
  place.shared_by_all = of_experts.shared;  // with what they took
  return blocks;
}

DecoderCudaBlocks::DecoderCudaBlocks(const ModelConfig& config, const CudaForwardLimits& limits,
                                     const Places& places, DeviceArena& arena)
    : stream(DecoderStream::lay_out(config, limits, places.of_sequences, places.processors, arena)),
      head(config, limits, stream, places.of_sequences, arena) {
  CudaPlace& place = places.of_sequences;
  if (has(config, Mixer::attention))
    attention.emplace(config, limits, stream, places.processors, place, arena);
  if (has(config, Mixer::gated_delta)) delta.emplace(config, limits, stream, place, arena);
  if (has(config, Mixer::latent)) latent.emplace(config, limits, stream, places.processors, place, arena);
  if (has(config, FeedForward::experts)) experts.emplace(config, limits, stream, places.of_experts, arena);
  if (has(config, FeedForward::dense) || config.shared_width > 0)
    mlp.emplace(config, limits, stream, place, arena);
  if (limits.rounds_prompts) {
    const int at_experts = places_at_experts(limits, places.of_experts.part);
    rounding.codes = arena.take<std::uint8_t>(rounding_bytes(config, limits.rows, at_experts));
    rounding.scales = arena.take<float>(static_cast<std::size_t>(at_experts * most_choices(config)));
  }
}

DecoderCudaBlocks DecoderCudaBlocks::of_prompts() const {
  DecoderCudaBlocks blocks = *this;
  if (blocks.attention) blocks.attention->round_inputs(rounding);
  if (blocks.delta) blocks.delta->round_inputs(rounding);
  if (blocks.latent) blocks.latent->round_inputs(rounding);
  if (blocks.experts) blocks.experts->round_inputs(rounding);
  if (blocks.mlp) blocks.mlp->round_inputs(rounding);
  return blocks;
}

void DecoderCudaBlocks::clear_room(cudaStream_t on) const {
  if (attention) attention->clear_room(on);
  if (delta) delta->clear_room(on);
  if (latent) latent->clear_room(on);
  if (experts) experts->clear_room(on);
  if (mlp) mlp->clear_room(on);
}

SharedBytes shared_bytes_of_cuda_model(const ModelConfig& config, const CudaForwardLimits& limits,
                                       const CudaPart& part) {
  CudaPlace counted{.part = part};
  DeviceArena own;
  DecoderCudaBlocks::lay_out(config, limits, counted, processors_of_device(), own);
  return {.of_sequences = counted.shared.used(), .of_all = counted.shared_by_all.used()};
}

Status check_decoder_cuda(const ModelConfig& config) {
  for (const auto& check :
       {check_attention_block, check_delta_block, check_latent_block, check_experts_block, check_mlp_block}) {
    if (const Status status = check(config); !status.ok()) return refused(std::string(status.message()));
  }
  return check_formats(config);
}

Result<std::unique_ptr<CudaModel>> load_decoder_cuda(const ModelConfig& config,
                                                     const CudaForwardLimits& limits, const CudaPlace& place,
                                                     WeightFeed& feed, cudaStream_t stream) {
  NIBBLE_RETURN_IF_ERROR(check_decoder_cuda(config));
  const int processors = processors_of_device();
  DeviceArena counted_weights, counted_room;
  DecoderCudaWeights::lay_out(config, place.part, counted_weights);
  CudaPlace counted_place{.part = place.part};
  DecoderCudaBlocks::lay_out(config, limits, counted_place, processors, counted_room);
  NIBBLE_ASSIGN(DeviceBuffer weight_memory, DeviceBuffer::allocate(counted_weights.used()));
  NIBBLE_ASSIGN(DeviceBuffer room_memory, DeviceBuffer::allocate(counted_room.used()));
  // Counters begin at 0, and what pads activations must be finite, as must heads that fill a group up.
  room_memory.fill(0);
  if (place.part.all_padded_heads != config.num_attention_heads) weight_memory.fill(0);
  DeviceArena weight_arena(weight_memory.data()), room_arena(room_memory.data());
  DecoderCudaWeights weights = DecoderCudaWeights::lay_out(config, place.part, weight_arena);
  CudaPlace taken = place;
  const DecoderCudaBlocks blocks = DecoderCudaBlocks::lay_out(config, limits, taken, processors, room_arena);
  clear_linear_workspace(blocks.stream.linear, processors, std::max(limits.rows, limits.logit_rows), stream);
  blocks.clear_room(stream);
  NIBBLE_ASSIGN(WeightPlacing placing, WeightPlacing::begin(feed, stream));
  NIBBLE_RETURN_IF_ERROR(place_decoder_weights(config, place.part, weights, placing));
  return std::unique_ptr<CudaModel>(std::make_unique<DecoderCuda>(
      config, place.part, limits, DecoderCuda::Memory{std::move(weight_memory), std::move(room_memory)},
      std::move(weights), blocks));
}

}  // namespace nibble
