// For tests and fuzzers: a tokenizer of a model that thinks.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/check.h"
#include "text/tokenizer.h"

namespace nibble {

// The example's tokenizer, harmony's marks among its own, with <think> and </think> as tokens that are not
// hidden, as Qwen3 has them. It is written to `folder` first.
inline Tokenizer thinking_tokenizer(const std::filesystem::path& folder) {
  const std::filesystem::path example = NIBBLE_SOURCE_DIR "/tests/data/parity/example/tokenizer.json";
  std::ostringstream text;
  text << std::ifstream(example).rdbuf();
  std::string json = text.str();
  const std::size_t at = json.find('[', json.find("\"added_tokens\""));
  NIBBLE_CHECK(at != std::string::npos, "the example has added tokens");
  int next = Tokenizer::load(example).value().vocabulary_size();
  std::string added;
  for (const char* spelling : {"<think>", "</think>"}) {
    added +=
        "{\"id\":" + std::to_string(next++) + ",\"content\":\"" + spelling +
        "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":false},";
  }
  json.insert(at + 1, added);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << json;
  return Tokenizer::load(folder / "tokenizer.json").value();
}

}  // namespace nibble
