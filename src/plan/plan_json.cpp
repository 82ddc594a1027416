#include "plan/plan.h"

namespace nibble {
namespace {

void write_model(const ModelTraits& model, JsonWriter& json) {
  json.begin_object()
      .member("name", model.name)
      .member("architecture", model.architecture)
      .member("layers", model.layers)
      .member("hidden", model.hidden)
      .member("vocabulary", model.vocabulary)
      .member("max_positions", model.max_positions)
      .member("experts", model.experts)
      .member("experts_per_token", model.experts_per_token)
      .member("expert_format", stored_format_name(model.expert_format))
      .member("dense_format", stored_format_name(model.dense_format))
      .member("weight_bytes", model.weight_bytes());
  json.key("weights").begin_array();
  for (const WeightGroup& group : model.weights) {
    json.begin_object()
        .member("name", group.name)
        .member("values", group.values)
        .member("bytes", group.bytes)
        .end_object();
  }
  json.end_array().end_object();
}

void write_memory(const MemoryPlan& memory, JsonWriter& json) {
  json.begin_object()
      .member("weights", memory.weights)
      .member("kv", memory.kv)
      .member("snapshots", memory.snapshots)
      .member("workspace", memory.workspace)
      .member("graphs", memory.graphs)
      .member("total", memory.total)
      .member("budget", memory.budget)
      .member("capacity", memory.capacity)
      .member("kv_tokens", memory.kv_tokens)
      .member("max_concurrency", memory.max_concurrency)
      .end_object();
}

void write_bound(const BoundPlan& bound, JsonWriter& json) {
  json.begin_object()
      .member("bytes_per_token", bound.bytes_per_token)
      .member("kv_bytes_per_token", bound.kv_bytes_per_token)
      .member("flops_per_token", bound.flops_per_token)
      .member("context", BoundPlan::context);
  json.key("decode_tokens_per_s").begin_object();
  for (std::size_t i = 0; i < std::size(BoundPlan::batches); ++i)
    json.member(std::to_string(BoundPlan::batches[i]), bound.decode_tokens_per_s[i]);
  json.end_object().member("prefill_tokens_per_s", bound.prefill_tokens_per_s);
  json.key("first_token_s").begin_object();
  for (std::size_t i = 0; i < std::size(BoundPlan::prompts); ++i) {
    if (bound.first_token_s[i] > 0)
      json.member(std::to_string(BoundPlan::prompts[i]), bound.first_token_s[i]);
  }
  json.end_object().end_object();
}

}  // namespace

void write_choices(std::span<const Choice> choices, JsonWriter& json) {
  json.begin_array();
  for (const Choice& choice : choices) {
    json.begin_object()
        .member("field", choice.field)
        .member("value", choice.value)
        .member("from", choice.from)
        .member("why", choice.why);
    json.key("rejected").begin_array();
    for (const Rejected& rejected : choice.rejected)
      json.begin_object().member("value", rejected.value).member("why", rejected.why).end_object();
    json.end_array().key("alternatives").begin_array();
    for (const std::string& value : choice.alternatives) json.value(value);
    json.end_array().end_object();
  }
  json.end_array();
}

void write_plan(const Plan& plan, JsonWriter& json) {
  json.key("model");
  write_model(plan.model, json);
  json.key("machine");
  write_machine(plan.machine, json);
  json.key("choices");
  write_choices(plan.choices, json);
  json.key("experts")
      .begin_object()
      .member("kernel", plan.experts.kernel)
      .member("exchange", plan.experts.exchange)
      .member("dispatch", dispatch_format_name(plan.experts.dispatch))
      .member("layout", weight_layout_name(plan.experts.layout))
      .member("combine", combine_format_name(plan.experts.combine))
      .end_object();
  json.key("not_built").begin_array();
  for (const std::string& kernel : plan.not_built) json.value(kernel);
  json.end_array().key("gates");
  write_gates(plan.gates, json);
  json.key("memory");
  write_memory(plan.memory, json);
  json.key("bound");
  write_bound(plan.bound, json);
}

std::string plan_json(const Plan& plan) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  write_plan(plan, json);
  json.end_object();
  return text;
}

}  // namespace nibble
