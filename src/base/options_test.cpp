#include "base/options.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

Status set(const OptionSetter& setter, std::string_view text) {
  const std::string_view values[] = {text};
  return setter(values);
}

Status apply(const Environment& environment, EngineOptions& options) {
  const std::vector<OptionSpec> specs = engine_option_specs(options);
  std::vector<std::string> warnings;
  return apply_environment(environment, specs, specs, warnings);
}

std::vector<std::string> warnings_about(const Environment& environment) {
  EngineOptions options;
  const std::vector<OptionSpec> specs = engine_option_specs(options);
  std::vector<std::string> warnings;
  EXPECT_TRUE(apply_environment(environment, specs, specs, warnings).ok());
  return warnings;
}

TEST(OptionValue, AWholeNumberIsReadWholeAndInRange) {
  int n = 7;
  const OptionSetter setter = int_value(n, 1, 100);
  EXPECT_TRUE(set(setter, "100").ok());
  EXPECT_EQ(n, 100);
  for (const char* bad :
       {"", "0", "101", "1x", " 1", "1 ", "+1", "0x10", "1e1", "1.0", "99999999999999999999"}) {
    EXPECT_EQ(set(setter, bad).message(), "not a whole number in range; give one from 1 to 100") << bad;
  }
  EXPECT_EQ(n, 100);
}

TEST(OptionValue, ASeedTakesAll64Bits) {
  std::uint64_t seed = 0;
  EXPECT_TRUE(set(uint64_value(seed), "18446744073709551615").ok());
  EXPECT_EQ(seed, 18446744073709551615u);
  EXPECT_FALSE(set(uint64_value(seed), "18446744073709551616").ok());
  EXPECT_FALSE(set(uint64_value(seed), "-1").ok());
}

TEST(OptionValue, AFractionIsFiniteAndInRange) {
  float value = 0;
  const OptionSetter setter = float_value(value, 0, 2);
  EXPECT_TRUE(set(setter, "0.7").ok());
  EXPECT_EQ(value, 0.7f);
  for (const char* bad : {"", "nan", "inf", "-0.1", "2.1", "1e400", "0,7", "0.7f"}) {
    EXPECT_EQ(set(setter, bad).message(), "not a number in range; give one from 0 to 2") << bad;
  }
}

TEST(OptionValue, AChoiceListsWhatItTakes) {
  FloatType type = FloatType::automatic;
  const OptionSetter setter = choice_value<FloatType>(
      type, {{"auto", FloatType::automatic}, {"float32", FloatType::float32}, {"bf", FloatType::bfloat16}});
  EXPECT_TRUE(set(setter, "bf").ok());
  EXPECT_EQ(type, FloatType::bfloat16);
  EXPECT_EQ(set(setter, "fp8").message(), "not one of its values; give auto, float32 or bf");
}

TEST(OptionValue, TheLastOfSeveralCountsAndAListKeepsAll) {
  int n = 0;
  const std::string_view numbers[] = {"1", "2"};
  EXPECT_TRUE(int_value(n, 0, 9)(numbers).ok());
  EXPECT_EQ(n, 2);
  std::vector<std::string> texts{"replaced"};
  EXPECT_TRUE(strings_value(texts)(numbers).ok());
  EXPECT_EQ(texts, (std::vector<std::string>{"1", "2"}));
}

TEST(NearestName, FindsATypoAndGivesUpOnAStranger) {
  const std::string_view names[] = {"--max-model-len", "--max-num-seqs", "--seed"};
  EXPECT_EQ(nearest_name("--max-model-length", names), "--max-model-len");
  EXPECT_EQ(nearest_name("--max_num_seqs", names), "--max-num-seqs");
  EXPECT_EQ(nearest_name("--sed", names), "--seed");
  EXPECT_EQ(nearest_name("--zzzzzzzzzz", names), "");
  EXPECT_EQ(nearest_name(std::string(1000, 'x'), names), "");
}

