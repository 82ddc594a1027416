#include "app/cli.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "app/cli_test_util.h"
#include "app/commands.h"
#include "app/foreign_options.h"
#include "plan/kernel_table.h"

namespace nibble {
namespace {

struct EchoOptions {
  EngineOptions engine;
  std::string file = "-";
  std::vector<std::string> prompts;
  float temperature = 1;
  bool json = false;
};

// Prints what it was given; the model "broken" is a broken one.
Status echo(const EchoOptions& options, Console& console) {
  if (options.engine.model == "broken") return broken_model("config.json is empty; fetch the model again");
  std::fprintf(console.out, "model=%s file=%s threads=%d len=%d seqs=%d t=%g json=%d",
               options.engine.model.c_str(), options.file.c_str(), options.engine.threads,
               options.engine.max_model_len, options.engine.max_num_seqs,
               static_cast<double>(options.temperature), options.json ? 1 : 0);
  for (const std::string& prompt : options.prompts) std::fprintf(console.out, " <%s>", prompt.c_str());
  return {};
}

CommandLine declare_echo() {
  auto options = std::make_shared<EchoOptions>();
  CommandLine line;
  line.positionals = {{.name = "MODEL", .help = "a model", .target = &options->engine.model},
                      {.name = "FILE", .help = "a text", .target = &options->file, .required = false}};
  line.options = {{.name = "--prompt",
                   .value = "TEXT",
                   .help = "a prompt (repeatable)",
                   .set = strings_value(options->prompts)},
                  {.name = "--temperature",
                   .value = "T",
                   .help = "0: greedy",
                   .default_text = "1",
                   .set = float_value(options->temperature, 0, 2)},
                  {.name = "--json", .help = "JSON lines", .set = switch_value(options->json)}};
  line.add(engine_option_specs(options->engine));
  line.run = [options](Console& console) { return echo(*options, console); };
  return line;
}

CommandLine declare_other() {
  auto port = std::make_shared<int>(0);
  CommandLine line;
  line.options = {{.name = "--port", .value = "N", .help = "a port", .set = int_value(*port, 0, 65535)}};
  line.run = [port](Console&) { return Status(); };
  return line;
}

const Command echo_command{
    .name = "echo", .summary = "print the options", .example = "nibble echo demo", .declare = declare_echo};
const Command other_command{
    .name = "other", .summary = "do nothing", .example = "nibble other", .declare = declare_other};

Outcome nibble(const std::vector<std::string_view>& arguments, const Environment& environment = {}) {
  const Command* const commands[] = {&echo_command, &other_command};
  return run_caught(commands, arguments, environment);
}

void expect_refused(const std::vector<std::string_view>& arguments, std::string_view error) {
  const Outcome outcome = nibble(arguments);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "error: " + std::string(error) + "\n");
}

TEST(CommandLine, SetsWhatTheArgumentsName) {
  EXPECT_EQ(nibble({"echo", "demo"}).out, "model=demo file=- threads=0 len=0 seqs=16 t=1 json=0");
  EXPECT_EQ(nibble({"echo", "--json", "demo", "--temperature=0.5", "text.txt", "--prompt", "a b"}).out,
            "model=demo file=text.txt threads=0 len=0 seqs=16 t=0.5 json=1 <a b>");
}

TEST(CommandLine, AliasesOfOtherEnginesWork) {
  const std::string_view wanted = "model=demo file=- threads=4 len=99 seqs=3 t=1 json=0";
  EXPECT_EQ(nibble({"echo", "demo", "-t", "4", "-c", "99", "-np", "3"}).out, wanted);
  EXPECT_EQ(nibble({"echo", "demo", "--threads=4", "--context-length", "99", "--max-running-requests=3"}).out,
            wanted);
}

TEST(CommandLine, TheLastOfTwoValuesCountsAcrossAliasesAndAListKeepsAll) {
  EXPECT_EQ(nibble({"echo", "m", "-c", "1", "--max-model-len", "2", "--prompt", "x", "--prompt=y"}).out,
            "model=m file=- threads=0 len=2 seqs=16 t=1 json=0 <x> <y>");
}

TEST(CommandLine, AValueMayLookLikeAnythingButAForgottenOne) {
  EXPECT_EQ(
      nibble({"echo", "m", "--prompt", "-1", "--prompt", "[a,b]", "--prompt", "", "--prompt=--json"}).out,
      "model=m file=- threads=0 len=0 seqs=16 t=1 json=0 <-1> <[a,b]> <> <--json>");
  EXPECT_EQ(nibble({"echo", "m", "--json", "--", "--json"}).out,
            "model=m file=--json threads=0 len=0 seqs=16 t=1 json=1");
  EXPECT_EQ(nibble({"echo", "m", "-"}).code, 0);
  expect_refused(
      {"echo", "m", "--prompt", "--json"},
      R"(--prompt needs a value before "--json"; write --prompt TEXT, or --prompt=--json for that very )"
      "value");
  expect_refused({"echo", "m", "--prompt"}, "--prompt needs a value; write --prompt TEXT");
}

TEST(CommandLine, BadValuesAreNamedAsTheUserSpelledThem) {
  expect_refused({"echo", "m", "-np", "0"},
                 R"(-np "0": not a whole number in range; give one from 1 to 4096)");
  expect_refused({"echo", "m", "--temperature", "hot"},
                 R"(--temperature "hot": not a number in range; give one from 0 to 2)");
  expect_refused({"echo", "m", "--json=maybe"}, "--json: not one of its values; give true, false, 1 or 0");
  expect_refused({"echo", "m", "--device", "cuda:0,2"},
                 R"(--device "cuda:0,2": choosing among GPUs is not built yet; give auto, cpu or cuda)");
}

TEST(CommandLine, UnknownNamesAreAnsweredWithTheNearest) {
  expect_refused({"ehco", "m"}, R"(unknown command "ehco"; the nearest is echo)");
  expect_refused({"conquer-the-world"},
                 R"(unknown command "conquer-the-world"; nibble --help lists those there are)");
  expect_refused({"echo", "m", "--promt", "x"}, R"(unknown option "--promt"; the nearest is --prompt)");
  expect_refused({"echo", "m", "--max_model_len=9"},
                 R"(unknown option "--max_model_len"; the nearest is --max-model-len)");
  expect_refused({"echo", "m", "--qqqqqqqqqq"},
                 R"(unknown option "--qqqqqqqqqq"; --help lists those there are)");
  expect_refused({"--json"}, R"(unknown option "--json"; before the command there are --help and --version)");
}

TEST(CommandLine, OptionsOfOtherEnginesForSeveralGpusAreRefusedWithWhatWorks) {
  for (const ForeignOption& option : foreign_options()) {
    const std::string error = std::string(option.name) + " (" + std::string(option.from) +
                              "): " + std::string(option.because) + "; " + std::string(option.instead);
    expect_refused({"echo", "m", option.name, "2"}, error);
    // A command without an engine has no ranks to speak of.
    EXPECT_NE(nibble({"other", option.name}).err.find("unknown option"), std::string::npos);
    EXPECT_EQ(&option, find_foreign_option(option.name)) << "once in the list";
    // What they say to give is there.
    EngineOptions options;
    const auto specs = engine_option_specs(options);
    for (const std::string_view part : {"--tp", "--ep", "--moe-a2a-backend", "--all-reduce"}) {
      EXPECT_TRUE(
          error.find(part) == std::string::npos ||
          std::any_of(specs.begin(), specs.end(), [&](const OptionSpec& each) { return each.name == part; }))
          << error;
    }
  }
  EXPECT_EQ(find_foreign_option("--tp-size"), nullptr) << "an alias";
}

TEST(CommandLine, MissingAndSurplusArgumentsAreNamed) {
  expect_refused({}, "no command given; nibble --help lists those there are");
  expect_refused({"echo"}, "no MODEL given; it is a model");
  expect_refused({"echo", "a", "b", "c\n"},
                 R"(unexpected argument "c\n"; quote an argument that contains spaces, and see --help)");
}

TEST(CommandLine, AFlagWinsOverTheEnvironment) {
  const Environment environment{{"NIBBLE_THREADS", "2"}, {"NIBBLE_PROMPT", "env"}, {"NIBBLE_JSON", "1"}};
  EXPECT_EQ(nibble({"echo", "m"}, environment).out,
            "model=m file=- threads=2 len=0 seqs=16 t=1 json=1 <env>");
  EXPECT_EQ(nibble({"echo", "m", "-t", "5", "--prompt", "flag", "--json=false"}, environment).out,
            "model=m file=- threads=5 len=0 seqs=16 t=1 json=0 <flag>");
}

TEST(CommandLine, TheEnvironmentIsCheckedAgainstTheOptionsOfAllCommands) {
  EXPECT_EQ(nibble({"echo", "m"}, {{"NIBBLE_PORT", "80"}}).code, 0);
  const Outcome unknown = nibble({"echo", "m"}, {{"NIBBLE_PORTS", "80"}});
  EXPECT_EQ(unknown.code, 0);
  EXPECT_EQ(
      unknown.err,
      "warning: the environment variable \"NIBBLE_PORTS\" is unknown and has no effect; the nearest known "
      "one is NIBBLE_PORT\n");
  EXPECT_EQ(nibble({"echo", "m"}, {{"NIBBLE_THREADS", "x"}}).err,
            "error: NIBBLE_THREADS \"x\": not a whole number in range; give one from 0 to 1024\n");
}

TEST(CommandLine, AFlagWinsOverAVariableOfAnyText) {
  for (const char* text : {"x", "", "tcp://10.0.0.1:8000", "7"}) {
    const Outcome outcome = nibble({"echo", "m", "-t", "5"}, {{"NIBBLE_THREADS", text}});
    EXPECT_EQ(outcome.out, "model=m file=- threads=5 len=0 seqs=16 t=1 json=0") << text;
    EXPECT_EQ(outcome.err, "") << text;
  }
}

TEST(CommandLine, AServiceNamedNibbleStopsNoCommand) {
  const Outcome outcome =
      nibble({"echo", "m"}, {{"NIBBLE_PORT", "tcp://10.0.0.1:8000"}, {"NIBBLE_SERVICE_HOST", "10.0.0.1"}});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(CommandLine, AFailureOfTheCommandDecidesTheExitCode) {
  const Outcome outcome = nibble({"echo", "broken"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "error: config.json is empty; fetch the model again\n");
}

TEST(CommandLine, AFullDiskIsAFailureNotSilence) {
  const Command* const commands[] = {&echo_command};
  char* text = nullptr;
  std::size_t size = 0;
  Console console{.out = std::fopen("/dev/full", "w"), .err = open_memstream(&text, &size)};
  ASSERT_NE(console.out, nullptr);
  const std::string_view arguments[] = {"echo", "demo"};
  EXPECT_EQ(run_program(commands, arguments, {}, console), 1);
  std::fclose(console.out);
  std::fclose(console.err);
  EXPECT_EQ(std::string_view(text, size),
            "error: the results could not be written: No space left on device; give standard output room\n");
  free(text);
}

class ConfigOption : public testing::Test {
 protected:
  void write(std::string_view text) {
    std::FILE* file = std::fopen(path_.c_str(), "w");
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }
  void TearDown() override { std::remove(path_.c_str()); }

  const std::string path_ = testing::TempDir() + "nibble_cli_test_" + std::to_string(getpid()) + ".conf";
};

TEST_F(ConfigOption, SetsOptionsAndArgumentsThatNothingElseSets) {
  write(
      "# a model and its limits\nmodel = demo\nthreads = 3\nmax-num-seqs = 5\nprompt = a\nprompt = b\nport = "
      "1\n");
  EXPECT_EQ(nibble({"echo", "--config", path_}).out,
            "model=demo file=- threads=3 len=0 seqs=5 t=1 json=0 <a> <b>");
  const std::string with_equals = "--config=" + path_;
  EXPECT_EQ(nibble({"echo", "other", "--prompt", "c", with_equals}).out,
            "model=other file=- threads=3 len=0 seqs=5 t=1 json=0 <c>");
}

TEST_F(ConfigOption, IsWeakerThanTheEnvironmentWhichIsWeakerThanAFlag) {
  write("threads = 1\nmax-num-seqs = 1\nmax-model-len = 1\n");
  const Environment environment{
      {"NIBBLE_MAX_NUM_SEQS", "2"}, {"NIBBLE_MAX_MODEL_LEN", "2"}, {"NIBBLE_CONFIG", path_}};
  EXPECT_EQ(nibble({"echo", "demo", "-c", "3"}, environment).out,
            "model=demo file=- threads=1 len=3 seqs=2 t=1 json=0");
  EXPECT_EQ(nibble({"echo", "demo", "--config", ""}, environment).out,
            "model=demo file=- threads=0 len=2 seqs=2 t=1 json=0")
      << "an empty name is no file";
}

TEST_F(ConfigOption, AMistakeInTheFileIsRefusedWithItsPlace) {
  write("threads = 3\n\ntemperature = warm\n");
  expect_refused({"echo", "demo", "--config", path_},
                 path_ + ":3: temperature \"warm\": not a number in range; give one from 0 to 2");
  write("confg = x\n");
  expect_refused(
      {"echo", "demo", "--config", path_},
      path_ + ":1: there is no option \"confg\"; write an option of the command line without its dashes");
  write("config = other.conf\n");
  EXPECT_EQ(nibble({"echo", "demo", "--config", path_}).code, 2) << "a file names no other";
  expect_refused(
      {"echo", "demo", "--config", "/no/such.conf"},
      "--config: cannot open \"/no/such.conf\": No such file or directory; give a file of lines such as "
      "port = 8000");
  write("");
  expect_refused({"echo", "--config", path_}, "no MODEL given; it is a model");
}

void expect_fits_a_screen(const std::string& help) {
  EXPECT_LE(std::ranges::count(help, '\n'), 40) << help;
  for (std::size_t begin = 0; begin < help.size();) {
    const std::size_t end = help.find('\n', begin);
    ASSERT_NE(end, std::string::npos) << "the last line ends too";
    EXPECT_LE(end - begin, 100u) << help.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(Help, ShowsUsageDefaultsAliasesTheTwinsAndAnExample) {
  const Outcome outcome = nibble({"echo", "--help"}, {{"NIBBLE_UNKNOWN", "1"}});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const char* part : {"usage: nibble echo MODEL [FILE] [options]", "--temperature T", "0: greedy [1]\n",
                           "sequences in one step [16] (also --max-running-requests, -np)\n", "a text [-]\n",
                           "Engine options:\n", "NIBBLE_PROMPT", "--config FILE (prompt = ...)",
                           "example: nibble echo demo\n"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << outcome.out;
  }
  EXPECT_EQ(nibble({"echo", "-h"}).out, outcome.out);
  expect_fits_a_screen(outcome.out);
}

TEST(Help, OfTheProgramListsTheCommands) {
  const Outcome outcome = nibble({"--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.out.find("  echo   print the options\n  other  do nothing\n"), std::string::npos);
  expect_fits_a_screen(outcome.out);
}

TEST(Help, OfEveryRealCommandFitsAScreen) {
  const std::vector<const Command*> commands = all_commands();
  expect_fits_a_screen(program_help(commands));
  for (const Command* command : commands) {
    const std::string help = command_help(*command);
    expect_fits_a_screen(help);
    EXPECT_NE(help.find("example: nibble " + std::string(command->name)), std::string::npos);
  }
}

TEST(RealCommands, SpellNoOptionTwice) {
  for (const Command* command : all_commands()) {
    std::vector<std::string_view> names;
    const CommandLine line = command->declare();
    for (const OptionSpec& option : line.options) {
      EXPECT_TRUE(option.name.starts_with("--")) << option.name;
      names.push_back(option.name);
      names.insert(names.end(), option.aliases.begin(), option.aliases.end());
    }
    std::ranges::sort(names);
    EXPECT_EQ(std::ranges::adjacent_find(names), names.end()) << command->name;
  }
}

TEST(Version, NamesTheCommitAndTheTargetsCompiledIn) {
  const Outcome outcome = nibble({"--version"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* part : {"nibble ", "\ncommit: ", "\nCPU targets: ", "scalar\n",
                           has_device_code() ? "\nGPU targets: sm_90a\n" : "\nGPU targets: none\n"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
  }
}

}  // namespace
}  // namespace nibble
