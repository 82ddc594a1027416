// The tests' small checkpoint in a folder of its own, for a test to damage.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/engine_test_util.h"

namespace nibble {

class DamagedExample : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(copy_);
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) {
      std::filesystem::copy_file(example_folder / name, copy_ / name,
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
  void TearDown() override { std::filesystem::remove_all(copy_); }

  // Overwrites one row of the embedding with NaN.
  void spoil_embedding(TokenId id) {
    std::fstream file(copy_ / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    std::uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
    std::string header(header_bytes, ' ');
    file.read(header.data(), static_cast<std::streamsize>(header_bytes));
    const JsonDocument document = JsonDocument::parse(header).value();
    const JsonValue tensor = *document.root().find("model.embed_tokens.weight");
    const std::int64_t begin = (*tensor.find("data_offsets")->elements().begin()).as_integer();
    constexpr std::int64_t row_bytes = 160 * 2;
    const std::string row(row_bytes, '\xff');
    file.seekp(static_cast<std::streamoff>(8 + header_bytes) + begin + id * row_bytes);
    file.write(row.data(), row_bytes);
  }

  std::unique_ptr<Engine> load_copy() { return std::move(Engine::load({.model = copy_.string()})).value(); }

  const std::filesystem::path copy_ =
      std::filesystem::temp_directory_path() / ("nibble_engine_test_" + std::to_string(::getpid()));
};

}  // namespace nibble
