#include "plan/bound.h"

#include <algorithm>
#include <cmath>

#include "plan/memory.h"

namespace nibble {
namespace {

double experts_read(const ModelTraits& model, double batch) {
  if (model.experts == 0) return 0;
  const double unused =
      1.0 - static_cast<double>(model.experts_per_token) / static_cast<double>(model.experts);
  return 1.0 - std::pow(unused, batch);
}

// Bytes of a group as it is held, which --quantization may have changed.
double held_bytes(const Plan& plan, const WeightGroup& group) {
  if (plan.quantization == Quantization::none) return static_cast<double>(group.bytes);
  const double kept = static_cast<double>(group.bytes - 2 * group.convertible_values());
  const double values = static_cast<double>(group.convertible_values());
  return kept + (plan.quantization == Quantization::q8 ? values : values / 2) + values / 32;
}

// Whose rates the machine's are: a CPU's ranks share it.
int devices(const Plan& plan) { return plan.device == DeviceKind::cuda ? plan.tensor_parallel : 1; }
// Of those, groups that have sequences of their own.
int owners(const Plan& plan) { return plan.device == DeviceKind::cuda ? plan.data_parallel : 1; }
int sharers(const Plan& plan) { return devices(plan) / owners(plan); }

// Of experts one rank reads its part among `ranks`, of all else its part among `sharers`.
double weight_read(const Plan& plan, double batch, int ranks, int sharers) {
  double bytes = 0;
  for (const WeightGroup& group : plan.model.weights) {
    double share = 1;
    if (group.use == WeightUse::by_expert) share = experts_read(plan.model, batch);
    if (group.use == WeightUse::one_row) share = batch / static_cast<double>(plan.model.vocabulary);
    // A gathered row is a rounding error of the rest, and left out as in all published bounds.
    if (group.use == WeightUse::one_row) continue;
    const int parts = group.use == WeightUse::by_expert ? ranks : sharers;
    bytes += held_bytes(plan, group) * share / (group.split ? parts : 1);
  }
  return bytes;
}

// Keys and values that one token reads after `context` positions, on one device, and its states.
double kv_read(const Plan& plan, double context) {
  const ModelTraits& model = plan.model;
  const double seen =
      static_cast<double>(model.full_layers) * context +
      static_cast<double>(model.window_layers) * std::min(context, static_cast<double>(model.window));
  const double layer_bytes = static_cast<double>(kv_position_bytes(model, plan.kv_dtype, sharers(plan))) /
                             static_cast<double>(std::max<std::int64_t>(model.attention_layers(), 1));
  return seen * layer_bytes + static_cast<double>(model.state_token_bytes) / sharers(plan);
}

// Two for each weight that meets a token; lm_head only where logits are wanted.
double weight_flops(const ModelTraits& model, bool logits) {
  double flops = 0;
  for (const WeightGroup& group : model.weights) {
    if (group.use == WeightUse::one_row || (group.use == WeightUse::last_token && !logits)) continue;
    const double share = group.use == WeightUse::by_expert ? static_cast<double>(model.experts_per_token) /
                                                                 static_cast<double>(model.experts)
                                                           : 1.0;
    flops += 2.0 * static_cast<double>(group.values) * share;
  }
  return flops + static_cast<double>(model.linear_flops);
}

// A token that sees `context` positions: scores and their weighted sum.
double attention_flops(const ModelTraits& model, double full_context, double window_context) {
  // Queries meet latents as they lie in the cache, and the sum is one of latents.
  const std::int64_t dims = model.attention == AttentionKind::latent
                                ? model.latent.width() + model.latent.rank
                                : model.query_dim + model.value_dim;
  const double pair = 2.0 * static_cast<double>(model.heads * dims);
  return pair * (static_cast<double>(model.full_layers) * full_context +
                 static_cast<double>(model.window_layers) * window_context);
}

// What a fused all-reduce takes before the first byte; measured targets for 2 and 4 ranks, 8 by their growth.
double sum_floor(int ranks) { return ranks <= 1 ? 0 : ranks == 2 ? 3.0e-6 : ranks <= 4 ? 3.8e-6 : 5.0e-6; }

// Two sums a layer, of bfloat16 rows that each rank sends to all others. Of ranks with sequences of their own
// two exchanges: rows in bfloat16 to the ranks of their experts, and a product in float32 of each choice.
double sum_seconds(const Plan& plan, double rows) {
  const int ranks = devices(plan);
  if (ranks <= 1) return 0;
  const double rate = plan.machine.gpu.link_bandwidth, others = ranks - 1;
  const double choices = static_cast<double>(plan.model.experts_per_token);
  const double row_bytes = owners(plan) > 1
                               ? (2.0 * std::min(others, choices) + 4.0 * choices * others / ranks) / ranks
                               : 2.0 * others;
  const double bytes = rows * row_bytes * static_cast<double>(plan.model.hidden);
  return 2.0 * static_cast<double>(plan.model.layers) * (sum_floor(ranks) + (rate > 0 ? bytes / rate : 0));
}

}  // namespace

StepCost decode_cost(const Plan& plan, double batch, double context) {
  const double window = std::min(context, static_cast<double>(plan.model.window));
  return {.bytes = weight_read(plan, batch, devices(plan), sharers(plan)) +
                   batch / owners(plan) * kv_read(plan, context),
          .flops = batch * (weight_flops(plan.model, true) + attention_flops(plan.model, context, window)) /
                   devices(plan),
          .sums = sum_seconds(plan, batch)};
}

StepCost prefill_cost(const Plan& plan, double tokens) {
  const double window = std::min(tokens / 2, static_cast<double>(plan.model.window));
  return {.bytes = weight_read(plan, tokens, devices(plan), sharers(plan)),
          .flops = tokens *
                   (weight_flops(plan.model, false) + attention_flops(plan.model, tokens / 2, window)) /
                   devices(plan),
          .sums = sum_seconds(plan, tokens)};
}

double least_seconds(const Plan& plan, const StepCost& cost) {
  const bool gpu = plan.device == DeviceKind::cuda;
  const double reading = gpu ? plan.machine.gpu.read_bandwidth : plan.machine.cpu.read_bandwidth;
  const double multiplying = gpu                        ? plan.machine.gpu.bf16_flops
                             : plan.dtype == DType::f32 ? plan.machine.cpu.f32_flops
                                                        : plan.machine.cpu.bf16_flops;
  if (reading <= 0 || multiplying <= 0) return 0;
  return std::max(cost.bytes / reading, cost.flops / multiplying) + cost.sums;
}

BoundPlan plan_bound(const Plan& plan) {
  BoundPlan bound;
  bound.bytes_per_token = weight_read(plan, 1, 1, 1);
  bound.kv_bytes_per_token = kv_read(plan, BoundPlan::context) * sharers(plan);
  bound.flops_per_token = weight_flops(plan.model, false);
  for (std::size_t i = 0; i < std::size(BoundPlan::batches); ++i) {
    const double batch = BoundPlan::batches[i];
    const double seconds = least_seconds(plan, decode_cost(plan, batch, BoundPlan::context));
    bound.decode_tokens_per_s[i] = seconds > 0 ? batch / seconds : 0;
  }
  const double usual_prompt = std::min(8192, plan.max_model_len);
  const double seconds = least_seconds(plan, prefill_cost(plan, usual_prompt));
  bound.prefill_tokens_per_s = seconds > 0 ? usual_prompt / seconds : 0;
  for (std::size_t i = 0; i < std::size(BoundPlan::prompts); ++i) {
    if (BoundPlan::prompts[i] > plan.max_model_len) continue;
    bound.first_token_s[i] = least_seconds(plan, prefill_cost(plan, BoundPlan::prompts[i]));
  }
  return bound;
}

}  // namespace nibble
