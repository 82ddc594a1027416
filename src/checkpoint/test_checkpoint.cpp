#include "checkpoint/test_checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/check.h"

namespace nibble {
namespace {

std::int64_t element_bytes(const std::string& dtype) {
  if (dtype == "U8") return 1;
  if (dtype == "BF16") return 2;
  NIBBLE_CHECK(dtype == "F32");
  return 4;
}

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::string json_list(const std::vector<std::int64_t>& values) {
  std::string text = "[";
  for (const std::int64_t value : values) text += (text.size() > 1 ? "," : "") + std::to_string(value);
  return text + "]";
}

// bf16 values between -1 and 1 for weights, codes for MXFP4 blocks, 2^-7 .. 2^0 for scales.
std::string fill(const std::string& name, const std::string& dtype, std::int64_t count) {
  std::string bytes;
  std::uint32_t state = 2166136261u;
  for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 16777619u;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const std::uint32_t random = state >> 16;
    if (dtype == "U8") {
      bytes += static_cast<char>(name.ends_with("_scales") ? 120 + random % 8 : random & 0xffu);
    } else {
      const std::uint32_t bf16 = (random & 0x8000u) | (0x3e00u + random % 0x180u);
      bytes += static_cast<char>(bf16 & 0xffu);
      bytes += static_cast<char>(bf16 >> 8);
    }
  }
  return bytes;
}

}  // namespace

TestFolder::TestFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "nibble_test_XXXXXX").native();
  NIBBLE_CHECK(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TestFolder::write(const std::string& name, const std::string& bytes) const {
  std::filesystem::create_directories((path_ / name).parent_path());
  std::ofstream file(path_ / name, std::ios::binary);
  file << bytes;
  NIBBLE_CHECK(file.good());
}

std::string safetensors_file(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xffu);
  return file + header + data;
}

std::string safetensors_file(const std::vector<TestTensor>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::string data;
  for (const TestTensor& tensor : tensors) {
    const auto begin = static_cast<std::int64_t>(data.size());
    data += tensor.bytes;
    header += ",\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":" + json_list(tensor.shape) +
              ",\"data_offsets\":" + json_list({begin, static_cast<std::int64_t>(data.size())}) + "}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return safetensors_file(header, data);
}

std::string shard_name(int shard, int shards) {
  char name[48];
  std::snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard, shards);
  return name;
}

TestCheckpoint::TestCheckpoint() {
  fields_ = {{"architectures", "[\"GptOssForCausalLM\"]"},
             {"model_type", "\"gpt_oss\""},
             {"attention_bias", "true"},
             {"eos_token_id", "90"},
             {"experts_per_token", "2"},
             {"head_dim", "16"},
             {"hidden_act", "\"silu\""},
             {"hidden_size", "64"},
             {"intermediate_size", "32"},
             {"layer_types", "[\"sliding_attention\",\"full_attention\"]"},
             {"max_position_embeddings", "4096"},
             {"num_attention_heads", "4"},
             {"num_experts_per_tok", "2"},
             {"num_hidden_layers", "2"},
             {"num_key_value_heads", "2"},
             {"num_local_experts", "4"},
             {"quantization_config", "{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"lm_head\"]}"},
             {"rms_norm_eps", "1e-05"},
             {"rope_scaling",
              "{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"
              "\"original_max_position_embeddings\":128,\"truncate\":false}"},
             {"rope_theta", "150000"},
             {"sliding_window", "8"},
             {"swiglu_limit", "7.0"},
             {"tie_word_embeddings", "false"},
             {"torch_dtype", "\"bfloat16\""},
             {"vocab_size", "96"}};
  add("model.embed_tokens.weight", "BF16", {96, 64});
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string prefix = layer;
    add(prefix + "input_layernorm.weight", "BF16", {64});
    for (const auto& [name, rows] : {std::pair<std::string, std::int64_t>{"q", 64}, {"k", 32}, {"v", 32}}) {
      add(prefix + "self_attn." + name + "_proj.weight", "BF16", {rows, 64});
      add(prefix + "self_attn." + name + "_proj.bias", "BF16", {rows});
    }
    add(prefix + "self_attn.o_proj.weight", "BF16", {64, 64});
    add(prefix + "self_attn.o_proj.bias", "BF16", {64});
    add(prefix + "self_attn.sinks", "BF16", {4});
    add(prefix + "post_attention_layernorm.weight", "BF16", {64});
    add(prefix + "mlp.router.weight", "BF16", {4, 64});
    add(prefix + "mlp.router.bias", "BF16", {4});
    add(prefix + "mlp.experts.gate_up_proj_blocks", "U8", {4, 64, 2, 16});
    add(prefix + "mlp.experts.gate_up_proj_scales", "U8", {4, 64, 2});
    add(prefix + "mlp.experts.gate_up_proj_bias", "BF16", {4, 64});
    add(prefix + "mlp.experts.down_proj_blocks", "U8", {4, 64, 1, 16});
    add(prefix + "mlp.experts.down_proj_scales", "U8", {4, 64, 1});
    add(prefix + "mlp.experts.down_proj_bias", "BF16", {4, 64});
  }
  add("model.norm.weight", "BF16", {64});
  add("lm_head.weight", "BF16", {96, 64});
}

