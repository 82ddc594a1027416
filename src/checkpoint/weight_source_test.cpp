// A tiny checkpoint, whole and then damaged in every way a user may meet.
#include "checkpoint/weight_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>

#include "base/allocation_meter.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/inspect.h"
#include "checkpoint/test_checkpoint.h"

namespace nibble {
namespace {

const std::string gate_up = "model.layers.1.mlp.experts.gate_up_proj";

// What loading does with a folder: configuration, files, then each tensor.
Status load(const std::filesystem::path& folder) {
  NIBBLE_ASSIGN(const ModelConfig config, read_model_config(folder));
  NIBBLE_ASSIGN(const WeightSource source, WeightSource::open(folder));
  ThreadPool one(1), three(3);
  const Status status = check_tensors(config, source, one);
  EXPECT_EQ(check_tensors(config, source, three).message(), status.message());
  return status;
}

std::uint64_t size_of(const std::filesystem::path& folder) {
  std::uint64_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) total += entry.file_size();
  return total;
}

// Loading is refused in one sentence, under a second, within twice the files' size; inspecting finds the
// same. The folder's own name is replaced by "MODEL".
std::string refused(const std::filesystem::path& folder) {
  const std::clock_t start = std::clock();
  const AllocationMeter meter;
  const Status status = load(folder);
  EXPECT_LE(meter.peak(), 2 * size_of(folder) + 65536);
  EXPECT_LT(std::clock() - start, NIBBLE_SLOWDOWN * CLOCKS_PER_SEC) << "of processor time";
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.exit_code(), 3);
  const Inspection report = inspect_model(folder);
  EXPECT_FALSE(report.problems.empty());
  EXPECT_EQ(report.problems.first().message(), status.message());
  std::string message = status.message();
  EXPECT_EQ(message.find('\n'), std::string::npos);
  for (std::size_t at; (at = message.find(folder.native())) != message.npos;) {
    message.replace(at, folder.native().size(), "MODEL");
  }
  return message;
}

std::string refused(const TestCheckpoint& checkpoint) {
  checkpoint.write();
  return refused(checkpoint.path());
}

TEST(WeightSource, GivesTensorsStraightFromTheMap) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  const WeightSource source = *WeightSource::open(checkpoint.path());
  EXPECT_EQ(source.tensors().size(), checkpoint.tensors.size());
  std::int64_t bytes = 0;
  const std::span<const std::byte> file = source.files()[0].bytes();
  for (const TestTensor& written : checkpoint.tensors) {
    const StoredTensor* stored = source.find(written.name);
    ASSERT_NE(stored, nullptr) << written.name;
    ASSERT_EQ(stored->tensor.bytes(), written.bytes.size());
    EXPECT_EQ(std::memcmp(stored->tensor.data, written.bytes.data(), written.bytes.size()), 0)
        << written.name;
    EXPECT_TRUE(stored->tensor.data >= file.data() && stored->tensor.data < file.data() + file.size());
    bytes += static_cast<std::int64_t>(written.bytes.size());
  }
  EXPECT_EQ(source.bytes(), bytes);
  EXPECT_TRUE(source.intact().ok());
  EXPECT_TRUE(load(checkpoint.path()).ok());
}

TEST(WeightSource, ShardsGiveTheSameTensors) {
  for (const FileAccess access : {FileAccess::map_or_read, FileAccess::read}) {
    TestCheckpoint checkpoint;
    checkpoint.write_shards(3);
    const WeightSource source = *WeightSource::open(checkpoint.path(), access);
    EXPECT_EQ(source.files().size(), 3u);
    EXPECT_EQ(source.files()[0].is_mapped(), access == FileAccess::map_or_read);
    for (const TestTensor& written : checkpoint.tensors) {
      const StoredTensor* stored = source.find(written.name);
      ASSERT_NE(stored, nullptr) << written.name;
      EXPECT_EQ(std::memcmp(stored->tensor.data, written.bytes.data(), written.bytes.size()), 0);
      const std::size_t begin = written.bytes.size() / 3;
      const std::span<const std::byte> part(stored->tensor.data + begin, written.bytes.size() - begin);
      std::vector<std::byte> read(part.size());
      ASSERT_TRUE(source.read(part, read.data()).ok());
      EXPECT_EQ(std::memcmp(read.data(), part.data(), part.size()), 0) << written.name;
    }
    EXPECT_TRUE(load(checkpoint.path()).ok());
  }
}

