#include "app/completions.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "app/commands.h"

namespace nibble {
namespace {

constexpr std::array<std::string_view, 3> kShells{"bash", "zsh", "fish"};

enum class ValueKind { none, word, choice, file, folder };

// What may follow an option, or stand as an argument.
struct Value {
  ValueKind kind = ValueKind::none;
  std::string name;                  // "FILE"
  std::vector<std::string> choices;  // of a choice; of a folder, what may stand besides
};

struct CompletedOption {
  std::vector<std::string> spellings;  // its name first
  std::string help;
  Value value;
};

struct CompletedCommand {
  std::string name, help;
  std::vector<CompletedOption> options;
  std::vector<Value> arguments;
};

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

// An option that takes words refuses any other with a list of them: "not one of its values; give a, b or c".
// Asking it keeps this table true without a second list of words. What it sets belongs to a declaration that
// nobody runs.
std::vector<std::string> choices_of(const OptionSpec& option) {
  constexpr std::string_view no_word = "\x01";
  constexpr std::string_view refusal = "not one of its values; give ";
  const std::string_view values[] = {no_word};
  const Status status = option.set(values);
  std::string_view list = status.message();
  if (!list.starts_with(refusal)) return {};
  list.remove_prefix(refusal.size());
  std::vector<std::string> words;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find_first_of(", "), list.size());
    const std::string_view word = list.substr(0, end);
    if (!word.empty() && word != "or") words.emplace_back(word);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
}

Value value_of(const OptionSpec& option) {
  if (option.is_switch()) return {};
  Value value{.kind = ValueKind::word, .name = std::string(option.value), .choices = choices_of(option)};
  if (!value.choices.empty()) value.kind = ValueKind::choice;
  if (option.value == "FILE") value.kind = ValueKind::file;
  if (option.value == "DIR" || option.value == "FOLDER") value.kind = ValueKind::folder;
  return value;
}

Value value_of(const PositionalSpec& argument) {
  Value value{.kind = ValueKind::file, .name = std::string(argument.name), .choices = {}};
  if (argument.name == "MODEL") value = {.kind = ValueKind::folder, .name = "MODEL", .choices = {"demo"}};
  if (argument.name == "URL") value.kind = ValueKind::word;
  if (argument.name == "SHELL") {
    value.kind = ValueKind::choice;
    value.choices.assign(kShells.begin(), kShells.end());
  }
  return value;
}

CompletedCommand completed(const Command& command) {
  CompletedCommand done{.name = std::string(command.name),
                        .help = std::string(command.summary),
                        .options = {},
                        .arguments = {}};
  const CommandLine line = command.declare();
  for (const OptionSpec& option : line.options) {
    CompletedOption each{
        .spellings = {std::string(option.name)}, .help = std::string(option.help), .value = value_of(option)};
    for (const std::string_view alias : option.aliases) each.spellings.emplace_back(alias);
    done.options.push_back(std::move(each));
  }
  if (!line.options.empty()) {
    done.options.push_back({.spellings = {"--config"},
                            .help = "lines of name = value, in these options' names",
                            .value = {.kind = ValueKind::file, .name = "FILE", .choices = {}}});
  }
  done.options.push_back({.spellings = {"--help", "-h"}, .help = "what the command takes", .value = {}});
  for (const PositionalSpec& argument : line.positionals) done.arguments.push_back(value_of(argument));
  return done;
}

// ---- bash

// The commands that give this value after these options share one line of the case.
std::string bash_values(const CompletedCommand& command) {
  std::string text;
  for (const CompletedOption& option : command.options) {
    if (option.value.kind == ValueKind::none) continue;
    std::string pattern;
    for (const std::string& spelling : option.spellings) {
      pattern += (pattern.empty() ? "" : "|") + ("\"" + command.name + " " + spelling + "\"");
    }
    const char* const action = option.value.kind == ValueKind::file     ? "_nibble_paths -f"
                               : option.value.kind == ValueKind::folder ? "_nibble_paths -d"
                                                                        : "";
    text += "    " + pattern + ") ";
    if (option.value.kind == ValueKind::choice) {
      text += "_nibble_words \"" + joined(option.value.choices, " ") + "\"; ";
    } else if (*action != '\0') {
      text += std::string(action) + "; ";
    }
    text += "return ;;\n";
  }
  return text;
}

std::string bash_arguments(const CompletedCommand& command) {
  std::string spellings, text;
  for (const CompletedOption& option : command.options) {
    spellings += (spellings.empty() ? "" : " ") + joined(option.spellings, " ");
  }
  text += "    " + command.name + ")\n      if [[ $cur == -* ]]; then _nibble_words \"" + spellings + "\"";
  std::vector<std::string> words;
  bool files = false, folders = false;
  for (const Value& argument : command.arguments) {
    words.insert(words.end(), argument.choices.begin(), argument.choices.end());
    files = files || argument.kind == ValueKind::file;
    folders = folders || argument.kind == ValueKind::folder;
  }
  std::string otherwise;
  if (!words.empty()) otherwise += " _nibble_words \"" + joined(words, " ") + "\";";
  if (files || folders) otherwise += files ? " _nibble_paths -f;" : " _nibble_paths -d;";
  text += otherwise.empty() ? "; fi ;;\n" : "; else" + otherwise + " fi ;;\n";
  return text;
}

std::string bash_script(const std::vector<CompletedCommand>& commands) {
  std::string names, values, arguments;
  for (const CompletedCommand& command : commands) {
    names += command.name + " ";
    values += bash_values(command);
    arguments += bash_arguments(command);
  }
  return R"(# bash completion of nibble, as `nibble completions bash` prints it
_nibble_words() {
  local word
  while read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$1" -- "$cur")
}
_nibble_paths() {
  local path
  compopt -o filenames 2>/dev/null
  while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen "$1" -- "$cur")
}
_nibble() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
  COMPREPLY=()
  if [[ $COMP_CWORD == 1 ]]; then
    _nibble_words ")" +
         names + R"(--help --version"
    return
  fi
  # --name=value is three words here.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD-2]}
  fi
  case "$command $prev" in
)" + values +
         "  esac\n  case $command in\n" + arguments + "  esac\n}\ncomplete -F _nibble nibble\n";
}

