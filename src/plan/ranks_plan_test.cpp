// Plans over ranks: what each has, how many there are, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/memory.h"
#include "plan/plan_test_util.h"
#include "plan/rank_part.h"
#include "plan/rules.h"

namespace nibble {
namespace {

TEST(Plan, RanksOfACpuHavePartsThatFitItsMemoryTogether) {
  const Plan one = planned({}), four = planned({.tensor_parallel = 4});
  EXPECT_EQ(four.choice("all_reduce").value, "gather");
  EXPECT_TRUE(four.not_built.empty());
  EXPECT_EQ(rank_parts(four).size(), 4u);
  EXPECT_TRUE(rank_parts(one).empty());
  EXPECT_LT(four.memory.weights, one.memory.weights / 2);
  EXPECT_EQ(four.memory.capacity, one.memory.capacity / 4);
  EXPECT_NE(plan_text(four, 100).find("rank 3"), std::string::npos);
  const Plan spread = planned({.expert_parallel = 2});
  EXPECT_EQ(spread.tensor_parallel, 2);
  EXPECT_EQ(spread.choice("tp").from, "rule:ranks-for-experts");
  EXPECT_EQ(rank_parts(spread)[1].experts.begin(1), 16);
}

TEST(Plan, GroupsOfRanksDivideTheHeadsOfSequencesOfTheirOwn) {
  const Plan mixed = planned({.tensor_parallel = 4, .data_parallel = 2});
  EXPECT_EQ(mixed.expert_parallel, 4);
  EXPECT_EQ(mixed.choice("ep").from, "rule:sequences-need-whole-experts");
  EXPECT_EQ(mixed.choice("all_reduce").value, "gather");
  EXPECT_EQ(mixed.experts.exchange, "normal");
  EXPECT_TRUE(mixed.not_built.empty());
  const std::vector<RankPart> parts = rank_parts(mixed);
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[3].heads.count(parts[3].place), 32);
  EXPECT_EQ(parts[3].experts.begin(3), 24);
  const std::string text = plan_text(mixed, 400);
  EXPECT_NE(text.find("rank 3                  heads 32 to 63 with keys of 4 to 7; experts 24 to 31; "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("; of the sequences of group 1, at most 8 sequences and 256 tokens in a step"),
            std::string::npos)
      << text;
  // What a group divides lies between what each rank has whole and what all ranks divide.
  const Plan alone = planned({.tensor_parallel = 4, .data_parallel = 4}),
             together = planned({.tensor_parallel = 4, .expert_parallel = 4});
  EXPECT_LT(mixed.memory.weights, alone.memory.weights);
  EXPECT_GT(mixed.memory.weights, together.memory.weights);
  const Plan by_experts = planned({.expert_parallel = 4, .data_parallel = 2});
  EXPECT_EQ(by_experts.tensor_parallel, 4) << "--ep says how many ranks, too";
  EXPECT_EQ(by_experts.memory, mixed.memory);
}

TEST(Plan, GroupsThatAreNotOfEqualSizeAreRefused) {
  EXPECT_EQ(
      refusal({.tensor_parallel = 2, .data_parallel = 4}),
      "--dp 4: --tp counts all ranks, which are 2, and --dp divides them into groups of one size; give 1, 2");
  EXPECT_NE(refusal({.tensor_parallel = 4, .data_parallel = 3}).find("; give 1, 2, 4"), std::string::npos);
  EXPECT_EQ(
      refusal({.tensor_parallel = 4, .expert_parallel = 1, .data_parallel = 2}),
      "--dp 2: ranks with sequences of their own need whole experts, --ep as many as all ranks; give 1");
}

TEST(Plan, ProcessesShareTheRanksOfACpuAndItsMemoryIsThatOfTheirRanks) {
  const Plan one = planned({.tensor_parallel = 4}), two = planned({.tensor_parallel = 4, .processes = 2});
  EXPECT_EQ(two.memory.weights, one.memory.weights) << "of a rank";
  EXPECT_EQ(two.memory.capacity, 2 * one.memory.capacity) << "half as many ranks share the machine";
  EXPECT_EQ(planned({.processes = 4}).tensor_parallel, 4) << "--nnodes says how many ranks, too";
  EXPECT_EQ(planned({.expert_parallel = 4, .processes = 2}).tensor_parallel, 4);
  EXPECT_EQ(refusal({.tensor_parallel = 1, .processes = 2}),
            "--nnodes 2: processes share the ranks of --tp, which are 1 (--tp 2 would do); give 1");
  EXPECT_EQ(refusal({.data_parallel = 2, .processes = 4}),
            "--nnodes 4: processes share the ranks of --tp, which are 2 (--tp 4 would do); give 1");
}

TEST(Plan, AProcessHasItsOwnOfTheGpusThatAllSeeOrAllThatItSees) {
  const auto of = [](int ranks, int processes, int process) {
    EngineOptions options{.tensor_parallel = ranks, .processes = processes, .process = process};
    return resolve(options, machine("h200x4"), gpt_oss()).value();
  };
  const Plan first = of(4, 2, 0), second = of(4, 2, 1), last = of(4, 4, 3), isolated = of(8, 2, 1);
  EXPECT_EQ(first.first_gpu, 0);
  EXPECT_EQ(second.first_gpu, 2);
  EXPECT_EQ(second.choice("gpus").value, "2-3");
  EXPECT_EQ(second.choice("gpus").why, "those of process 1, which sees the GPUs of all");
  EXPECT_EQ(last.choice("gpus").value, "3");
  EXPECT_EQ(isolated.first_gpu, 0);
  EXPECT_EQ(isolated.choice("gpus").value, "0-3");
  EXPECT_EQ(isolated.choice("gpus").why, "the first that process 1 sees, as it does not see those of all");
  EXPECT_EQ(second.memory.total, of(4, 1, 0).memory.total) << "of a rank";
  for (const Choice& each : of(4, 1, 0).choices) EXPECT_NE(each.field, "gpus") << "one process has all";
  EXPECT_NE(refusal({.tensor_parallel = 8}, "h200x4").find("there are 4 GPUs"), std::string::npos);
  EXPECT_NE(refusal({.tensor_parallel = 8, .processes = 2}, "h200x1")
                .find("there is one GPU for each of 2 processes"),
            std::string::npos);
  EXPECT_EQ(refusal({.tensor_parallel = 4, .data_parallel = 2, .processes = 2}, "h200x4"),
            "--dp 2: GPUs with sequences of their own are one process's; leave --nnodes out; give 1");
}

TEST(Plan, GpusThatCannotReachEachOtherAreJoinedByNccl) {
  Machine apart = machine("h200x4");
  apart.gpu.link_bandwidth = 0;
  const Plan plan = resolve({.tensor_parallel = 4}, apart, gpt_oss()).value();
  EXPECT_EQ(plan.choice("all_reduce").value, "nccl");
  EXPECT_TRUE(plan.by_nccl);
  const Plan joined = resolve({.tensor_parallel = 4}, machine("h200x4"), gpt_oss()).value();
  EXPECT_EQ(joined.choice("all_reduce").value, "gather");
  EXPECT_FALSE(joined.by_nccl);
  const Plan asked =
      resolve({.all_reduce = "nccl", .tensor_parallel = 4}, machine("h200x4"), gpt_oss()).value();
  EXPECT_TRUE(asked.by_nccl);
  EXPECT_EQ(asked.choice("expert_copies").value, joined.choice("expert_copies").value);
  EXPECT_GT(asked.memory.workspace, joined.memory.workspace + 1'000'000'000) << "NCCL's own";
  EXPECT_LE(asked.memory.total, asked.memory.budget);
}

TEST(Plan, GroupsWithSequencesOfTheirOwnMayLieInSeveralProcesses) {
  for (const int owners : {2, 4}) {
    const Plan one = planned({.tensor_parallel = 4, .data_parallel = owners});
    for (const int processes : {2, 4}) {
      const Plan several = planned({.tensor_parallel = 4, .data_parallel = owners, .processes = processes});
      EXPECT_EQ(several.data_parallel, owners);
      EXPECT_EQ(several.memory.weights, one.memory.weights) << "of a rank";
      EXPECT_EQ(several.memory.capacity, processes * one.memory.capacity);
      EXPECT_TRUE(several.not_built.empty());
    }
  }
  const Plan own = planned({.dp_attention = true, .processes = 2});
  EXPECT_EQ(own.tensor_parallel, 2);
  EXPECT_EQ(own.data_parallel, 2);
}

// With its GPUs in a program with device code; without, which refuses GPUs that are there, declared ones.
Machine four_gpus() {
  Machine four = machine("h200x4");
  four.declared = !has_device_code();
  return four;
}
bool is_built(const Plan& plan) { return plan.not_built.empty() || !has_device_code(); }

TEST(Plan, DeclaredGpusArePlannedAsRealOnesRun) {
  if (!has_device_code()) GTEST_SKIP() << "no GPU runs anything in a program without device code";
  for (const EngineOptions& options :
       {EngineOptions{.tensor_parallel = 4}, EngineOptions{.tensor_parallel = 4, .data_parallel = 2},
        EngineOptions{.data_parallel = 4}}) {
    const Plan declared = resolve(options, machine("h200x4"), gpt_oss()).value(),
               real = resolve(options, four_gpus(), gpt_oss()).value();
    ASSERT_EQ(declared.choices.size(), real.choices.size());
    for (std::size_t i = 0; i < real.choices.size(); ++i)
      EXPECT_EQ(declared.choices[i].value, real.choices[i].value) << real.choices[i].field;
  }
}

TEST(Plan, GpusThatShareAModelHaveWholeExpertsAndGather) {
  Machine real = four_gpus();
  for (EngineOptions options : {EngineOptions{.tensor_parallel = 2}, EngineOptions{.expert_parallel = 2},
                                EngineOptions{.tensor_parallel = 2, .expert_parallel = 2}}) {
    options.device = Device::cuda;
    const Plan plan = resolve(options, real, gpt_oss()).value();
    EXPECT_EQ(plan.tensor_parallel, 2);
    EXPECT_EQ(plan.expert_parallel, 2);
    EXPECT_EQ(plan.experts.exchange, "none");
    EXPECT_EQ(plan.choice("all_reduce").value, "gather");
    EXPECT_EQ(rank_parts(plan).size(), 2u);
    EXPECT_TRUE(is_built(plan));
  }
  const auto refusal = [&](EngineOptions options) {
    options.device = Device::cuda;
    return resolve(options, real, gpt_oss()).status().message();
  };
  EXPECT_NE(refusal({.tensor_parallel = 2, .expert_parallel = 1}).find("have whole experts each"),
            std::string::npos);
  EXPECT_NE(refusal({.moe_a2a_backend = "deepep", .tensor_parallel = 2})
                .find("rows travel where GPUs have sequences of their own (--dp)"),
            std::string::npos);
  EXPECT_NE(refusal({.all_reduce = "fused", .tensor_parallel = 2}).find("gather them"), std::string::npos);
  real.gpu.peer_problem = "GPU 0 cannot reach GPU 1";
  EXPECT_NE(refusal({.tensor_parallel = 2}).find("GPU 0 cannot reach GPU 1"), std::string::npos);
}

TEST(Plan, GpusWithSequencesOfTheirOwnExchangeRowsAndDivideNoHeads) {
  const Machine real = four_gpus();
  ModelTraits uneven = gpt_oss();
  uneven.heads = 63;  // which no two ranks could share
  uneven.kv_heads = 7;
  for (const ModelTraits& model : {gpt_oss(), uneven}) {
    const Plan plan =
        resolve({.device = Device::cuda, .tensor_parallel = 4, .data_parallel = 4}, real, model).value();
    EXPECT_EQ(plan.experts.exchange, "low_latency");
    EXPECT_EQ(plan.choice("all_reduce").value, "none");
    EXPECT_TRUE(is_built(plan));
    const std::vector<RankPart> parts = rank_parts(plan);
    ASSERT_EQ(parts.size(), 4u);
    EXPECT_EQ(parts[2].heads.count(parts[2].place), model.heads);
    EXPECT_EQ(parts[2].experts.count(2), model.experts / 4);
  }
  const Plan groups =
      resolve({.device = Device::cuda, .tensor_parallel = 4, .data_parallel = 2}, real, gpt_oss()).value();
  EXPECT_EQ(groups.experts.exchange, "low_latency");
  EXPECT_EQ(groups.choice("all_reduce").value, "gather");
  EXPECT_EQ(rank_parts(groups)[3].heads.count(1), gpt_oss().heads / 2);
  EXPECT_NE(resolve({.device = Device::cuda, .tensor_parallel = 4, .data_parallel = 2}, real, uneven)
                .status()
                .message()
                .find("do not divide among"),
            std::string::npos);
  EXPECT_EQ(resolve({.device = Device::cuda, .expert_parallel = 2, .dp_attention = true}, real, uneven)
                .value()
                .data_parallel,
            2);
  const auto refusal = [&](EngineOptions options) {
    options.device = Device::cuda;
    return resolve(options, real, gpt_oss()).status().message();
  };
  EXPECT_NE(refusal({.moe_a2a_backend = "none", .tensor_parallel = 2, .data_parallel = 2})
                .find("an exchange alone takes them to their experts"),
            std::string::npos);
}

ModelTraits deepseek() {
  ModelTraits model = gpt_oss();
  model.architecture = "DeepseekV3ForCausalLM";
  model.attention = AttentionKind::latent;
  model.heads = 128;
  model.kv_heads = 1;
  model.query_dim = 192;
  model.value_dim = 128;
  model.latent = {.query_rank = 1536, .rank = 512, .rotated_dim = 64};
  model.kv_values = 576;
  return model;
}

TEST(Plan, SeveralGpusShareHeadsAndEachHasTheLatents) {
  const Machine real = four_gpus();
  ModelTraits model = deepseek();
  for (const int ranks : {1, 2, 4}) {
    const Plan plan = resolve({.device = Device::cuda, .tensor_parallel = ranks}, real, model).value();
    EXPECT_EQ(plan.attention, "sm90_mla");
    EXPECT_EQ(plan.tensor_parallel, ranks);
    EXPECT_TRUE(is_built(plan));
  }
  if (!has_device_code()) GTEST_SKIP() << "without kernels a declared GPU takes latents of any rank";
  model.latent.rank = 520;
  EXPECT_NE(
      resolve({.device = Device::cuda}, real, model).status().message().find("no kernel in this nibble"),
      std::string::npos);
}

// A model with three layers of four that keep states, and the fourth of attention.
ModelTraits with_states() {
  ModelTraits model = gpt_oss();
  model.linear_layers = 12;
  model.delta = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4};
  return model;
}

TEST(Plan, GpusDivideStatesAndDenseLayersOrAreToldWhatDoesNotDivide) {
  const auto refusal = [](int ranks, const ModelTraits& model) {
    return resolve({.device = Device::cuda, .tensor_parallel = ranks}, machine("h200x8"), model)
        .status()
        .message();
  };
  ModelTraits states = with_states(), dense = gpt_oss(), latent = deepseek();
  EXPECT_EQ(refusal(8, states), "");
  const RankPart part = rank_part(states, 4, 4, 1);
  EXPECT_EQ(part.state_heads.begin(1), 4);
  EXPECT_EQ(part.state_heads.count(1), 4);
  states.delta.key_heads = 12;
  states.delta.value_heads = 24;
  EXPECT_EQ(refusal(4, states), "");
  EXPECT_NE(refusal(8, states).find("12 heads of keys of layers with a state do not divide among 8 ranks"),
            std::string::npos)
      << refusal(8, states);
  dense.dense_width = 17408;
  EXPECT_EQ(rank_part(dense, 8, 8, 7).dense_width.count(7), 2176);
  dense.dense_width = 448;
  EXPECT_NE(refusal(8, dense).find("dense layers of 448 columns do not divide among 8 ranks"),
            std::string::npos)
      << refusal(8, dense);
  latent.heads = 20;
  EXPECT_NE(refusal(8, latent).find("20 heads of queries"), std::string::npos) << refusal(8, latent);
}

TEST(Plan, TheSameForAsManyRanksAsHoldTheModel) {
  ModelTraits large = gpt_oss();
  large.weights.push_back({.name = "more", .values = 0, .bytes = std::int64_t{200} << 30});
  const Plan plan = resolve({}, machine("h200x4"), large).value();
  EXPECT_EQ(plan.tensor_parallel, 2);
  EXPECT_EQ(plan.choice("tp").from, "rule:weights-fit");
  EXPECT_EQ(plan.experts.exchange, "none");
}

TEST(Plan, AnExplicitDefaultCountsAsGivenWhereWeightsMustFit) {
  // With 16 sequences of 512 tokens a rank needs less than with the 128 of 8,192 that a GPU takes otherwise.
  EngineOptions options;
  options.given.max_num_seqs = options.given.max_num_batched_tokens = true;
  Machine two = machine("h100x2");
  for (const std::int64_t most : {std::int64_t{0}, std::int64_t{1} << 50}) {
    two.gpu.memory_bytes = most;
    const Result<Plan> open = resolve({}, two, gpt_oss()), given = resolve(options, two, gpt_oss());
    EXPECT_EQ(open.ok(), given.ok());
  }
  int differ = 0;
  for (std::int64_t mebibytes = 10 << 10; mebibytes < 30 << 10; mebibytes += 256) {
    two.gpu.memory_bytes = mebibytes << 20;
    EngineOptions one_more = options;
    one_more.max_num_seqs += 1;
    const Result<Plan> given = resolve(options, two, gpt_oss()), more = resolve(one_more, two, gpt_oss()),
                       open = resolve({}, two, gpt_oss());
    const auto ranks = [](const Result<Plan>& plan) { return plan.ok() ? plan->tensor_parallel : 99; };
    EXPECT_LE(ranks(given), ranks(more)) << mebibytes << " MiB";
    differ += ranks(given) < ranks(open);
  }
  EXPECT_GT(differ, 0);
}

}  // namespace
}  // namespace nibble