void TestCheckpoint::add(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape) {
  std::string bytes = fill(name, dtype, count_of(shape));
  tensors.push_back({name, dtype, std::move(shape), std::move(bytes)});
}

void TestCheckpoint::set(const std::string& field, const std::string& json) {
  remove(field);
  fields_.emplace_back(field, json);
}

void TestCheckpoint::remove(const std::string& field) {
  fields_.erase(
      std::remove_if(fields_.begin(), fields_.end(), [&](const auto& pair) { return pair.first == field; }),
      fields_.end());
}

std::string TestCheckpoint::config() const {
  std::string text = "{";
  for (const auto& [field, json] : fields_)
    text += (text.size() > 1 ? ",\n\"" : "\n\"") + field + "\": " + json;
  return text + "\n}\n";
}

TestTensor& TestCheckpoint::tensor(const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const TestTensor& each) { return each.name == name; });
  NIBBLE_CHECK(found != tensors.end(), name);
  return *found;
}

void TestCheckpoint::remove_tensor(const std::string& name) {
  tensors.erase(tensors.begin() + (&tensor(name) - tensors.data()));
}

void TestCheckpoint::reshape(const std::string& name, std::vector<std::int64_t> shape) {
  TestTensor& changed = tensor(name);
  changed.bytes.assign(static_cast<std::size_t>(count_of(shape) * element_bytes(changed.dtype)), '\0');
  changed.shape = std::move(shape);
}

void TestCheckpoint::write() const {
  folder.write("config.json", config());
  folder.write("generation_config.json", "{\"eos_token_id\": [90, 91]}");
  folder.write("model.safetensors", safetensors_file(tensors));
}

void TestCheckpoint::write_shards(int shards) const {
  folder.write("config.json", config());
  folder.write("generation_config.json", "{\"eos_token_id\": [90, 91]}");
  std::string index = "{\"metadata\":{\"total_size\":0},\"weight_map\":{";
  const std::size_t each =
      (tensors.size() + static_cast<std::size_t>(shards) - 1) / static_cast<std::size_t>(shards);
  for (int shard = 0; shard < shards; ++shard) {
    const std::size_t begin = std::min(each * static_cast<std::size_t>(shard), tensors.size());
    const std::size_t end = std::min(begin + each, tensors.size());
    const std::string name = shard_name(shard + 1, shards);
    const auto first = tensors.begin();
    const std::vector<TestTensor> part(first + static_cast<std::ptrdiff_t>(begin),
                                       first + static_cast<std::ptrdiff_t>(end));
    folder.write(name, safetensors_file(part));
    for (std::size_t i = begin; i < end; ++i) {
      index += (index.ends_with("{") ? "\"" : ",\"") + tensors[i].name + "\":\"" + name + "\"";
    }
  }
  folder.write("model.safetensors.index.json", index + "}}");
}

}  // namespace nibble
