#include "base/config_file.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace nibble {
namespace {

Status apply(std::string_view text, EngineOptions& options) {
  Result<ConfigFile> file = parse_config("f.conf", text);
  if (!file.ok()) return file.status();
  const std::vector<OptionSpec> specs = engine_option_specs(options);
  return apply_config(*file, specs, specs);
}

std::string refusal(std::string_view text) {
  EngineOptions options;
  const Status status = apply(text, options);
  EXPECT_EQ(status.exit_code(), 2) << text;
  return status.message();
}

TEST(ConfigFile, SetsOptionsByNameAndByAlias) {
  EngineOptions options;
  ASSERT_TRUE(
      apply("\xef\xbb\xbf# a comment\r\n\n  threads=3 \r\nmax-num-seqs\t=\t 5\nno-prefix-cache = true\n"
            "context-length = 99\nmoe-runner-backend = \"cpu_scalar\"",
            options)
          .ok());
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.max_num_seqs, 5);
  EXPECT_EQ(options.max_model_len, 99);
  EXPECT_TRUE(options.no_prefix_cache);
  EXPECT_EQ(options.moe_runner_backend, "cpu_scalar");
  EXPECT_TRUE(options.given.threads && options.given.max_model_len);
  EXPECT_FALSE(options.given.dtype);
}

TEST(ConfigFile, EachErrorNamesFileAndLine) {
  EXPECT_EQ(refusal("\n\nthreads = many\n"),
            "f.conf:3: threads \"many\": not a whole number in range; give one from 0 to 1024");
  EXPECT_EQ(refusal("thread = 2"), "f.conf:1: there is no option \"thread\"; the nearest is threads");
  EXPECT_EQ(refusal("zzzzzzzzzzzzzzzz = 2"),
            "f.conf:1: there is no option \"zzzzzzzzzzzzzzzz\"; write an option of the command line without "
            "its dashes");
  EXPECT_EQ(refusal("# x\nthreads"),
            "f.conf:2: \"threads\" is no setting; write name = value, such as port = 8000");
  EXPECT_EQ(refusal("[serve]"),
            "f.conf:1: \"[serve]\" is no setting; write name = value, such as port = 8000");
  EXPECT_EQ(refusal(" = 4"), "f.conf:1: no name before the =; write name = value");
  EXPECT_EQ(refusal("--threads = 4"), "f.conf:1: names stand here without dashes; write threads = ...");
  EXPECT_EQ(refusal("threads = 4\x1b[2J"), "f.conf:1: holds a control character; write plain text");
  EXPECT_EQ(refusal(std::string_view("threads = 4\0", 12)),
            "f.conf:1: holds a control character; write plain text");
  EXPECT_EQ(refusal("threads ="),
            "f.conf:1: threads \"\": not a whole number in range; give one from 0 to 1024");
  EXPECT_EQ(refusal("threads = 1\nthreads = x\n").substr(0, 9), "f.conf:2:");
}

TEST(ConfigFile, AValueKeepsWhatStandsBetweenItsQuotesAndEverySignAfterTheFirstEquals) {
  std::vector<std::string> prompts;
  std::string model;
  const OptionSpec specs[] = {{.name = "--prompt", .value = "TEXT", .set = strings_value(prompts)},
                              {.name = "MODEL", .value = "MODEL", .set = string_value(model)}};
  const Result<ConfigFile> file = parse_config(
      "f",
      "prompt = a # b = \"c\"\nprompt = \"  d  \"\nprompt = \"\nprompt = \"\"\nmodel = ~/x\nmodel = y\n");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(apply_config(*file, specs, specs).ok());
  EXPECT_EQ(prompts, (std::vector<std::string>{"a # b = \"c\"", "  d  ", "\"", ""}));
  EXPECT_EQ(model, "y") << "of several values the last one counts, as on the command line";
}

TEST(ConfigFile, AnotherCommandsOptionIsNoErrorAndSetsNothing) {
  int mine = 0, theirs = 0;
  const OptionSpec my_option{.name = "--mine", .value = "N", .set = int_value(mine, 0, 9)};
  const OptionSpec their_option{.name = "--theirs", .value = "N", .set = int_value(theirs, 0, 9)};
  const OptionSpec known[] = {my_option, their_option};
  const Result<ConfigFile> file = parse_config("f", "theirs = 5\nmine = 4\n");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(apply_config(*file, {&my_option, 1}, known).ok());
  EXPECT_EQ(mine, 4);
  EXPECT_EQ(theirs, 0);
}

TEST(ConfigFile, AFileThatCannotBeReadIsAMistakeOfTheCommandLine) {
  for (const char* path : {"/no/such/file", "/dev/null", "/"}) {
    const Result<ConfigFile> file = read_config(path);
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.status().exit_code(), 2) << path;
    EXPECT_NE(file.status().message().find(path), std::string::npos) << file.status().message();
    EXPECT_NE(file.status().message().find("; give a file of lines such as port = 8000"), std::string::npos);
  }
  char path[] = "/tmp/nibble_config_XXXXXX";
  const int descriptor = mkstemp(path);
  ASSERT_GE(descriptor, 0);
  const std::string_view text = "port = 1\n";
  ASSERT_EQ(write(descriptor, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(descriptor);
  const Result<ConfigFile> file = read_config(path);
  std::remove(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(file->entries.size(), 1u);
  EXPECT_EQ(file->name, path);
  EXPECT_EQ(file->entries[0].value, "1");
}

RC_GTEST_PROP(ConfigFile, AnyBytesAreEntriesOrARefusalThatNamesTheLine, (const std::string& text)) {
  const Result<ConfigFile> file = parse_config("f.conf", text);
  if (!file.ok()) {
    RC_ASSERT(file.status().message().starts_with("f.conf:"));
    return;
  }
  for (const ConfigEntry& entry : file->entries) RC_ASSERT(!entry.name.empty() && entry.line >= 1);
}

// What a file says of a text is the text, whatever stands in it, if it is quoted and has no control
// characters.
RC_GTEST_PROP(ConfigFile, AQuotedValueComesBackAsItWasWritten, (const std::string& drawn)) {
  std::string value;
  for (const char c : drawn) {
    if (static_cast<unsigned char>(c) >= ' ' && c != 0x7f) value += c;
  }
  const Result<ConfigFile> file = parse_config("f", "name = \"" + value + "\"\r\n");
  RC_ASSERT(file.ok());
  RC_ASSERT(file->entries.size() == 1u);
  RC_ASSERT(file->entries[0].value == value);
}

}  // namespace
}  // namespace nibble
