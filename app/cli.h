// What every subcommand shares: its declaration, the command line and the environment it reads, help, errors
// and exit codes. A command is one file; it defines a const Command, declared in app/commands.h:
//
//   struct Options { EngineOptions engine; bool json = false; };
//
//   CommandLine declare() {
//     auto options = std::make_shared<Options>();
//     CommandLine line;
//     line.positionals = {{.name = "MODEL", .help = "...", .target = &options->engine.model}};
//     line.options = {{.name = "--json", .help = "...", .set = switch_value(options->json)}};
//     line.add(engine_option_specs(options->engine));
//     line.run = [options](Console& console) { return run(*options, console); };
//     return line;
//   }
//
//   const Command score_command{.name = "score", .summary = "...", .example = "...", .declare = declare};
#pragma once

#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "base/status.h"

namespace nibble {

// Results go to `out`, all else to `err`.
struct Console {
  std::FILE* in = stdin;
  std::FILE* out = stdout;
  std::FILE* err = stderr;
};

struct PositionalSpec {
  std::string_view name;  // "MODEL"
  std::string_view help;
  std::string* target = nullptr;
  bool required = true;  // else the target keeps its default; only the last ones may be left out
};

// What a command accepts and does. The functions own what the rows point to.
struct CommandLine {
  std::vector<PositionalSpec> positionals;
  std::vector<OptionSpec> options;
  std::function<Status(Console& console)> run;

  void add(std::vector<OptionSpec> more);
};

struct Command {
  std::string_view name;     // "generate"
  std::string_view summary;  // one line
  std::string_view example;  // a whole command line
  CommandLine (*declare)() = nullptr;
};

std::string command_help(const Command& command);
std::string program_help(std::span<const Command* const> commands);
std::string version_text();

// nibble with these arguments (without the program's name); returns the exit code. An option is `--name
// value`,
// `--name=value` or a switch; everything after a `--` is positional, and so is a lone `-`. An option that is
// not among the arguments is set by its variable, if that is in the environment.
int run_program(std::span<const Command* const> commands, std::span<const std::string_view> arguments,
                const Environment& environment, Console& console);

}  // namespace nibble
