// How fast text becomes ids, in bytes of text a second of one core.
//
//   text_bench [--tokenizer=PATH] [--encoding=NAME] [--english=FILE] [--inputs=FOLDER] [--benchmark_...]
//
// Without arguments: the small tokenizer of the tests and the tree's own documents and sources as English.
// --inputs also writes every input to a file, so that others can be measured on the same bytes
// (bench/tokenizer_compare.py).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSize = 1'000'000;

struct Input {
  std::string name;
  std::string text;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string repeated(std::string_view unit) {
  std::string text;
  while (text.size() + unit.size() <= kSize) text += unit;
  return text;
}

// Prose and code of this repository.
std::string tree_text() {
  std::vector<fs::path> files;
  for (const char* folder : {"docs", "src", "app", "tools"}) {
    const fs::path root = fs::path(NIBBLE_SOURCE_DIR) / folder;
    if (!fs::exists(root)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
      const fs::path suffix = entry.path().extension();
      if (suffix == ".md" || suffix == ".h" || suffix == ".cpp" || suffix == ".py")
        files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string text = read(fs::path(NIBBLE_SOURCE_DIR) / "LICENSE");
  for (const fs::path& file : files) text += read(file);
  return text;
}

std::string random_letters() {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < kSize) text.push_back(static_cast<char>('a' + random() % 26));
  return text;
}

std::string random_cjk() {
  std::mt19937 random(2);
  std::string text;
  while (text.size() + 3 <= kSize) append_utf8(text, 0x4E00 + static_cast<char32_t>(random() % 0x51A6));
  return text;
}

std::vector<Input> make_inputs(const std::string& english) {
  return {
      {"english", english.empty() ? tree_text() : read(english)},
      {"one_letter", std::string(kSize, 'a')},
      {"random_letters", random_letters()},
      {"spaces", std::string(kSize, ' ')},
      {"newlines", std::string(kSize, '\n')},
      {"cjk", random_cjk()},
      {"emoji_joiners", repeated("\U0001F469\u200D\U0001F467\u200D\U0001F466\u200D")},
      {"combining_marks", "e" + repeated("\u0301\u0316\u0327")},
  };
}

void measure_encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  std::size_t ids = 0;
  for (auto _ : state) {
    const std::vector<TokenId> found = tokenizer.encode(text);
    ids = found.size();
    benchmark::DoNotOptimize(found.data());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size() * state.iterations()));
  state.counters["bytes"] = static_cast<double>(text.size());
  state.counters["ids"] = static_cast<double>(ids);
}

void measure_decode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<TokenId> ids = tokenizer.encode(text);
  for (auto _ : state) {
    StreamDecoder decoder(tokenizer);
    for (const TokenId id : ids) benchmark::DoNotOptimize(decoder.push(id));
    benchmark::DoNotOptimize(decoder.flush());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size() * state.iterations()));
}

void measure_load(benchmark::State& state, const std::string& path, const std::string& encoding) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(path, encoding).ok());
}

// Takes "--name=value" out of the arguments.
std::string take(std::vector<char*>& arguments, std::string_view name) {
  for (auto at = arguments.begin(); at != arguments.end(); ++at) {
    const std::string_view argument = *at;
    if (argument.substr(0, name.size()) != name) continue;
    std::string value(argument.substr(name.size()));
    arguments.erase(at);
    return value;
  }
  return {};
}

int run(std::vector<char*> arguments) {
  std::string path = take(arguments, "--tokenizer=");
  const std::string encoding = take(arguments, "--encoding=");
  const std::string english = take(arguments, "--english=");
  const std::string folder = take(arguments, "--inputs=");
  if (path.empty()) path = (fs::path(NIBBLE_SOURCE_DIR) / "tests/data/tokenizers/gpt_oss").string();
  const Result<Tokenizer> tokenizer = Tokenizer::load(path, encoding);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "error: %s\n", tokenizer.status().message().c_str());
    return tokenizer.status().exit_code();
  }
  const std::vector<Input> inputs = make_inputs(english);
  for (const Input& input : inputs) {
    if (!folder.empty()) std::ofstream(fs::path(folder) / input.name, std::ios::binary) << input.text;
    benchmark::RegisterBenchmark(("encode/" + input.name).c_str(), [&tokenizer,
                                                                    &input](benchmark::State& state) {
      measure_encode(state, *tokenizer, input.text);
    })->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("stream_decode/english", [&](benchmark::State& state) {
    measure_decode(state, *tokenizer, inputs[0].text);
  })->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("load", [&](benchmark::State& state) {
    measure_load(state, path, encoding);
  })->Unit(benchmark::kMillisecond);
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) { return nibble::run({argv, argv + argc}); }
