#include "models/model_traits.h"

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/weight_source.h"
#include "plan/bound.h"
#include "plan/memory.h"

namespace nibble {
namespace {

const std::filesystem::path root = NIBBLE_SOURCE_DIR;

ModelTraits traits(const std::string& name) {
  Result<ModelTraits> read = read_model_traits(root / "tests/data/models" / name, name);
  EXPECT_TRUE(read.ok()) << read.status().message();
  return std::move(read).value();
}

TEST(ModelTraits, TheirWeightsAreAFilesBytes) {
  for (const char* folder : {"models/demo", "tests/data/parity/example"}) {
    const Result<ModelTraits> read = read_model_traits(root / folder, folder);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->weight_bytes(), WeightSource::open(root / folder).value().bytes()) << folder;
    EXPECT_TRUE(read->runs);
  }
}

// "total_size" of the models' own index files.
TEST(ModelTraits, TheirWeightsAreWhatIsPublished) {
  EXPECT_EQ(traits("gpt-oss-20b").weight_bytes(), 13761264768);
  EXPECT_EQ(traits("Qwen3-30B-A3B").weight_bytes(), 61064245248);
  EXPECT_EQ(traits("Qwen3-235B-A22B").weight_bytes(), 470187269120);
}

TEST(ModelTraits, KnowWhatATokenKeeps) {
  EXPECT_EQ(traits("gpt-oss-120b").kv_values, 2 * 8 * 64);
  EXPECT_EQ(traits("gpt-oss-120b").window_layers, 18);
  const ModelTraits deepseek = traits("DeepSeek-V3");
  EXPECT_EQ(deepseek.kv_values, 576) << "one latent vector and the rotated key";
  EXPECT_EQ(deepseek.expert_format, StoredFormat::fp8_block);
  EXPECT_EQ(deepseek.expert_layers, 58);
  EXPECT_EQ(deepseek.attention, AttentionKind::latent);
  EXPECT_EQ(deepseek.query_dim, 192);
  EXPECT_EQ(deepseek.value_dim, 128);
  EXPECT_TRUE(deepseek.runs);
  const ModelTraits next = traits("Qwen3-Next-80B-A3B");
  EXPECT_EQ(next.full_layers, 12);
  EXPECT_EQ(next.linear_layers, 36);
  EXPECT_EQ(next.kv_values, 2 * 2 * 256);
  EXPECT_EQ(state_bytes_of_rank(next, 1, 0),
            36 * (32 * 128 * 128 * 4 + 64 * (2048 + 4096 + 2 * 32) * 4 + 8192 * 4 * 4))
      << "the state, the open chunk's rows, and the convolution's inputs";
  EXPECT_EQ(state_bytes_of_rank(next, 1, 8) - state_bytes_of_rank(next, 1, 0), 36 * 8192 * 12 * 4)
      << "sixteen of those: four for a row and eight behind it";
  EXPECT_EQ(next.snapshot_bytes, 36 * (32 * 128 * 128 * 4 + 8192 * 4 * 4)) << "no chunk is open at a border";
  EXPECT_EQ(next.weight_bytes(), 159348782592);
  EXPECT_TRUE(next.runs);
}

TEST(ModelTraits, SayWhichDenseWeightsCanBeConverted) {
  const auto values_of = [](const ModelTraits& model, std::string_view group) {
    for (const WeightGroup& each : model.weights) {
      if (each.name == group) return each.convertible_values();
    }
    return std::int64_t{-1};
  };
  const ModelTraits next = traits("Qwen3-Next-80B-A3B");
  EXPECT_EQ(values_of(next, "attention"), 12 * 2048 * (2 * 4096 + 2 * 512 + 4096));
  EXPECT_EQ(values_of(next, "linear attention"), 36 * 2048 * (2 * 2048 + 2 * 4096 + 4096));
  EXPECT_EQ(values_of(next, "shared expert"), 48 * 2048 * 3 * 512);
  EXPECT_EQ(values_of(next, "lm_head"), 2048 * 151936);
  for (const char* group : {"router", "experts", "norms", "embedding"}) EXPECT_EQ(values_of(next, group), 0);
  std::vector<std::string_view> stored;
  for (const StoredMatrices& each : next.as_stored) stored.push_back(each.name);
  EXPECT_EQ(stored, (std::vector<std::string_view>{"embedding", "b, a and convolution of linear attention",
                                                   "router", "share of the shared expert"}));
  const ModelTraits latent = traits("GLM-4.7-Flash");
  EXPECT_EQ(values_of(latent, "attention"),
            47 * (2048 * 768 + 768 * 20 * 256 + 2048 * (512 + 64) + 20 * 256 * 2048));
  EXPECT_FALSE(traits("DeepSeek-V3").as_stored.empty());
}

TEST(ModelTraits, RefuseAnUnknownArchitectureByName) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "nibble_traits_unknown";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"architectures":["MambaForCausalLM"]})";
  const Status refused = read_model_traits(folder, "m").status();
  std::filesystem::remove_all(folder);
  EXPECT_EQ(refused.exit_code(), 3);
  EXPECT_NE(refused.message().find("MambaForCausalLM"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("DeepseekV3ForCausalLM"), std::string::npos);
}