// ---- zsh

// A text inside single quotes in which zsh's _arguments reads brackets and colons.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const Value& value) {
  switch (value.kind) {
    case ValueKind::choice: return "(" + joined(value.choices, " ") + ")";
    case ValueKind::file: return "_files";
    case ValueKind::folder: return value.choices.empty() ? "_files -/" : "_nibble_models";
    default: return " ";
  }
}

std::string zsh_script(const std::vector<CompletedCommand>& commands) {
  std::string names, cases;
  for (const CompletedCommand& command : commands) {
    names += "    '" + command.name + ":" + zsh_text(command.help) + "'\n";
    cases += "    " + command.name + ") _arguments -S \\\n";
    for (const CompletedOption& option : command.options) {
      for (const std::string& spelling : option.spellings) {
        // A long option takes its value behind a space or a =, another behind a space alone.
        const bool has_value = option.value.kind != ValueKind::none;
        cases += "      '*" + spelling + (has_value && spelling.starts_with("--") ? "=" : "");
        cases += "[" + zsh_text(option.help) + "]";
        if (has_value) cases += ":" + zsh_text(option.value.name) + ":" + zsh_action(option.value);
        cases += "' \\\n";
      }
    }
    for (std::size_t i = 0; i < command.arguments.size(); ++i) {
      const Value& argument = command.arguments[i];
      cases += "      '" + std::to_string(i + 1) + ":" + zsh_text(argument.name) + ":" +
               zsh_action(argument) + "' \\\n";
    }
    cases += "      ;;\n";
  }
  return R"(#compdef nibble
# zsh completion of nibble, as `nibble completions zsh` prints it
_nibble_models() {
  _alternative 'models:model:(demo)' 'folders:folder:_files -/'
}
_nibble() {
  local -a commands
  commands=(
)" + names +
         R"(  )
  if (( CURRENT == 2 )); then
    _describe -t commands 'command' commands
    _arguments '--help[what there is]' '--version[what this program is]'
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
)" + cases +
         "  esac\n}\nif [[ $funcstack[1] == _nibble ]]; then _nibble \"$@\"; else compdef _nibble nibble; "
         "fi\n";
}

