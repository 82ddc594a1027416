// Help and version: a screen of at most 100 columns and 40 lines a command.
#include <algorithm>

#include "app/cli.h"
#include "app/version.h"
#include "ops/linear/dot_kernels.h"

namespace nibble {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kMaxNameColumns = 30;

// A table of two columns; the right one is wrapped between words.
class Table {
 public:
  void row(std::string left, std::string right) { rows_.push_back({std::move(left), std::move(right)}); }
  std::size_t width() const {
    std::size_t width = 0;
    for (const Row& row : rows_) width = std::max(width, row.left.size());
    return std::min(width, kMaxNameColumns);
  }
  std::string text(std::size_t left_width) const {
    std::string text;
    for (const Row& row : rows_) {
      std::string line = "  " + row.left;
      line.resize(std::max(line.size(), left_width + 2), ' ');
      line += "  ";
      std::string_view rest = row.right;
      while (line.size() + rest.size() > kColumns) {
        const std::size_t space = rest.substr(0, kColumns - line.size() + 1).rfind(' ');
        if (space == std::string_view::npos) break;
        text.append(line).append(rest.substr(0, space)).append("\n");
        rest.remove_prefix(space + 1);
        line.assign(left_width + 4, ' ');
      }
      text.append(line).append(rest).append("\n");
    }
    return text;
  }

 private:
  struct Row {
    std::string left, right;
  };
  std::vector<Row> rows_;
};

std::string option_description(const OptionSpec& option) {
  std::string text(option.help);
  if (!option.default_text.empty()) text += " [" + option.default_text + "]";
  for (std::size_t i = 0; i < option.aliases.size(); ++i) {
    text += i == 0 ? " (also " : ", ";
    text += option.aliases[i];
  }
  if (!option.aliases.empty()) text += ")";
  return text;
}

}  // namespace

std::string command_help(const Command& command) {
  const CommandLine line = command.declare();
  std::string usage = "usage: nibble " + std::string(command.name);
  Table positionals;
  for (const PositionalSpec& spec : line.positionals) {
    const std::string name(spec.name);
    usage += spec.required ? " " + name : " [" + name + "]";
    const bool shows_default = !spec.required && !spec.target->empty();
    positionals.row(name, std::string(spec.help) + (shows_default ? " [" + *spec.target + "]" : ""));
  }
  std::vector<std::pair<std::string_view, Table>> groups;
  std::string terse;
  bool explained_elsewhere = false;
  for (const OptionSpec& option : line.options) {
    if (!option.explained_by.empty() && option.explained_by != command.name) {
      explained_elsewhere = true;
      continue;
    }
    if (option.help.empty()) {
      terse += (terse.empty() ? "" : ", ") + std::string(option.name) + " [" + option.default_text + "]";
      continue;
    }
    auto group = std::ranges::find(groups, option.group, &std::pair<std::string_view, Table>::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {option.group, Table()});
    group->second.row(std::string(option.name) + (option.is_switch() ? "" : " " + std::string(option.value)),
                      option_description(option));
  }
  std::size_t width = positionals.width();
  for (const auto& group : groups) width = std::max(width, group.second.width());

  std::string text(command.summary);
  text += "\n" + usage + (line.options.empty() ? "" : " [options]") +
          (explained_elsewhere ? ", for GPUs also those of nibble plan --help" : "") + "\n";
  text += positionals.text(width);
  for (const auto& group : groups) text += std::string(group.first) + ":\n" + group.second.text(width);
  if (!terse.empty()) {
    Table limits;
    limits.row("Limits:", terse);
    text += limits.text(0).substr(2);
  }
  if (!line.options.empty()) {
    const OptionSpec& first = line.options[0];
    text += "Also from the environment (" + first.variable() + ") and --config FILE (" +
            std::string(first.name.substr(2)) + " = ...); a flag wins.\n";
  }
  text += "example: " + std::string(command.example) + "\n";
  return text;
}

std::string program_help(std::span<const Command* const> commands) {
  Table table;
  for (const Command* command : commands)
    table.row(std::string(command->name), std::string(command->summary));
  return "nibble runs mixture-of-experts language models from 4-bit weights.\n"
         "usage: nibble COMMAND [arguments]\n" +
         table.text(table.width()) +
         "MODEL is a directory, a name in the local Hugging Face cache (openai/gpt-oss-20b), or demo.\n"
         "nibble COMMAND --help shows a command's options, nibble --version what this program is.\n"
         "exit codes: 0 done, 1 failed while running, 2 command line refused, 3 model missing or broken,\n"
         "130 interrupted\n"
         "example: nibble generate demo --prompt \"Once upon a time\"\n";
}

std::string version_text() {
  std::string cpu_targets;
  for (const DotKernels& kernels : dot_kernels()) {
    cpu_targets.append(cpu_targets.empty() ? "" : ", ").append(kernels.name);
  }
  return "nibble " NIBBLE_VERSION "\ncommit: " NIBBLE_COMMIT "\nCPU targets: " + cpu_targets +
         "\nGPU targets: " NIBBLE_GPU_TARGETS "\n";
}

}  // namespace nibble