TEST(WeightSource, RequiredSaysWhatIsWrongWithATensor) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  const WeightSource source = *WeightSource::open(checkpoint.path());
  EXPECT_TRUE(source.required("model.norm.weight", DType::bf16, {64}).ok());
  EXPECT_EQ(source.required("model.norm", DType::bf16, {64}).status().message(),
            "tensor \"model.norm\" is missing");
  EXPECT_EQ(source.required("model.norm.weight", DType::f32, {64}).status().message(),
            "tensor \"model.norm.weight\" of model.safetensors is bf16, not f32");
  EXPECT_EQ(source.required("model.norm.weight", DType::bf16, {32}).status().message(),
            "tensor \"model.norm.weight\" of model.safetensors has the shape [64]; the configuration asks "
            "for [32]");
}

// The format does not promise alignment; elements must be readable as what they are all the same.
TEST(WeightSource, ATensorAtAnOddOffsetIsRealigned) {
  const TestFolder folder;
  folder.write("model.safetensors",
               safetensors_file(
                   {{"bytes", "U8", {3}, "abc"}, {"values", "F32", {1}, std::string("\0\0\x80\x3f", 4)}}));
  const WeightSource source = *WeightSource::open(folder.path());
  const ConstTensor values = *source.required("values", DType::f32, {1});
  EXPECT_EQ(values.as<float>()[0], 1.0f);
  float read = 0;
  ASSERT_TRUE(source.read({values.data, values.bytes()}, reinterpret_cast<std::byte*>(&read)).ok());
  EXPECT_EQ(read, 1.0f);
}

TEST(WeightSource, AFileThatShrinksUnderItIsAnErrorAtTheNextStep) {
  TestCheckpoint checkpoint;
  checkpoint.write_shards(2);
  const WeightSource source = *WeightSource::open(checkpoint.path());
  std::filesystem::resize_file(checkpoint.path() / shard_name(2, 2), 5000);
  std::uint64_t sum = 0;
  for (const StoredTensor& stored : source.tensors()) {
    for (std::size_t i = 0; i < stored.tensor.bytes(); ++i)
      sum += std::to_integer<std::uint64_t>(stored.tensor.data[i]);
  }
  EXPECT_GT(sum, 0u);
  EXPECT_EQ(source.intact().code(), StatusCode::io_error);
  int lost = 0;
  for (const StoredTensor& stored : source.tensors()) {
    std::vector<std::byte> read(stored.tensor.bytes());
    if (!source.read({stored.tensor.data, read.size()}, read.data()).ok()) ++lost;
  }
  EXPECT_GT(lost, 0);
}

TEST(BrokenModel, TruncatedFile) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  const std::filesystem::path file = checkpoint.path() / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  EXPECT_TRUE(refused(checkpoint.path()).ends_with(" bytes of data; the file is truncated or damaged"));
  std::filesystem::resize_file(file, 0);
  EXPECT_EQ(refused(checkpoint.path()),
            "\"MODEL/model.safetensors\": a safetensors file begins with 8 bytes of header length, but the "
            "file has 0 "
            "bytes");
}

TEST(BrokenModel, HeaderLongerThanTheFile) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  checkpoint.folder.write("model.safetensors", std::string("\x10\x27\0\0\0\0\0\0{}", 10));
  EXPECT_EQ(
      refused(checkpoint.path()),
      "\"MODEL/model.safetensors\": the header claims 10000 bytes, but only 2 follow; the file is truncated");
}

