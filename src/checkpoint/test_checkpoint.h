// For tests: a tiny, valid gpt-oss checkpoint in a folder of its own, which a test then damages. Written
// without the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace nibble {

struct TestTensor {
  std::string name;
  std::string dtype;  // as safetensors spells it
  std::vector<std::int64_t> shape;
  std::string bytes;
};

// A folder under the system's temporary one; removed with all in it.
class TestFolder {
 public:
  TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder();

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& bytes) const;

 private:
  std::filesystem::path path_;
};

// A safetensors file from its parts: the header's length, the header, the data.
std::string safetensors_file(const std::string& header, const std::string& data = {});
std::string safetensors_file(const std::vector<TestTensor>& tensors);

// hidden 64, 2 layers, 4 query and 2 key heads of 16, 4 experts top-2 of width 32, vocabulary 96, window 8.
class TestCheckpoint {
 public:
  TestCheckpoint();

  // Fields of config.json as JSON text.
  void set(const std::string& field, const std::string& json);
  void remove(const std::string& field);
  std::string config() const;

  std::vector<TestTensor> tensors;
  TestTensor& tensor(const std::string& name);
  void remove_tensor(const std::string& name);
  // Replaces a tensor's shape and gives it as many zero bytes as that takes.
  void reshape(const std::string& name, std::vector<std::int64_t> shape);

  // Writes config.json, generation_config.json and model.safetensors.
  void write() const;
  // Writes the same tensors as shards with an index.
  void write_shards(int shards) const;
  const std::filesystem::path& path() const { return folder.path(); }

  TestFolder folder;

 private:
  void add(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape);

  std::vector<std::pair<std::string, std::string>> fields_;
};

std::string shard_name(int shard, int shards);  // "model-00001-of-00003.safetensors"

}  // namespace nibble
