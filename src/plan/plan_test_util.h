// Models for the tests of plans, and their plans.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "plan/machine.h"
#include "plan/model_traits.h"
#include "plan/plan.h"

namespace nibble {

// Whose shape does not matter.
inline ModelTraits small_model() {
  ModelTraits model{.name = "small",
                    .layers = 2,
                    .hidden = 64,
                    .vocabulary = 128,
                    .max_positions = 512,
                    .full_layers = 2,
                    .heads = 8,
                    .kv_heads = 8,
                    .query_dim = 64,
                    .value_dim = 64,
                    .kv_values = 1024,
                    .experts = 8,
                    .experts_per_token = 2,
                    .expert_width = 64,
                    .expert_layers = 2,
                    .expert_format = StoredFormat::mxfp4};
  model.weights = {{.name = "all", .values = 1 << 20, .bytes = 1 << 20}};
  return model;
}

// A gpt-oss of the 20b's shape, or one in another format.
inline ModelTraits gpt_oss() {
  ModelTraits model{.name = "gpt-oss-20b",
                    .architecture = "GptOssForCausalLM",
                    .runs = true,
                    .layers = 24,
                    .hidden = 2880,
                    .vocabulary = 201088,
                    .max_positions = 131072,
                    .full_layers = 12,
                    .window_layers = 12,
                    .window = 128,
                    .heads = 64,
                    .kv_heads = 8,
                    .query_dim = 64,
                    .value_dim = 64,
                    .kv_values = 1024,
                    .experts = 32,
                    .experts_per_token = 4,
                    .expert_width = 2880,
                    .expert_layers = 24,
                    .expert_format = StoredFormat::mxfp4};
  const std::int64_t dense = 24 * 2880 * (2 * 4096 + 2 * 512), head = 201088ll * 2880;
  model.weights = {{.name = "attention",
                    .values = dense,
                    .bytes = 2 * dense,
                    .convertible = {{.rows = 4096, .cols = 2880, .count = 24},
                                    {.rows = 512, .cols = 2880, .cut = MatrixCut::kv_heads, .count = 48},
                                    {.rows = 2880, .cols = 4096, .count = 24}}},
                   {.name = "router", .values = 24 * 32 * 2880, .bytes = 2 * 24 * 32 * 2880, .split = false},
                   {.name = "experts",
                    .values = 24ll * 32 * 3 * 2880 * 2880,
                    .bytes = 24ll * 32 * 3 * 2880 * 2880 * 17 / 32,
                    .use = WeightUse::by_expert},
                   {.name = "embedding", .values = head, .bytes = 2 * head, .use = WeightUse::one_row},
                   {.name = "lm_head",
                    .values = head,
                    .bytes = 2 * head,
                    .use = WeightUse::last_token,
                    .convertible = {{.rows = 201088, .cols = 2880, .count = 1}}}};
  return model;
}

inline Machine machine(const char* name) { return declared_machine(name).value(); }

inline Plan planned(const EngineOptions& options, const char* name = "cpu") {
  Result<Plan> plan = resolve(options, machine(name), gpt_oss());
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(plan).value();
}

inline std::string refusal(const EngineOptions& options, const char* name = "cpu") {
  const Result<Plan> plan = resolve(options, machine(name), gpt_oss());
  EXPECT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().exit_code(), 2);
  return plan.status().message();
}

}  // namespace nibble
