#include "server/api/sampling_defaults.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace nibble::api {
namespace {

class SamplingDefaultsOfAFolder : public testing::Test {
 protected:
  SamplingDefaultsOfAFolder() { std::filesystem::create_directories(folder_); }
  ~SamplingDefaultsOfAFolder() override { std::filesystem::remove_all(folder_); }

  Result<SamplingDefaults> read(const std::string& text) const {
    std::ofstream(folder_ / "generation_config.json") << text;
    return read_sampling_defaults(folder_);
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      ("sampling_defaults_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(SamplingDefaultsOfAFolder, AreWhatTheFileSaysAndNothingElse) {
  const Result<SamplingDefaults> none = read_sampling_defaults(folder_);
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_EQ(none->text(), "");
  const Result<SamplingDefaults> some = read(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null, "eos_token_id": 7})");
  ASSERT_TRUE(some.ok()) << some.status().message();
  EXPECT_EQ(some->text(), "temperature 0.6, top_p 0.95, top_k 20");
  EXPECT_FALSE(some->min_p || some->repetition_penalty);
  const Result<SamplingDefaults> all = read(R"({"top_k": -1, "repetition_penalty": 1.05})");
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->top_k, 0);
  EXPECT_EQ(all->text(), "top_k 0, repetition_penalty 1.05");
}

TEST_F(SamplingDefaultsOfAFolder, FillWhatAClientLeftOpen) {
  const SamplingDefaults defaults{.temperature = 0.6, .top_p = 0.95, .top_k = 20};
  Sampling asked;
  asked.temperature = 0;
  defaults.fill(asked);
  EXPECT_EQ(asked.temperature, 0);
  EXPECT_EQ(asked.top_p, 0.95);
  EXPECT_EQ(asked.top_k, 20);
  EXPECT_FALSE(asked.min_p || asked.repetition_penalty);
}

TEST_F(SamplingDefaultsOfAFolder, AreRefusedByNameWhereNoRequestCouldHaveThem) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature": 7})", "temperature must be a number from 0 to 2"},
      {R"({"top_p": "high"})", "top_p must be"},
      {R"({"top_k": 1.5})", "top_k must be"},
      {R"({"repetition_penalty": 0})", "repetition_penalty must be"},
      {"[]", "is no object"},
      {"{", "generation_config.json"}};
  for (const auto& [text, says] : cases) {
    const Result<SamplingDefaults> read_one = read(text);
    ASSERT_FALSE(read_one.ok()) << text;
    EXPECT_NE(read_one.status().message().find(says), std::string_view::npos) << read_one.status().message();
  }
}

}  // namespace
}  // namespace nibble::api