TEST(BrokenModel, HeaderOf200MB) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  const std::uint64_t length = 200'000'000;
  std::string start(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) start[i] = static_cast<char>(length >> (8 * i) & 0xffu);
  checkpoint.folder.write("model.safetensors", start + "{");
  std::filesystem::resize_file(checkpoint.path() / "model.safetensors", length + 8);
  EXPECT_EQ(refused(checkpoint.path()),
            "\"MODEL/model.safetensors\": the header claims 200000000 bytes; at most 100000000 are allowed");
}

TEST(BrokenModel, OverlappingTensors) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  checkpoint.folder.write("model.safetensors",
                          safetensors_file(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                           R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                                           "123456"));
  EXPECT_EQ(refused(checkpoint.path()), "\"MODEL/model.safetensors\": tensors \"a\" and \"b\" overlap");
}

TEST(BrokenModel, OffsetPastTheEnd) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  checkpoint.folder.write(
      "model.safetensors",
      safetensors_file(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", "123456"));
  EXPECT_EQ(refused(checkpoint.path()),
            "\"MODEL/model.safetensors\": tensor \"a\" has the byte range [4, 8), past the end of the file's "
            "6 bytes of "
            "data; the file is truncated or damaged");
}

TEST(BrokenModel, ShardThatTheIndexNamesIsNotThere) {
  TestCheckpoint checkpoint;
  checkpoint.write_shards(3);
  std::filesystem::remove(checkpoint.path() / shard_name(2, 3));
  EXPECT_EQ(refused(checkpoint.path()),
            "shard \"model-00002-of-00003.safetensors\", which model.safetensors.index.json names, is not in "
            "\"MODEL\"; the download is incomplete");
}

TEST(BrokenModel, ShardMissingFromTheIndex) {
  TestCheckpoint checkpoint;
  checkpoint.write_shards(2);
  checkpoint.folder.write("model-00003-of-00003.safetensors", safetensors_file("{}"));
  EXPECT_EQ(refused(checkpoint.path()),
            "shard \"model-00003-of-00003.safetensors\" lies in the folder, but model.safetensors.index.json "
            "names no "
            "tensor in it");
}

TEST(BrokenModel, TensorsThatAreNotWhereTheIndexSays) {
  TestCheckpoint checkpoint;
  checkpoint.write_shards(2);
  checkpoint.folder.write("model.safetensors.index.json",
                          R"({"weight_map":{"a":"model-00001-of-00002.safetensors",)"
                          R"("lm_head.weight":"model-00001-of-00002.safetensors",)"
                          R"("model.norm.weight":"model-00002-of-00002.safetensors"}})");
  const Inspection report = inspect_model(checkpoint.path());
  std::vector<std::string> messages;
  for (const Status& problem : report.problems.kept()) messages.push_back(problem.message());
  const auto has = [&](const char* message) {
    return std::find(messages.begin(), messages.end(), message) != messages.end();
  };
  EXPECT_TRUE(has(
      "tensor \"a\" is not in \"model-00001-of-00002.safetensors\", where model.safetensors.index.json says "
      "it is"));
  EXPECT_TRUE(
      has("tensor \"lm_head.weight\" lies in \"model-00002-of-00002.safetensors\", but "
          "model.safetensors.index.json says \"model-00001-of-00002.safetensors\""));
  EXPECT_TRUE(
      has("tensor \"model.embed_tokens.weight\" lies in \"model-00001-of-00002.safetensors\", but "
          "model.safetensors.index.json does not name it"));
}

TEST(BrokenModel, TensorInTwoShards) {
  TestCheckpoint checkpoint;
  checkpoint.write_shards(2);
  std::filesystem::copy_file(checkpoint.path() / shard_name(1, 2), checkpoint.path() / shard_name(2, 2),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(refused(checkpoint.path()),
            "tensor \"model.embed_tokens.weight\" lies in \"model-00001-of-00002.safetensors\" and again in "
            "\"model-00002-of-00002.safetensors\"");
}

TEST(BrokenModel, NoWeightsAtAll) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  std::filesystem::remove(checkpoint.path() / "model.safetensors");
  EXPECT_EQ(refused(checkpoint.path()),
            "there is neither model.safetensors nor model.safetensors.index.json in \"MODEL\"; weights must "
            "be in the "
            "safetensors format");
}

TEST(BrokenModel, TensorMissing) {
  TestCheckpoint checkpoint;
  checkpoint.remove_tensor("model.layers.1.self_attn.sinks");
  EXPECT_EQ(refused(checkpoint), "tensor \"model.layers.1.self_attn.sinks\" is missing");
}

TEST(BrokenModel, AFileWithoutTensors) {
  TestCheckpoint checkpoint;
  checkpoint.tensors.clear();
  EXPECT_EQ(refused(checkpoint), "tensor \"model.embed_tokens.weight\" is missing");
}

TEST(BrokenModel, TensorExtra) {
  TestCheckpoint checkpoint;
  checkpoint.tensors.push_back({"model.layers.2.self_attn.sinks", "BF16", {4}, std::string(8, '\0')});
  EXPECT_EQ(refused(checkpoint),
            "tensor \"model.layers.2.self_attn.sinks\" is extra: GptOssForCausalLM with this configuration "
            "has no such "
            "tensor");
}

TEST(BrokenModel, WrongShape) {
  TestCheckpoint checkpoint;
  checkpoint.reshape("model.layers.0.self_attn.k_proj.weight", {32, 32});
  EXPECT_EQ(refused(checkpoint),
            "tensor \"model.layers.0.self_attn.k_proj.weight\" of model.safetensors has the shape [32, 32]; "
            "the configuration "
            "asks for [32, "
            "64]");
}

TEST(BrokenModel, WrongDtype) {
  TestCheckpoint checkpoint;
  checkpoint.tensor("model.norm.weight").dtype = "F32";
  checkpoint.reshape("model.norm.weight", {64});
  EXPECT_EQ(refused(checkpoint), "tensor \"model.norm.weight\" of model.safetensors is f32, not bf16");
}

TEST(BrokenModel, ExpertCountDifferentFromTheConfig) {
  TestCheckpoint checkpoint;
  checkpoint.reshape(gate_up + "_blocks", {6, 64, 2, 16});
  EXPECT_EQ(refused(checkpoint),
            "tensor \"model.layers.1.mlp.experts.gate_up_proj_blocks\" of model.safetensors holds 6 experts, "
            "but num_local_experts of "
            "config.json is 4");
}

TEST(BrokenModel, ScaleByte255) {
  TestCheckpoint checkpoint;
  std::string& scales = checkpoint.tensor(gate_up + "_scales").bytes;
  scales[(3 * 64 + 17) * 2 + 1] = '\xff';
  scales.back() = '\xff';
  EXPECT_EQ(refused(checkpoint),
            "tensor \"model.layers.1.mlp.experts.gate_up_proj_scales\" of model.safetensors holds 2 scale "
            "bytes of 255, which is "
            "NaN, the "
            "first at [3, 17, 1]");
}

TEST(BrokenModel, ZeroExperts) {
  TestCheckpoint checkpoint;
  checkpoint.set("num_local_experts", "0");
  EXPECT_EQ(refused(checkpoint),
            "\"MODEL\": config.json: num_local_experts must be a whole number from 1 to 16384, not 0");
}

TEST(BrokenModel, TopKAboveTheNumberOfExperts) {
  TestCheckpoint checkpoint;
  checkpoint.set("num_experts_per_tok", "5");
  checkpoint.set("experts_per_token", "5");
  EXPECT_EQ(refused(checkpoint),
            "\"MODEL\": config.json: num_experts_per_tok (5) is above num_local_experts (4): a token cannot "
            "visit more "
            "experts than there are");
}

TEST(BrokenModel, JsonNestedTenThousandDeep) {
  TestCheckpoint checkpoint;
  const std::string deep = std::string(10'000, '[') + std::string(10'000, ']');
  checkpoint.write();
  checkpoint.folder.write("config.json", deep);
  EXPECT_TRUE(refused(checkpoint.path()).starts_with("\"MODEL\": config.json: invalid JSON at byte "));
  checkpoint.write();
  checkpoint.folder.write("generation_config.json", deep);
  EXPECT_TRUE(
      refused(checkpoint.path()).starts_with("\"MODEL\": generation_config.json: invalid JSON at byte "));
  checkpoint.write_shards(2);
  std::filesystem::remove(checkpoint.path() / "model.safetensors");
  checkpoint.folder.write("model.safetensors.index.json", deep);
  EXPECT_TRUE(refused(checkpoint.path())
                  .starts_with("\"MODEL/model.safetensors.index.json\": invalid JSON at byte "));
}

// A kilobyte of configuration cannot make us build a list of a million missing tensors.
TEST(BrokenModel, AConfigurationOfAThousandLayersWithoutThem) {
  TestCheckpoint checkpoint;
  checkpoint.set("num_hidden_layers", "1024");
  checkpoint.remove("layer_types");
  EXPECT_EQ(refused(checkpoint), "tensor \"model.layers.2.input_layernorm.weight\" is missing");
  const Inspection report = inspect_model(checkpoint.path());
  EXPECT_EQ(report.problems.count(), 1022 * 19);
  EXPECT_EQ(report.problems.kept().size(), Problems::max_kept);
}

TEST(BrokenModel, EveryProblemIsListed) {
  TestCheckpoint checkpoint;
  checkpoint.remove_tensor("model.norm.weight");
  checkpoint.reshape("lm_head.weight", {95, 64});
  checkpoint.tensor(gate_up + "_scales").bytes[0] = '\xff';
  checkpoint.tensors.push_back({"extra", "BF16", {1}, std::string(2, '\0')});
  checkpoint.write();
  EXPECT_EQ(inspect_model(checkpoint.path()).problems.count(), 4);
}

TEST(Inspect, CountsTensorsFormatsAndBytes) {
  TestCheckpoint checkpoint;
  checkpoint.write();
  const Inspection report = inspect_model(checkpoint.path());
  EXPECT_TRUE(report.problems.empty()) << report.problems.first().message();
  EXPECT_EQ(report.tensors.size(), checkpoint.tensors.size());
  ASSERT_EQ(report.formats.size(), 2u);
  const FormatTotal& bf16 = report.formats[0];
  const FormatTotal& mxfp4 = report.formats[1];
  EXPECT_EQ(bf16.format, "bf16");
  EXPECT_EQ(bf16.parameters * 2, bf16.bytes);
  EXPECT_EQ(mxfp4.format, "mxfp4");
  EXPECT_EQ(mxfp4.tensors, 2 * 4);
  EXPECT_EQ(mxfp4.parameters, 2 * 4 * (64 * 64 + 64 * 32));
  EXPECT_EQ(mxfp4.bytes, mxfp4.parameters / 32 * 17);
  EXPECT_EQ(report.total.bytes, bf16.bytes + mxfp4.bytes);
  // All of it but the embedding, half of the experts, and one row of the embedding.
  const std::int64_t expert_bias_bytes = 2048, embedding_bytes = 12288, row_bytes = 128;
  EXPECT_EQ(report.active_bytes,
            report.total.bytes - embedding_bytes + row_bytes - (mxfp4.bytes + expert_bias_bytes) / 2);
  const InspectedTensor& codes = report.tensors[static_cast<std::size_t>(
      std::find_if(report.tensors.begin(), report.tensors.end(),
                   [](const auto& t) { return t.name == gate_up + "_blocks"; }) -
      report.tensors.begin())];
  EXPECT_EQ(codes.format, "mxfp4 codes");
  EXPECT_EQ(codes.file, "model.safetensors");
}

TEST(Inspect, AnEmptyFolderHasTwoProblems) {
  const TestFolder folder;
  const Inspection report = inspect_model(folder.path());
  EXPECT_EQ(report.problems.count(), 2);
  EXPECT_FALSE(report.active_bytes.has_value());
  EXPECT_EQ(report.problems.first().code(), StatusCode::not_found);
}

}  // namespace
}  // namespace nibble