TEST(EngineOptions, EachRowHasItsTwinInTheEnvironment) {
  EngineOptions options;
  const Environment environment{{"NIBBLE_DEVICE", "cpu"},
                                {"NIBBLE_THREADS", "3"},
                                {"NIBBLE_MAX_MODEL_LEN", "4096"},
                                {"NIBBLE_MAX_NUM_SEQS", "5"},
                                {"NIBBLE_MAX_NUM_BATCHED_TOKENS", "77"},
                                {"NIBBLE_DTYPE", "bfloat16"},
                                {"NIBBLE_KV_CACHE_DTYPE", "fp8"},
                                {"NIBBLE_QUANTIZATION", "q8"},
                                {"NIBBLE_MOE_RUNNER_BACKEND", "cpu_scalar"},
                                {"NIBBLE_ATTENTION_BACKEND", "cpu_avx2"},
                                {"NIBBLE_KV_CACHE_TOKENS", "4096"},
                                {"NIBBLE_NO_PREFIX_CACHE", "true"},
                                {"NIBBLE_SPECULATIVE_ALGORITHM", "ngram"},
                                {"NIBBLE_SPECULATIVE_NUM_DRAFT_TOKENS", "6"},
                                {"NIBBLE_TP", "2"},
                                {"NIBBLE_EP", "4"},
                                {"NIBBLE_DP", "4"},
                                {"NIBBLE_DP_ATTENTION", "true"},
                                {"NIBBLE_NNODES", "2"},
                                {"NIBBLE_NODE_RANK", "1"},
                                {"NIBBLE_DIST_INIT_ADDR", "10.0.0.1:5000"},
                                {"NIBBLE_DIST_KEY_FILE", "key"},
                                {"NIBBLE_TUNING_TABLE", "here.json"},
                                {"NIBBLE_STATE_SNAPSHOTS", "12"},
                                {"NIBBLE_SNAPSHOT_INTERVAL", "8192"},
                                {"NIBBLE_MOE_A2A_BACKEND", "normal"},
                                {"NIBBLE_ALL_REDUCE", "fused"},
                                {"NIBBLE_GPU_MEMORY_UTILIZATION", "0.5"},
                                {"NIBBLE_ENFORCE_EAGER", "1"},
                                {"NIBBLE_RANDOM_WEIGHTS", "11"},
                                {"NIBBLE_OVERRIDE_GATES", "nccl,mpi"},
                                {"NIBBLE_SEED", "9"},
                                {"PATH", "/bin"}};
  EXPECT_EQ(engine_option_specs(options).size() + 1, environment.size());
  ASSERT_TRUE(apply(environment, options).ok());
  EXPECT_EQ(options.device, Device::cpu);
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.max_model_len, 4096);
  EXPECT_EQ(options.max_num_seqs, 5);
  EXPECT_EQ(options.max_num_batched_tokens, 77);
  EXPECT_EQ(options.dtype, FloatType::bfloat16);
  EXPECT_EQ(options.kv_cache_dtype, FloatType::fp8_e4m3);
  EXPECT_EQ(options.quantization, Quantization::q8);
  EXPECT_EQ(options.moe_runner_backend, "cpu_scalar");
  EXPECT_EQ(options.attention_backend, "cpu_avx2");
  EXPECT_EQ(options.kv_cache_tokens, 4096);
  EXPECT_TRUE(options.no_prefix_cache);
  EXPECT_EQ(options.speculative_algorithm, "ngram");
  EXPECT_EQ(options.draft_tokens, 6);
  EXPECT_EQ(options.data_parallel, 4);
  EXPECT_TRUE(options.dp_attention);
  EXPECT_EQ(options.processes, 2);
  EXPECT_EQ(options.process, 1);
  EXPECT_EQ(options.first_process, "10.0.0.1:5000");
  EXPECT_EQ(options.process_key_file, "key");
  EXPECT_EQ(options.tuning_table, "here.json");
  EXPECT_EQ(options.state_snapshots, 12);
  EXPECT_EQ(options.snapshot_interval, 8192);
  EXPECT_EQ(options.tensor_parallel, 2);
  EXPECT_EQ(options.expert_parallel, 4);
  EXPECT_EQ(options.moe_a2a_backend, "normal");
  EXPECT_EQ(options.all_reduce, "fused");
  EXPECT_EQ(options.memory_utilization, 0.5f);
  EXPECT_TRUE(options.enforce_eager);
  EXPECT_EQ(options.random_weights, 11u);
  EXPECT_EQ(options.override_gates, "nccl,mpi");
  EXPECT_EQ(options.seed, 9u);
  const EngineOptions::Given& given = options.given;
  EXPECT_TRUE(given.device && given.threads && given.max_model_len && given.max_num_seqs &&
              given.max_num_batched_tokens && given.dtype && given.kv_cache_dtype && given.quantization &&
              given.moe_runner_backend && given.attention_backend && given.no_prefix_cache &&
              given.kv_cache_tokens && given.tensor_parallel && given.expert_parallel &&
              given.state_snapshots && given.snapshot_interval && given.moe_a2a_backend && given.all_reduce &&
              given.memory_utilization && given.enforce_eager && given.random_weights &&
              given.override_gates && given.seed);
}

TEST(EngineOptions, AValueTheUserSetIsToldFromAnEqualDefault) {
  EngineOptions options;
  ASSERT_TRUE(apply({{"NIBBLE_MAX_NUM_SEQS", std::to_string(options.max_num_seqs)}}, options).ok());
  EXPECT_TRUE(options.given.max_num_seqs);
  EXPECT_FALSE(options.given.threads);
}

TEST(EngineOptions, DevicesAreKnownByName) {
  EngineOptions options;
  ASSERT_TRUE(apply({{"NIBBLE_DEVICE", "cuda"}}, options).ok());
  EXPECT_EQ(options.device, Device::cuda);
  for (const char* device : {"cuda:0", "cuda:0,2"}) {
    EXPECT_EQ(apply({{"NIBBLE_DEVICE", device}}, options).message(),
              "NIBBLE_DEVICE \"" + std::string(device) +
                  "\": choosing among GPUs is not built yet; give auto, cpu or cuda");
  }
  EXPECT_EQ(apply({{"NIBBLE_DEVICE", "tpu"}}, options).message(),
            "NIBBLE_DEVICE \"tpu\": not one of its values; give auto, cpu or cuda");
}

