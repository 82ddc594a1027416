// Arguments are read by hand: CLI11 refuses aliases that users bring along (-np) and reports by exceptions,
// without the nearest name.
#include "app/cli.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "app/foreign_options.h"
#include "base/config_file.h"
#include "base/quote.h"

namespace nibble {
namespace {

const OptionSpec* find_option(std::string_view name, std::span<const OptionSpec> options) {
  for (const OptionSpec& option : options) {
    if (option.name == name || std::ranges::count(option.aliases, name) != 0) return &option;
  }
  return nullptr;
}

Status unknown_option(std::string_view name, std::span<const OptionSpec> options) {
  std::vector<std::string_view> names{"--help"};
  for (const OptionSpec& option : options) {
    names.push_back(option.name);
    names.insert(names.end(), option.aliases.begin(), option.aliases.end());
  }
  // Commands with an engine alone.
  if (const ForeignOption* foreign = find_foreign_option(name);
      foreign != nullptr && find_option("--tp", options) != nullptr) {
    return invalid_argument(std::string(name) + " (" + std::string(foreign->from) +
                            "): " + std::string(foreign->because) + "; " + std::string(foreign->instead));
  }
  const std::string_view near = nearest_name(name, names);
  return invalid_argument(
      "unknown option " + quote(name) + "; " +
      (near.empty() ? "--help lists those there are" : "the nearest is " + std::string(near)));
}

// The values of one option, in the order given.
struct GivenOption {
  const OptionSpec* option;
  std::string_view spelling;  // the last one used
  std::vector<std::string_view> values;
};

class ArgumentReader {
 public:
  ArgumentReader(std::span<const std::string_view> arguments, const CommandLine& line)
      : arguments_(arguments), line_(line) {}

  // Sorts the arguments out; nothing is set yet.
  Status read() {
    bool options_ended = false;
    while (next_ < arguments_.size()) {
      const std::string_view argument = arguments_[next_++];
      if (options_ended || !argument.starts_with('-') || argument == "-") {
        positionals_.push_back(argument);
      } else if (argument == "--") {
        options_ended = true;
      } else {
        NIBBLE_RETURN_IF_ERROR(read_option(argument));
      }
    }
    return {};
  }

  bool has(const OptionSpec& option) const { return value_of(option.name).has_value(); }

  // The last value given for an option.
  std::optional<std::string_view> value_of(std::string_view name) const {
    const auto given =
        std::ranges::find(given_, name, [](const GivenOption& each) { return each.option->name; });
    if (given == given_.end()) return {};
    return given->values.back();
  }

  // A positional argument that is missing here may have its value already.
  Status set() const {
    NIBBLE_RETURN_IF_ERROR(set_positionals());
    for (const GivenOption& given : given_) {
      const std::string where =
          std::string(given.spelling) + (given.option->is_switch() ? "" : " " + quote(given.values.back()));
      NIBBLE_RETURN_IF_ERROR(given.option->set(given.values).with_context(where));
    }
    return {};
  }

 private:
  Status read_option(std::string_view argument) {
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const OptionSpec* const option = find_option(name, line_.options);
    if (option == nullptr) return unknown_option(name, line_.options);
    std::string_view value = "true";
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (!option->is_switch()) {
      NIBBLE_RETURN_IF_ERROR(check_value_follows(name, *option));
      value = arguments_[next_++];
    }
    auto given = std::ranges::find(given_, option, &GivenOption::option);
    if (given == given_.end())
      given = given_.insert(given_.end(), {.option = option, .spelling = {}, .values = {}});
    given->spelling = name;
    given->values.push_back(value);
    // "FILE...": what follows is its values too, up to the next option.
    if (option->value.ends_with("...") && equals == std::string_view::npos)
      while (next_ < arguments_.size() && !arguments_[next_].starts_with('-'))
        given->values.push_back(arguments_[next_++]);
    return {};
  }

  Status check_value_follows(std::string_view name, const OptionSpec& option) const {
    const std::string shown = std::string(name) + " " + std::string(option.value);
    if (next_ == arguments_.size())
      return invalid_argument(std::string(name) + " needs a value; write " + shown);
    // The value was forgotten, or is meant to look like this.
    const std::string_view next = arguments_[next_];
    if (find_option(next.substr(0, next.find('=')), line_.options) != nullptr) {
      return invalid_argument(std::string(name) + " needs a value before " + quote(next) + "; write " +
                              shown + ", or " + std::string(name) + "=" + std::string(next) +
                              " for that very value");
    }
    return {};
  }

  Status set_positionals() const {
    for (std::size_t i = 0; i < line_.positionals.size(); ++i) {
      const PositionalSpec& spec = line_.positionals[i];
      if (i < positionals_.size()) {
        *spec.target = positionals_[i];
      } else if (spec.required && spec.target->empty()) {
        return invalid_argument("no " + std::string(spec.name) + " given; it is " + std::string(spec.help));
      }
    }
    if (positionals_.size() > line_.positionals.size()) {
      return invalid_argument("unexpected argument " + quote(positionals_[line_.positionals.size()]) +
                              "; quote an argument that contains spaces, and see --help");
    }
    return {};
  }

