#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>

#include "ops/attention/attention_kernels.h"
#include "ops/linear/dot_kernels.h"
#include "plan/bound.h"
#include "plan/memory.h"
#include "plan/plan.h"
#include "plan/plan_test_util.h"
#include "plan/rank_part.h"
#include "plan/rules.h"

namespace nibble {
namespace {

TEST(Plan, EveryFieldSaysWhereItCameFromAndWhy) {
  for (const char* name : {"cpu", "h100x1", "h200x4", "b200x8"}) {
    const Plan plan = planned({}, name);
    EXPECT_GE(plan.choices.size(), 18u);
    for (const Choice& choice : plan.choices) {
      EXPECT_FALSE(choice.value.empty()) << choice.field;
      EXPECT_FALSE(choice.why.empty()) << choice.field;
      EXPECT_TRUE(choice.from == "default" || choice.from.starts_with("rule:"))
          << choice.field << choice.from;
      for (const Rejected& rejected : choice.rejected) {
        EXPECT_FALSE(rejected.why.empty()) << choice.field << " " << rejected.value;
        EXPECT_NE(rejected.value, choice.value);
      }
    }
  }
}

TEST(Plan, WhatTheUserSetIsTakenAndSaysSo) {
  const Plan plan = planned({.max_model_len = 5000,
                             .max_num_seqs = 3,
                             .max_num_batched_tokens = 77,
                             .dtype = FloatType::float32,
                             .kv_cache_dtype = FloatType::fp8_e4m3,
                             .quantization = Quantization::q8,
                             .moe_runner_backend = "cpu_avx2",
                             .attention_backend = "cpu_scalar"});
  EXPECT_EQ(plan.max_model_len, 5000);
  EXPECT_EQ(plan.max_num_seqs, 3);
  EXPECT_EQ(plan.max_num_batched_tokens, 77);
  EXPECT_EQ(plan.dtype, DType::f32);
  EXPECT_EQ(plan.kv_dtype, DType::f8_e4m3);
  EXPECT_EQ(plan.quantization, Quantization::q8);
  EXPECT_EQ(plan.experts.kernel, "cpu_avx2");
  EXPECT_EQ(plan.attention, "cpu_scalar");
  for (const char* field : {"max_model_len", "max_num_seqs", "max_num_batched_tokens", "dtype",
                            "kv_cache_dtype", "quantization", "moe_runner", "attention"})
    EXPECT_EQ(plan.choice(field).from, "user") << field;
  EXPECT_EQ(plan.choice("token_exchange").from, "default");
}

TEST(Plan, ARefusalNamesTheOptionTheReasonAndWhatWorks) {
  EXPECT_EQ(refusal({.max_model_len = 200000}),
            "--max-model-len 200000: the model holds 131072 tokens; give at most 131072");
  EXPECT_EQ(refusal({.tensor_parallel = 3}), "--tp 3: ranks are 1, 2, 4 or 8; give 1, 2, 4, 8");
  EXPECT_EQ(refusal({.tensor_parallel = 4, .expert_parallel = 2}),
            "--ep 2: a CPU's ranks have experts of their own all or none, and --tp is 4; give 1, 4");
  EXPECT_EQ(refusal({.tensor_parallel = 1, .expert_parallel = 2}),
            "--ep 2: a CPU's ranks have experts of their own all or none, and --tp is 1; give 1");
  EXPECT_EQ(refusal({.all_reduce = "fused", .tensor_parallel = 2}),
            "--all-reduce fused: ranks have whole sums and gather them; give gather");
  EXPECT_EQ(refusal({.tensor_parallel = 8}, "h200x4"), "--tp 8: there are 4 GPUs; give 1, 2, 4");
  EXPECT_EQ(refusal({.device = Device::cuda}), "--device cuda: this machine has no GPU; give cpu");
  EXPECT_EQ(
      refusal({.moe_runner_backend = "cpu_amx"}),
      "--moe-runner-backend cpu_amx: this CPU lacks what cpu_amx needs: amx_bf16, amx_tile; give auto or "
      "one of cpu_avx512_bf16, cpu_avx512_vnni, cpu_avx512, cpu_avx2, cpu_scalar");
  EXPECT_EQ(refusal({.all_reduce = "nccl", .tensor_parallel = 2}),
            "--all-reduce nccl: it joins GPUs, and a CPU's ranks have links of their own; give gather");
  EXPECT_EQ(
      refusal({.all_reduce = "nccl", .tensor_parallel = 4, .data_parallel = 2}, "h200x4"),
      "--all-reduce nccl: ranks with sequences of their own store rows into each other's memory; leave --dp "
      "out; give gather");
  EXPECT_EQ(refusal({.all_reduce = "fussed"}),
            "--all-reduce fussed: not one of its values, the nearest is fused; give none");
  EXPECT_NE(refusal({.attention_backend = "cpu_avx51"}).find("the nearest is cpu_avx512"), std::string::npos);
}

TEST(Plan, IntelsCpuWithoutTilesMultipliesSingly) {
  const auto runner = [](const char* vendor, std::vector<std::string> more) {
    Machine cpu = machine("cpu");
    cpu.cpu.vendor = vendor;
    cpu.cpu.features.insert(cpu.cpu.features.begin(), more.begin(), more.end());
    const Plan plan = resolve({}, cpu, gpt_oss()).value();
    EXPECT_EQ(plan.choice("token_exchange").from, "default");
    return plan.choice("moe_runner").value + " from " + plan.choice("moe_runner").from;
  };
  EXPECT_EQ(runner("GenuineIntel", {}), "cpu_avx512_vnni from rule:intel-multiplies-singly");
  EXPECT_EQ(runner("GenuineIntel", {"amx_bf16", "amx_tile"}), "cpu_amx from default");
  EXPECT_EQ(runner("AuthenticAMD", {}), "cpu_avx512_bf16 from rule:exchange-needs-ranks");
}

TEST(Plan, WeightsAreAskedForAsTheProcessorLikesIt) {
  const auto lines = [](const char* vendor, int family, bool has_avx512 = true) {
    Machine cpu = machine("cpu");
    cpu.cpu.vendor = vendor;
    cpu.cpu.family = family;
    if (!has_avx512)
      std::erase_if(cpu.cpu.features, [](const auto& name) { return name.starts_with("avx512"); });
    const Plan plan = resolve({}, cpu, gpt_oss()).value();
    EXPECT_EQ(name_of(plan.weight_lines), plan.choice("weight_lines").value);
    return plan.choice("weight_lines").value + " from " + plan.choice("weight_lines").from;
  };
  EXPECT_EQ(lines("AuthenticAMD", 25), "led from rule:zen4-reads-on");
  EXPECT_EQ(lines("AuthenticAMD", 25, false), "each from default");
  EXPECT_EQ(lines("AuthenticAMD", 26), "each_near from rule:reads-near");
  EXPECT_EQ(lines("GenuineIntel", 6), "each_late from rule:reads-late");
  EXPECT_EQ(lines("GenuineIntel", 6, false), "each from default");
  EXPECT_EQ(lines("", 0), "each from default");
}

TEST(Plan, SaysHowWeightsAreAskedForOnlyWhereKernelsAskAsTheyAreTold) {
  const auto says = [](const char* runner, FloatType dtype) {
    Machine cpu = machine("cpu");
    cpu.cpu.features.insert(cpu.cpu.features.end(), {"amx_bf16", "amx_tile"});
    const Plan plan = resolve({.dtype = dtype, .moe_runner_backend = runner}, cpu, gpt_oss()).value();
    return std::ranges::any_of(plan.choices, [](const Choice& each) { return each.field == "weight_lines"; });
  };
  EXPECT_TRUE(says("cpu_avx512_bf16", FloatType::bfloat16));
  EXPECT_TRUE(says("cpu_avx2", FloatType::bfloat16));
  EXPECT_TRUE(says("cpu_amx", FloatType::int8)) << "eight-bit inputs do not go by tiles";
  EXPECT_FALSE(says("cpu_amx", FloatType::bfloat16));
  EXPECT_FALSE(says("cpu_avx512", FloatType::bfloat16));
  EXPECT_FALSE(says("cpu_avx512_bf16", FloatType::float32));
  EXPECT_FALSE(says("cpu_scalar", FloatType::int8));
}

TEST(Plan, PromptsMeetFp8WeightsInFp8) {
  ModelTraits model = gpt_oss();
  const auto plan_of = [&](EngineOptions options, const char* name = "cpu") {
    options.dtype = FloatType::fp8_e4m3;
    return resolve(options, machine(name), model);
  };
  const auto says = [&](const EngineOptions& options, const char* name, std::string_view reason) {
    const Status refused = plan_of(options, name).status();
    EXPECT_EQ(refused.exit_code(), 2);
    EXPECT_NE(refused.message().find("--dtype fp8"), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find(reason), std::string::npos) << refused.message();
  };
  says({}, "cpu", "it rounds the inputs of weights in FP8, and this model has none");
  for (StoredFormat ModelTraits::*part : {&ModelTraits::dense_format, &ModelTraits::expert_format}) {
    for (const StoredFormat fp8 : {StoredFormat::fp8_block, StoredFormat::fp8_row}) {
      model = gpt_oss();
      model.*part = fp8;
      const Plan plan = plan_of({}).value();
      EXPECT_TRUE(plan.fp8_prompts && !plan.int8_products);
      EXPECT_EQ(plan.dtype, DType::bf16);
      EXPECT_EQ(plan.kv_dtype, DType::bf16) << "what fp8 is rounded from";
      EXPECT_EQ(plan.choice("dtype").from, "user");
      EXPECT_FALSE(resolve({}, machine("cpu"), model).value().fp8_prompts) << "only where it is asked for";
    }
  }
  for (const EngineOptions& ranks : {EngineOptions{.tensor_parallel = 2}, EngineOptions{.expert_parallel = 2},
                                     EngineOptions{.processes = 2}})
    EXPECT_TRUE(plan_of(ranks).value().fp8_prompts) << "ranks have whole rows of what they multiply";
}

TEST(Plan, ConvertsWhatDenseWeightsThereAre) {
  const Plan plan = planned({.quantization = Quantization::q8});
  const std::string text = plan_text(plan, 96);
  EXPECT_NE(text.find("in q8                   attention, lm_head\n"), std::string::npos) << text;
  EXPECT_EQ(plan_text(planned({}), 96).find("in q8"), std::string::npos);
  ModelTraits narrow = gpt_oss();
  for (WeightGroup& group : narrow.weights) group.convertible.clear();
  const Status refused = resolve({.quantization = Quantization::q8}, machine("cpu"), narrow).status();
  EXPECT_EQ(refused.exit_code(), 2);
  EXPECT_NE(refused.message().find("whole blocks of 32 columns"), std::string::npos) << refused.message();
}

TEST(Matrix, SaysOfNoPairThatItRunsHereUnlessAllOfItIsBuilt) {
  EngineOptions spread{.tensor_parallel = 4, .expert_parallel = 4};
  for (const auto& [options, name] : {std::pair(EngineOptions{}, "cpu"),
                                      {spread, "cpu"},
                                      {EngineOptions{}, "h200x1"},
                                      {EngineOptions{}, "h200x4"},
                                      {spread, "h200x4"}}) {
    const Result<std::vector<JudgedPair>> pairs = judge_pairs(options, machine(name), gpt_oss());
    ASSERT_TRUE(pairs.ok()) << pairs.status().message();
    for (const JudgedPair& pair : *pairs) {
      const KernelFacts& kernel = find_expert_kernel(pair.path.kernel)->facts;
      const bool tokens = pair.path.exchange == "none" || kernel.device == DeviceKind::cpu;
      EXPECT_EQ(pair.built, tokens && kernel.built)
          << pair.path.kernel << " with " << pair.path.exchange << " on " << name;
    }
  }
}

TEST(Plan, ThreadsArePinnedWhereTheCpusAreNobodyElses) {
  struct Case {
    int cpus, claimed;
    double quota;
    int threads;
    bool pinned;
  };
  for (const Case& c : {Case{8, 0, 0, 0, true},
                        {8, 0, 0, 9, false},
                        {8, 3, 0, 4, true},
                        {8, 4, 0, 5, true},
                        {8, 4, 0, 6, false},
                        {8, 1, 0, 8, true},
                        {8, 2, 0, 8, false},
                        {8, 0, 4, 0, false},
                        {8, 0, 8, 0, true}}) {
    Machine own = machine("cpu");
    own.cpu.cpus = c.cpus;
    own.cpu.claimed_cpus = c.claimed;
    own.cpu.cpu_quota = c.quota;
    own.cpu.threads = c.quota > 0 ? static_cast<int>(c.quota) : c.cpus;
    const Plan plan = resolve({.threads = c.threads}, own, gpt_oss()).value();
    EXPECT_EQ(plan.pin_threads, c.pinned)
        << c.threads << " threads, " << c.claimed << " claimed, quota " << c.quota;
    EXPECT_EQ(plan.choice("pinning").value, c.pinned ? "one CPU a thread" : "none");
  }
}

TEST(Plan, LinearAttentionIsMadeForTheGpu) {
  ModelTraits hybrid = gpt_oss();
  hybrid.linear_layers = 6;
  for (const auto& [name, kernel] : {std::pair("h100x1", "sm90_gated_delta"),
                                     {"h200x1", "sm90_gated_delta"},
                                     {"b200x1", "sm100_gated_delta"},
                                     {"cpu", "cpu_gated_delta"}}) {
    const Result<Plan> plan = resolve({}, machine(name), hybrid);
    ASSERT_TRUE(plan.ok()) << name << ": " << plan.status().message();
    EXPECT_EQ(plan->choice("linear_attention").value, kernel) << name;
  }
}

TEST(Plan, SnapshotsOfStatesHaveTheirPartOfTheMemoryOrThePrefixCacheIsOff) {
  ModelTraits hybrid = gpt_oss();
  hybrid.linear_layers = 6;
  hybrid.snapshot_bytes = 64 << 20;
  const Plan plan = resolve({}, machine("cpu"), hybrid).value();
  EXPECT_TRUE(plan.prefix_cache);
  EXPECT_EQ(plan.snapshot_interval, 4096);
  EXPECT_EQ(plan.state_snapshots, 2 * plan.max_num_seqs + hybrid.max_positions / 4096);
  EXPECT_EQ(plan.memory.snapshots, plan.state_snapshots * hybrid.snapshot_bytes);
  EXPECT_LE(plan.memory.total, plan.memory.budget);

  EngineOptions asked{.state_snapshots = 0, .snapshot_interval = 100};
  asked.given.snapshot_interval = true;
  EXPECT_EQ(resolve(asked, machine("cpu"), hybrid).status().message(),
            "--snapshot-interval 100: a state is kept at multiples of 64 positions; give 128");
  asked.snapshot_interval = 128;
  asked.given.state_snapshots = true;
  EXPECT_EQ(
      resolve(asked, machine("cpu"), hybrid).status().message(),
      "--state-snapshots 0: requests go on from this model's prefixes by snapshots of its states alone; "
      "give from 1 to what fits, or --no-prefix-cache");
  asked.state_snapshots = 1 << 20;
  EXPECT_NE(resolve(asked, machine("cpu"), hybrid).status().message().find("fit in their part of the memory"),
            std::string::npos);
  asked.state_snapshots = 7;
  EXPECT_EQ(resolve(asked, machine("cpu"), hybrid).value().state_snapshots, 7);
  EXPECT_NE(resolve(asked, machine("cpu"), gpt_oss())
                .status()
                .message()
                .find("no layer of this model keeps a state"),
            std::string::npos);
  asked.no_prefix_cache = true;
  EXPECT_NE(resolve(asked, machine("cpu"), hybrid).status().message().find("the prefix cache is off"),
            std::string::npos);

  hybrid.snapshot_bytes = std::int64_t{1} << 50;
  const Plan none = resolve({}, machine("cpu"), hybrid).value();
  EXPECT_FALSE(none.prefix_cache);
  EXPECT_EQ(none.state_snapshots, 0);
}

TEST(Plan, NeitherKernelNorExchangeIsChosenWithoutTheOther) {
  const Plan none = planned({.tensor_parallel = 4}, "h200x4");
  EXPECT_EQ(none.experts.exchange, "none");
  EXPECT_EQ(none.experts.combine, CombineFormat::top_k_order);
  EXPECT_EQ(planned({.tensor_parallel = 4, .expert_parallel = 4}, "h200x4").experts.exchange, "none");
  EXPECT_EQ(planned({.tensor_parallel = 4, .data_parallel = 4}, "h200x4").experts.exchange, "low_latency");
  EXPECT_EQ(planned({.moe_a2a_backend = "deepep", .tensor_parallel = 4, .data_parallel = 4}, "h200x4")
                .experts.exchange,
            "normal");
  const Plan spread = planned({.tensor_parallel = 4, .expert_parallel = 4});
  EXPECT_EQ(spread.experts.exchange, "normal");
  EXPECT_EQ(spread.experts.dispatch, DispatchFormat::contiguous);
  EXPECT_EQ(spread.choice("token_exchange").from, "rule:spread-experts-exchange");
  const Plan masked =
      planned({.moe_a2a_backend = "deepep_low_latency", .tensor_parallel = 4, .expert_parallel = 4});
  EXPECT_EQ(masked.experts.exchange, "low_latency");
  EXPECT_EQ(masked.experts.dispatch, DispatchFormat::masked);
  EXPECT_EQ(masked.experts.combine, CombineFormat::top_k_order);
  EXPECT_EQ(masked.choice("token_exchange").from, "user");
}

TEST(Plan, WhatIsOnlyDeclaredRunsOnNoRealMachine) {
  if (has_device_code()) GTEST_SKIP() << "this program has device code, and the case is about one without";
  const Plan declared = planned({}, "h200x1");
  EXPECT_EQ(declared.not_built, (std::vector<std::string>{"sm90_mxfp4", "sm90_attention", "CUDA graphs"}));
  Machine real = machine("h200x1");
  real.declared = false;
  EXPECT_EQ(resolve({.device = Device::cuda}, real, gpt_oss()).status().message(),
            "--device cuda: this nibble was built without CUDA; give cpu");
  EXPECT_TRUE(resolve({}, real, gpt_oss())->not_built.empty());
  for (const ExpertKernel& kernel : expert_kernels()) {
    if (kernel.facts.built) continue;
    EXPECT_FALSE(resolve({.moe_runner_backend = std::string(kernel.facts.name)}, real, gpt_oss()).ok());
  }
}

TEST(Plan, AGpuTakesWhatItsAttentionTakes) {
  const Plan plan = planned({}, "h200x1");
  EXPECT_EQ(plan.page_size, 64) << "a chunk of its keys and values";
  EXPECT_EQ(planned({}, "cpu").page_size, 16);
  const auto with = [](int sequences) {
    EngineOptions options{.max_num_seqs = sequences};
    options.given.max_num_seqs = true;
    return resolve(options, machine("h200x1"), gpt_oss());
  };
  EXPECT_TRUE(with(1024).ok());
  EXPECT_EQ(with(1025).status().message(),
            "--max-num-seqs 1025: attention on a GPU takes at most 1,024 in a step; give 128");
}

TEST(Plan, MemoryAddsUpAndStaysInItsBudget) {
  for (const char* name : {"cpu", "h100x1", "h200x1", "h200x8"}) {
    for (const float share : {0.0f, 0.5f, 0.95f}) {
      const Plan plan = planned({.memory_utilization = share}, name);
      const MemoryPlan& memory = plan.memory;
      EXPECT_EQ(memory.weights + memory.kv + memory.workspace + memory.graphs, memory.total);
      EXPECT_LE(memory.total, memory.budget) << name << " " << share;
      EXPECT_EQ(memory.kv_tokens, plan.kv_pages * plan.page_size);
      EXPECT_GE(memory.max_concurrency, 1.0);
    }
  }
  EXPECT_LT(planned({.memory_utilization = 0.5f}, "h200x1").memory.kv_tokens,
            planned({}, "h200x1").memory.kv_tokens);
}

TEST(Plan, PagesOfWindowsAreFewAndCounted) {
  const Plan plan = planned({.max_num_seqs = 4});
  ASSERT_GT(plan.kv_window_pages, 0);
  EXPECT_LT(plan.kv_window_pages, plan.kv_pages);
  const std::int64_t page = 16 * 12 * 1024 * 2;  // positions, layers of a kind, values, bytes
  EXPECT_EQ(plan.memory.kv, page * (plan.kv_pages + plan.kv_window_pages));
  const Plan fewer = planned({.max_num_seqs = 4, .kv_cache_tokens = 1000});
  EXPECT_EQ(fewer.kv_pages, 63);
  EXPECT_EQ(fewer.choice("kv_pages").from, "user");
  EXPECT_EQ(fewer.max_model_len, 1008);
  EXPECT_NE(refusal({.max_model_len = 2000, .kv_cache_tokens = 1000}).find("--kv-cache-tokens holds 1008"),
            std::string::npos);
  EXPECT_NE(refusal({.kv_cache_tokens = 1 << 30}).find("--kv-cache-tokens 1073741824: "), std::string::npos);
}

TEST(Plan, WindowsNeedPagesForWhatRunsHoweverLongItIs) {
  const auto beside = [](std::int64_t whole) { return window_pages_beside(gpt_oss(), 16, 4, 512, whole); };
  EXPECT_EQ(beside(800), 2 * (4 * 10 + 2 * 32)) << "twice what runs";
  EXPECT_EQ(beside(8000), 2000) << "a quarter, for prefixes";
  EXPECT_EQ(beside(50), 50) << "no more than there are others";
  EXPECT_EQ(beside(1), 10) << "one sequence can go on";
  ModelTraits one_kind = gpt_oss();
  one_kind.window_layers = 0;
  EXPECT_EQ(window_pages_beside(one_kind, 16, 4, 512, 1000), 0);
}

TEST(Plan, PagesFitWithTheirWindowPagesAndOneMoreDoesNot) {
  const KvPages page = kv_page_bytes(gpt_oss(), {.page_size = 16});
  const auto bytes_of = [&](std::int64_t pages) {
    return pages * page.whole + window_pages_beside(gpt_oss(), 16, 4, 512, pages) * page.windowed;
  };
  for (const int shift : {23, 28, 34}) {
    const std::int64_t bytes = std::int64_t{1} << shift;
    const std::int64_t pages = whole_pages_in(gpt_oss(), {.page_size = 16}, 4, 512, bytes);
    EXPECT_LE(bytes_of(pages), bytes);
    EXPECT_GT(bytes_of(pages + 1), bytes);
  }
}

TEST(Plan, AStepReadsEachExpertAtMostOnce) {
  const Plan plan = planned({}, "h200x1");
  double experts = 0;
  for (const WeightGroup& group : plan.model.weights) {
    if (group.use == WeightUse::by_expert) experts += static_cast<double>(group.bytes);
  }
  const auto bytes = [&](double tokens) { return decode_cost(plan, tokens, 0).bytes; };
  const double shared = bytes(0);
  EXPECT_NEAR(bytes(1), shared + experts * 4 / 32, 1);
  EXPECT_LT(bytes(2), shared + experts * 8 / 32);
  EXPECT_NEAR(bytes(1000), shared + experts, 1);
}

TEST(Plan, MoreRanksHoldFewerBytesEach) {
  std::int64_t before = std::int64_t{1} << 60;
  for (const int ranks : {1, 2, 4, 8}) {
    const std::int64_t bytes = planned({.tensor_parallel = ranks}, "h200x8").memory.weights;
    EXPECT_LT(bytes, before);
    before = bytes;
  }
}

// The table of kernels says of this machine what the kernels say themselves.
TEST(KernelTable, SupportIsWhatTheKernelsSay) {
  const Machine here = probe_machine();
  int checked = 0;
  std::string order, own_order;
  for (const ExpertKernel& kernel : expert_kernels()) {
    if (kernel.facts.device != DeviceKind::cpu) continue;
    const DotKernels* own = find_dot_kernels(kernel.facts.name.substr(4));
    ASSERT_NE(own, nullptr) << kernel.facts.name;
    EXPECT_EQ(missing_features(kernel.facts, here.cpu).empty(), own->supported()) << kernel.facts.name;
    order += " " + std::string(own->name);
    ++checked;
  }
  EXPECT_EQ(checked, static_cast<int>(dot_kernels().size()));
  for (const DotKernels& own : dot_kernels()) own_order += " " + std::string(own.name);
  EXPECT_EQ(order, own_order) << "preferences differ";
  for (const AttentionKernels& own : attention_kernels()) {
    const AttentionKernel* kernel = find_attention("cpu_" + std::string(own.name));
    ASSERT_NE(kernel, nullptr) << own.name;
    EXPECT_EQ(missing_features(kernel->facts, here.cpu).empty(), own.supported()) << own.name;
  }
}

TEST(Rules, HaveIdsOfTheirOwn) {
  std::vector<std::string_view> ids;
  for (const Rule& rule : plan_rules()) ids.push_back(rule.id);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

template <class T>
T one_of(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}

// Mostly what nobody set: of many wishes at once one is nearly always refused, and a refusal tells little of
// a plan.
template <class T>
T seldom(T usual, std::initializer_list<T> others) {
  return *rc::gen::inRange(0, 24) > 0 ? usual : one_of(others);
}

EngineOptions random_options() {
  EngineOptions options;
  options.device = seldom(Device::automatic, {Device::cpu, Device::cuda});
  options.threads = seldom(0, {1, 3, 64});
  options.max_model_len = seldom(0, {1000, 131072, 1 << 20});
  options.max_num_seqs = seldom(16, {1, 300});
  options.max_num_batched_tokens = seldom(512, {1, 4096});
  options.dtype =
      seldom(FloatType::automatic, {FloatType::float32, FloatType::bfloat16, FloatType::fp8_e4m3});
  options.kv_cache_dtype = seldom(FloatType::automatic, {FloatType::float32, FloatType::fp8_e4m3});
  options.quantization = seldom(Quantization::none, {Quantization::q8});
  options.moe_runner_backend = seldom<const char*>(
      "auto", {"cpu_avx2", "cpu_amx", "sm90_mxfp4", "triton_kernels", "marlin", "nothing"});
  options.moe_a2a_backend = seldom<const char*>("auto", {"none", "normal", "deepep", "mooncake"});
  options.attention_backend = seldom<const char*>("auto", {"cpu_scalar", "sm90_attention", "fa3"});
  options.all_reduce = seldom<const char*>("auto", {"fused", "nccl"});
  options.tensor_parallel = seldom(0, {1, 2, 3, 4});
  options.expert_parallel = seldom(0, {1, 2, 4});
  options.data_parallel = seldom(0, {1, 2, 4});
  options.dp_attention = seldom(false, {true});
  options.memory_utilization = one_of({0.0f, 0.3f, 0.9f});
  options.enforce_eager = *rc::gen::arbitrary<bool>();
  return options;
}

Machine random_machine() {
  Machine chosen = machine(one_of<const char*>({"cpu", "h100x1", "h200x4", "b200x2", "h100x8"}));
  chosen.declared = seldom(true, {false});
  std::erase_if(chosen.cpu.features, [](const std::string&) { return *rc::gen::inRange(0, 4) == 0; });
  return chosen;
}

ModelTraits random_model() {
  ModelTraits model = gpt_oss();
  model.expert_format =
      seldom(StoredFormat::mxfp4, {StoredFormat::bf16, StoredFormat::fp8_block, StoredFormat::nvfp4});
  model.dense_format = seldom(StoredFormat::bf16, {StoredFormat::fp8_block});
  model.attention = seldom(AttentionKind::grouped, {AttentionKind::latent});
  model.linear_layers = seldom<std::int64_t>(0, {12});
  model.experts = seldom<std::int64_t>(32, {30, 128});
  model.weights.push_back({.name = "more",
                           .values = 0,
                           .bytes = seldom<std::int64_t>(0, {std::int64_t{1} << 36, std::int64_t{1} << 40})});
  return model;
}

// What a plan is, or why there is none, as one text.
std::string outcome(const Result<Plan>& plan) {
  return plan.ok() ? plan_json(*plan) : plan.status().message();
}

TEST(Rules, TheirOrderChangesNothing) {
  int planned = 0, refused = 0;
  const bool holds = rc::check([&] {
    std::mt19937 random(*rc::gen::arbitrary<unsigned>());
    std::vector<Rule> rules(plan_rules().begin(), plan_rules().end());
    // With RapidCheck's hundred cases a thousand shuffles, each for other wishes.
    for (int i = 0; i < 10; ++i) {
      const EngineOptions options = random_options();
      const Machine chosen = random_machine();
      const ModelTraits model = random_model();
      const Result<Plan> expected = resolve(options, chosen, model);
      ++(expected.ok() ? planned : refused);
      std::shuffle(rules.begin(), rules.end(), random);
      RC_ASSERT(outcome(resolve_by(rules, options, chosen, model)) == outcome(expected));
    }
  });
  EXPECT_TRUE(holds);
  EXPECT_GT(planned, 250) << "of " << planned + refused;
  EXPECT_GT(refused, 100) << "of " << planned + refused;
}

// A user's value never turns into another one: it stands in the plan or there is none.
void check_that_wishes_stand(int& planned) {
  const EngineOptions options = random_options();
  const Result<Plan> plan = resolve(options, random_machine(), random_model());
  if (!plan.ok()) return;
  ++planned;
  if (options.max_model_len > 0) RC_ASSERT(plan->max_model_len == options.max_model_len);
  if (options.tensor_parallel > 0) RC_ASSERT(plan->tensor_parallel == options.tensor_parallel);
  if (options.expert_parallel > 0) RC_ASSERT(plan->expert_parallel == options.expert_parallel);
  if (options.data_parallel > 0) RC_ASSERT(plan->data_parallel == options.data_parallel);
  if (options.data_parallel == 0 && options.dp_attention)
    RC_ASSERT(plan->data_parallel == plan->tensor_parallel);
  if (options.threads > 0) RC_ASSERT(plan->threads == options.threads);
  RC_ASSERT(options.max_num_seqs == 16 || plan->max_num_seqs == options.max_num_seqs);
  if (options.enforce_eager) RC_ASSERT(!plan->cuda_graphs);
  if (options.device != Device::automatic)
    RC_ASSERT((plan->device == DeviceKind::cuda) == (options.device == Device::cuda));
  if (find_expert_kernel(options.moe_runner_backend) != nullptr)
    RC_ASSERT(plan->experts.kernel == options.moe_runner_backend);
  if (find_exchange(options.moe_a2a_backend) != nullptr)
    RC_ASSERT(plan->experts.exchange == options.moe_a2a_backend);
  if (options.all_reduce != "auto") RC_ASSERT(plan->choice("all_reduce").value == options.all_reduce);
}

TEST(Plan, OnAGpuDraftsAreCheckedWhereTheyAreAskedForAndTakeMemory) {
  const Plan none = planned({}, "h200x1");
  EXPECT_EQ(none.choice("speculation").value, "none");
  EXPECT_EQ(none.draft_tokens, 0);
  const Plan looked_up = planned({.max_num_seqs = 4, .speculative_algorithm = "ngram"}, "h200x1");
  EXPECT_EQ(looked_up.choice("speculation").value, "ngram");
  EXPECT_EQ(looked_up.draft_tokens, 8);
  EXPECT_TRUE(looked_up.looks_up_drafts);
  EXPECT_EQ(planned({}, "cpu").choice("speculation").value, "forced");
  ModelTraits hybrid = gpt_oss();
  hybrid.linear_layers = 6;
  hybrid.delta = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4};
  EXPECT_EQ(resolve({}, machine("cpu"), hybrid).value().draft_tokens, 8);
  EXPECT_EQ(resolve({}, machine("h200x1"), hybrid).value().draft_tokens, 0);
  EngineOptions many{.speculative_algorithm = "ngram", .draft_tokens = 61};
  many.given.draft_tokens = true;
  EXPECT_EQ(resolve(many, machine("h200x1"), hybrid).status().message(),
            "--speculative-num-draft-tokens 61: layers keep a state, which is brought forward once in 64 "
            "positions: a step checks at most 60; give 8");
  // Changed rows of nine, not of four, and graphs of five to nine, and of two to nine with drafts.
  const Plan few = planned({.max_num_seqs = 4}, "h200x1");
  EXPECT_EQ(looked_up.memory.workspace - few.memory.workspace, 5 * gpt_oss().vocabulary * 4);
  EXPECT_EQ(looked_up.memory.graphs - few.memory.graphs, (4 + 8) * (2 << 20));
}

TEST(Plan, AUsersValueStandsOrThereIsNoPlan) {
  int planned = 0;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < 20; ++i) check_that_wishes_stand(planned);
  }));
  EXPECT_GT(planned, 250);
}

}  // namespace
}  // namespace nibble