TEST(Environment, AMalformedValueIsNamed) {
  EngineOptions options;
  const Status status = apply({{"NIBBLE_THREADS", "a\x1b[2Jb"}}, options);
  EXPECT_EQ(status.exit_code(), 2);
  EXPECT_EQ(status.message(),
            "NIBBLE_THREADS \"a\\x1b[2Jb\": not a whole number in range; give one from 0 to 1024");
  EXPECT_FALSE(options.given.threads);
}

TEST(Environment, AnUnknownVariableIsWarnedOfWithTheNearestKnownOne) {
  using Warnings = std::vector<std::string>;
  EXPECT_EQ(
      warnings_about({{"NIBBLE_THREAD", "2"}}),
      Warnings{"the environment variable \"NIBBLE_THREAD\" is unknown and has no effect; the nearest known "
               "one is NIBBLE_THREADS"});
  // The twin of an alias leads to the option's own.
  EXPECT_EQ(warnings_about({{"NIBBLE_CONTEXT_LENGTH", "2"}}),
            Warnings{"the environment variable \"NIBBLE_CONTEXT_LENGTH\" is unknown and has no effect; the "
                     "nearest known one is NIBBLE_MAX_MODEL_LEN"});
  EXPECT_EQ(warnings_about({{"NIBBLE_QQQQQQQQQQQQQQQQQQQQ", "2"}, {"NIBBLE_", "2"}}).size(), 2u);
  EXPECT_EQ(warnings_about({{"NIBBLER", "2"}, {"nibble_x", "1"}}), Warnings{});
}

TEST(Environment, AServicesVariablesArePassedOver) {
  const Environment injected{{"NIBBLE_SERVICE_HOST", "10.0.0.1"},
                             {"NIBBLE_SERVICE_PORT", "8000"},
                             {"NIBBLE_SERVICE_PORT_HTTP_METRICS", "8000"},
                             {"NIBBLE_PORT", "tcp://10.0.0.1:8000"},
                             {"NIBBLE_PORT_8000_TCP", "tcp://10.0.0.1:8000"},
                             {"NIBBLE_PORT_8000_TCP_PROTO", "tcp"},
                             {"NIBBLE_PORT_8000_TCP_PORT", "8000"},
                             {"NIBBLE_PORT_8000_TCP_ADDR", "10.0.0.1"},
                             {"NIBBLE_PORT_53_UDP", "udp://10.0.0.1:53"},
                             {"NIBBLE_GPU_PORT", "sctp://[::1]:80"}};
  EXPECT_EQ(warnings_about(injected), std::vector<std::string>{});
  int port = 8000;
  const OptionSpec option{.name = "--port", .value = "N", .set = int_value(port, 0, 65535)};
  const std::span<const OptionSpec> options(&option, 1);
  std::vector<std::string> warnings;
  EXPECT_TRUE(apply_environment(injected, options, options, warnings).ok());
  EXPECT_EQ(port, 8000);
  EXPECT_TRUE(apply_environment({{"NIBBLE_PORT", "81"}}, options, options, warnings).ok());
  EXPECT_EQ(port, 81);
  EXPECT_EQ(apply_environment({{"NIBBLE_PORT", "10.0.0.1:8000"}}, options, options, warnings).exit_code(), 2);
}

TEST(Environment, OnlyWhatAServiceSetsIsTakenForIts) {
  for (const char* name : {"NIBBLE_PORT", "NIBBLE_PORTS", "NIBBLE_PORT_", "NIBBLE_PORT__TCP",
                           "NIBBLE_PORT_80", "NIBBLE_PORT_80_TCPX", "NIBBLE_PORT_80_TCP_NAME",
                           "NIBBLE_SERVICE", "SERVICE_HOST", "NIBBLE_MY_SERVICE_HOST"})
    EXPECT_FALSE(is_service_variable(name, "80")) << name;
}

TEST(Environment, AnotherCommandsVariableIsNoErrorAndSetsNothing) {
  int mine = 0, theirs = 0;
  const OptionSpec my_option{.name = "--mine", .value = "N", .set = int_value(mine, 0, 9)};
  const OptionSpec their_option{.name = "--theirs", .value = "N", .set = int_value(theirs, 0, 9)};
  const OptionSpec known[] = {my_option, their_option};
  std::vector<std::string> warnings;
  EXPECT_TRUE(
      apply_environment({{"NIBBLE_THEIRS", "5"}, {"NIBBLE_MINE", "4"}}, {&my_option, 1}, known, warnings)
          .ok());
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(mine, 4);
  EXPECT_EQ(theirs, 0);
}

}  // namespace
}  // namespace nibble