  std::span<const std::string_view> arguments_;
  const CommandLine& line_;
  std::size_t next_ = 0;
  std::vector<std::string_view> positionals_;
  std::vector<GivenOption> given_;
};

const Command* find_command(std::string_view name, std::span<const Command* const> commands) {
  const auto found = std::ranges::find(commands, name, [](const Command* command) { return command->name; });
  return found == commands.end() ? nullptr : *found;
}

Status unknown_command(std::string_view name, std::span<const Command* const> commands) {
  std::vector<std::string_view> names;
  for (const Command* command : commands) names.push_back(command->name);
  const std::string_view near = nearest_name(name, names);
  return invalid_argument(
      "unknown command " + quote(name) + "; " +
      (near.empty() ? "nibble --help lists those there are" : "the nearest is " + std::string(near)));
}

bool asks_for_help(std::span<const std::string_view> arguments) {
  for (const std::string_view argument : arguments) {
    if (argument == "--") return false;
    if (argument == "--help" || argument == "-h") return true;
  }
  return false;
}

void print(std::FILE* file, std::string_view text) { std::fwrite(text.data(), 1, text.size(), file); }

using Variable = Environment::value_type;

OptionSpec config_option(std::string& file) {
  return {.name = "--config",
          .value = "FILE",
          .help = "lines of name = value, in these options' names",
          .set = string_value(file)};
}

// What a configuration file may set: the options, and the arguments by their names.
std::vector<OptionSpec> config_settings(const CommandLine& line) {
  std::vector<OptionSpec> rows;
  for (const PositionalSpec& spec : line.positionals) {
    rows.push_back({.name = spec.name, .value = spec.name, .set = string_value(*spec.target)});
  }
  rows.insert(rows.end(), line.options.begin(), line.options.end());
  return rows;
}

Status run_command(const Command& command, std::span<const Command* const> commands,
                   std::span<const std::string_view> arguments, const Environment& environment,
                   Console& console) {
  CommandLine line = command.declare();
  std::vector<CommandLine> every;  // keeps alive what the rows point to
  std::vector<OptionSpec> known, known_settings;
  for (const Command* other : commands) {
    every.push_back(other->declare());
    known.insert(known.end(), every.back().options.begin(), every.back().options.end());
    const std::vector<OptionSpec> rows = config_settings(every.back());
    known_settings.insert(known_settings.end(), rows.begin(), rows.end());
  }
  const std::vector<OptionSpec> settings = config_settings(line);
  std::string config;
  const OptionSpec config_row = config_option(config);
  line.options.push_back(config_row);
  known.push_back(config_row);

  // The weakest first: the file, the environment, the arguments.
  ArgumentReader reader(arguments, line);
  NIBBLE_RETURN_IF_ERROR(reader.read());
  if (const auto given = reader.value_of(config_row.name)) {
    config = *given;
  } else if (const auto found = std::ranges::find(environment, config_row.variable(), &Variable::first);
             found != environment.end()) {
    config = found->second;
  }
  if (!config.empty()) {
    NIBBLE_ASSIGN(const ConfigFile file, read_config(config));
    NIBBLE_RETURN_IF_ERROR(apply_config(file, settings, known_settings));
  }
  // What the command line gives is not looked at in the environment, however it reads there.
  std::vector<OptionSpec> open;
  std::ranges::copy_if(line.options, std::back_inserter(open),
                       [&](const OptionSpec& option) { return !reader.has(option); });
  std::vector<std::string> warnings;
  const Status applied = apply_environment(environment, open, known, warnings);
  for (const std::string& warning : warnings) print(console.err, "warning: " + warning + "\n");
  NIBBLE_RETURN_IF_ERROR(applied);
  NIBBLE_RETURN_IF_ERROR(reader.set());
  return line.run(console);
}

Status dispatch(std::span<const Command* const> commands, std::span<const std::string_view> arguments,
                const Environment& environment, Console& console) {
  if (arguments.empty()) return invalid_argument("no command given; nibble --help lists those there are");
  const std::string_view first = arguments[0];
  if (first == "--version") {
    print(console.out, version_text());
  } else if (first == "--help" || first == "-h") {
    print(console.out, program_help(commands));
  } else if (first.starts_with('-')) {
    return invalid_argument("unknown option " + quote(first) +
                            "; before the command there are --help and --version");
  } else if (const Command* const command = find_command(first, commands); command == nullptr) {
    return unknown_command(first, commands);
  } else if (asks_for_help(arguments.subspan(1))) {
    print(console.out, command_help(*command));
  } else {
    return run_command(*command, commands, arguments.subspan(1), environment, console);
  }
  return {};
}

}  // namespace

void CommandLine::add(std::vector<OptionSpec> more) {
  options.insert(options.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

int run_program(std::span<const Command* const> commands, std::span<const std::string_view> arguments,
                const Environment& environment, Console& console) {
  Status status = dispatch(commands, arguments, environment, console);
  // A full disk shows only when the buffer is written.
  errno = 0;
  const bool written = std::fflush(console.out) == 0 && std::ferror(console.out) == 0;
  if (!written && status.ok()) {
    status = io_error("the results could not be written: " + std::string(std::strerror(errno)) +
                      "; give standard output room");
  }
  if (!status.ok()) print(console.err, "error: " + status.message() + "\n");
  return status.exit_code();
}

}  // namespace nibble
