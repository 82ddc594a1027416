#include "quantize/module_choice.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(ModuleChoice, PatternsMatchWholeNames) {
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a.*.c", "a.b.b.c"));
  EXPECT_TRUE(matches("*.?_proj", "x.q_proj"));
  EXPECT_TRUE(matches("**a*", "bab"));
  EXPECT_FALSE(matches("a", "ab"));
  EXPECT_FALSE(matches("*.?_proj", "x.gate_proj"));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_FALSE(matches("a*b*c", "a-b-b"));
  // Linear in practice: the last star alone is taken back.
  EXPECT_FALSE(matches("*a*a*a*a*a*a*a*a*b", std::string(20000, 'a')));
}

TEST(ModuleChoice, KnowsModulesByTheirNames) {
  EXPECT_EQ(module_kind("model.layers.3.mlp.experts.17.gate_proj"), ModuleKind::expert);
  EXPECT_EQ(module_kind("model.layers.3.mlp.experts.gate_up_proj"), ModuleKind::expert);
  EXPECT_EQ(module_kind("model.layers.3.mlp.shared_experts.up_proj"), ModuleKind::linear);
  EXPECT_EQ(module_kind("model.layers.3.mlp.gate_proj"), ModuleKind::linear);
  EXPECT_EQ(module_kind("model.layers.3.mlp.gate"), ModuleKind::router);
  EXPECT_EQ(module_kind("model.layers.3.mlp.shared_expert_gate"), ModuleKind::router);
  EXPECT_EQ(module_kind("model.layers.0.linear_attn.in_proj_ba"), ModuleKind::state_gate);
  EXPECT_EQ(module_kind("model.language_model.layers.0.linear_attn.in_proj_a"), ModuleKind::state_gate);
  EXPECT_EQ(module_kind("model.layers.0.linear_attn.in_proj_qkvz"), ModuleKind::linear);
  EXPECT_EQ(module_kind("model.layers.3.mlp.router"), ModuleKind::router);
  EXPECT_EQ(module_kind("model.embed_tokens"), ModuleKind::embedding);
  EXPECT_EQ(module_kind("lm_head"), ModuleKind::lm_head);
}

const std::vector<std::string> modules = {"lm_head", "model.embed_tokens", "l.0.self_attn.q_proj",
                                          "l.0.mlp.gate", "l.0.mlp.experts.0.up_proj"};

TEST(ModuleChoice, TakesExpertsWhereThereAreAnyAndElseAllLinearModules) {
  EXPECT_EQ(*choose_modules(modules, {}), (std::vector<bool>{false, false, false, false, true}));
  EXPECT_EQ(*choose_modules(modules, {.set = ModuleSet::linear}),
            (std::vector<bool>{false, false, true, false, true}));
  EXPECT_EQ(*choose_modules({"lm_head", "a.up_proj"}, {}), (std::vector<bool>{false, true}));
}

TEST(ModuleChoice, ExcludingWinsOverIncluding) {
  EXPECT_EQ(*choose_modules(modules, {.include = {"lm_head", "*.gate"}, .exclude = {"*.gate"}}),
            (std::vector<bool>{true, false, false, false, true}));
}

TEST(ModuleChoice, RefusesWhatMeansNothing) {
  EXPECT_FALSE(choose_modules(modules, {.include = {"x*"}}).ok());
  EXPECT_FALSE(choose_modules(modules, {.exclude = {"x*"}}).ok());
  EXPECT_FALSE(choose_modules(modules, {.include = {"*embed*"}}).ok());
  EXPECT_FALSE(choose_modules(modules, {.exclude = {"*"}}).ok());
  EXPECT_FALSE(choose_modules({"a.up_proj"}, {.set = ModuleSet::experts}).ok());
}

}  // namespace
}  // namespace nibble