// ---- fish

std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

// -l for --name, -s for -n, -o for -np.
std::string fish_spelling(const std::string& spelling) {
  if (spelling.starts_with("--")) return " -l " + spelling.substr(2);
  return (spelling.size() == 2 ? " -s " : " -o ") + spelling.substr(1);
}

std::string fish_action(const Value& value) {
  switch (value.kind) {
    case ValueKind::none: return "";
    case ValueKind::word: return " -x";
    case ValueKind::choice: return " -x -a " + fish_quoted(joined(value.choices, " "));
    case ValueKind::file: return " -r -F";
    case ValueKind::folder: return " -x -a '(__fish_complete_directories)'";
  }
  return "";
}

std::string fish_script(const std::vector<CompletedCommand>& commands) {
  std::string text =
      "# fish completion of nibble, as `nibble completions fish` prints it\ncomplete -c nibble -f\n";
  const std::string first = "complete -c nibble -n __fish_use_subcommand";
  text += first + " -l help -d 'what there is'\n" + first + " -l version -d 'what this program is'\n";
  for (const CompletedCommand& command : commands) {
    text += first + " -a " + command.name + " -d " + fish_quoted(command.help) + "\n";
    const std::string within = "complete -c nibble -n '__fish_seen_subcommand_from " + command.name + "'";
    for (const CompletedOption& option : command.options) {
      for (const std::string& spelling : option.spellings) {
        text += within + fish_spelling(spelling) + fish_action(option.value) +
                (option.help.empty() ? "" : " -d " + fish_quoted(option.help)) + "\n";
      }
    }
    for (const Value& argument : command.arguments) {
      if (argument.kind == ValueKind::word) continue;
      text += within;
      if (argument.kind == ValueKind::file) text += " -F";
      if (!argument.choices.empty()) text += " -a " + fish_quoted(joined(argument.choices, " "));
      text += "\n";
      if (argument.kind == ValueKind::folder) text += within + " -a '(__fish_complete_directories)'\n";
    }
  }
  return text;
}

struct Options {
  std::string shell;
};

Status run(const Options& options, Console& console) {
  const std::vector<const Command*> commands = all_commands();
  NIBBLE_ASSIGN(const std::string script, completion_script(options.shell, commands));
  std::fwrite(script.data(), 1, script.size(), console.out);
  return {};
}

CommandLine declare() {
  auto options = std::make_shared<Options>();
  CommandLine line;
  line.positionals = {{.name = "SHELL", .help = "bash, zsh or fish", .target = &options->shell}};
  line.run = [options](Console& console) { return run(*options, console); };
  return line;
}

}  // namespace

Result<std::string> completion_script(std::string_view shell, std::span<const Command* const> commands) {
  Result<std::size_t> chosen = choose(shell, kShells);
  if (!chosen.ok()) return chosen.status().with_context("SHELL " + std::string(shell));
  std::vector<CompletedCommand> tables;
  for (const Command* command : commands) tables.push_back(completed(*command));
  return *chosen == 0 ? bash_script(tables) : *chosen == 1 ? zsh_script(tables) : fish_script(tables);
}

const Command completions_command{
    .name = "completions",
    .summary = "a shell's completion of these commands",
    .example = "nibble completions bash > ~/.local/share/bash-completion/completions/nibble",
    .declare = declare};

}  // namespace nibble