Plan plan_on_one_h200(const std::string& model, int tp = 1, double bandwidth = 4.3e12) {
  Machine machine = declared_machine("h200x" + std::to_string(tp)).value();
  machine.gpu.read_bandwidth = bandwidth;
  machine.gpu.link_bandwidth = 320e9;
  Result<Plan> plan = resolve({.tensor_parallel = tp}, machine, traits(model));
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(plan).value();
}

double tokens_per_s(const Plan& plan, double batch, double context) {
  return batch / least_seconds(plan, decode_cost(plan, batch, context));
}

// Worked by hand for 4.3 TB/s, 790 TFLOP/s and bfloat16 attention, to four digits.
TEST(Bound, DecodeIsWhatTheBytesAllow) {
  struct Row {
    int batch;
    double short_context, long_context;  // after 1,024 and 8,192 positions
  };
  const auto check = [](const char* model, std::initializer_list<Row> rows) {
    const Plan plan = plan_on_one_h200(model);
    for (const Row& row : rows) {
      EXPECT_NEAR(tokens_per_s(plan, row.batch, 1024), row.short_context, row.short_context * 0.004)
          << model << " " << row.batch;
      EXPECT_NEAR(tokens_per_s(plan, row.batch, 8192), row.long_context, row.long_context * 0.004)
          << model << " " << row.batch;
    }
  };
  check("gpt-oss-120b", {{1, 852, 810},
                         {4, 1632, 1483},
                         {8, 2010, 1789},
                         {32, 3173, 2655},
                         {64, 4679, 3634},
                         {128, 8038, 5380},
                         {512, 25650, 9956}});
  check("gpt-oss-20b", {{1, 1151, 1099}, {8, 3685, 3201}, {32, 10294, 7241}, {128, 33920, 14195}});
}

TEST(Bound, OneTokenAtTheMeasuredRateOfAnH200) {
  // 4.97 GB and 3.70 GB without keys, values and routers.
  EXPECT_NEAR(plan_on_one_h200("gpt-oss-120b", 1, 4.65e12).bound.bytes_per_token, 4.97e9 + 26.5e6, 0.02e9);
  EXPECT_NEAR(tokens_per_s(plan_on_one_h200("gpt-oss-120b", 1, 4.65e12), 1, 0), 935, 8);
  EXPECT_NEAR(tokens_per_s(plan_on_one_h200("gpt-oss-20b", 1, 4.65e12), 1, 0), 1257, 8);
}

TEST(Bound, RanksShareBytesAndPayForSums) {
  const auto near = [](double got, double expected) { EXPECT_NEAR(got, expected, expected * 0.005); };
  near(tokens_per_s(plan_on_one_h200("gpt-oss-120b", 2), 1, 1024), 1239);
  near(tokens_per_s(plan_on_one_h200("gpt-oss-120b", 4), 1, 1024), 1738);
  near(tokens_per_s(plan_on_one_h200("gpt-oss-20b", 2), 1, 1024), 1725);
  near(tokens_per_s(plan_on_one_h200("gpt-oss-20b", 4), 1, 1024), 2482);
  near(tokens_per_s(plan_on_one_h200("gpt-oss-120b", 4), 8, 1024) / 8, 767);
  near(tokens_per_s(plan_on_one_h200("gpt-oss-120b", 4), 32, 1024) / 32, 342);
}

TEST(Bound, AFirstTokenIsWhatProductsOrBytesAllow) {
  const Plan large = plan_on_one_h200("gpt-oss-120b"), small = plan_on_one_h200("gpt-oss-20b");
  const auto products = [](const Plan& plan, double tokens) {
    return prefill_cost(plan, tokens).flops / 790e12;
  };
  EXPECT_NEAR(large.bound.flops_per_token, 9.10e9, 0.02e9);
  EXPECT_NEAR(products(large, 1024), 0.012, 0.0005);
  EXPECT_NEAR(products(large, 8192), 0.107, 0.001);
  EXPECT_NEAR(products(large, 32768), 0.580, 0.005);
  EXPECT_NEAR(products(small, 8192), 0.071, 0.001);
  EXPECT_NEAR(products(small, 32768), 0.386, 0.004);
  // A short prompt reads nearly all experts once.
  EXPECT_NEAR(prefill_cost(large, 1024).bytes / 4.3e12, 0.0146, 0.0004);
  EXPECT_NEAR(large.bound.first_token_s[1], 0.0149, 0.0004);
}

TEST(Bound, ACpuReadsItsMemory) {
  Machine machine = declared_machine("cpu").value();
  machine.cpu.read_bandwidth = 20e9;
  const Plan plan = resolve({}, machine, traits("gpt-oss-20b")).value();
  EXPECT_NEAR(tokens_per_s(plan, 1, 0), 5.4, 0.05);
  const Plan q8 = resolve({.quantization = Quantization::q8}, machine, traits("gpt-oss-20b")).value();
  EXPECT_NEAR(q8.bound.bytes_per_token, 2.53e9, 0.02e9);
  EXPECT_LT(q8.memory.weights, plan.memory.weights);
}

}  // namespace
}  // namespace nibble
