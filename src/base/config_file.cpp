#include "base/config_file.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/file.h"
#include "base/quote.h"

namespace nibble {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;
constexpr std::string_view kSpace = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string_view unquoted(std::string_view value) {
  const bool quoted = value.size() >= 2 && value.starts_with('"') && value.ends_with('"');
  return quoted ? value.substr(1, value.size() - 2) : value;
}

// "--max-model-len": "max-model-len"; a positional argument MODEL: "model".
std::string config_name(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string text(name);
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

bool is_named(const OptionSpec& option, std::string_view name) {
  return config_name(option.name) == name ||
         std::ranges::any_of(option.aliases, [name](std::string_view alias) {
           return alias.starts_with("--") && config_name(alias) == name;
         });
}

const OptionSpec* find_named(std::string_view name, std::span<const OptionSpec> options) {
  const auto found =
      std::ranges::find_if(options, [name](const OptionSpec& option) { return is_named(option, name); });
  return found == options.end() ? nullptr : &*found;
}

std::string place(const ConfigFile& file, int line) { return file.name + ":" + std::to_string(line) + ": "; }

Status unknown_name(const std::string& where, std::string_view name, std::span<const OptionSpec> known) {
  std::vector<std::string> names;
  for (const OptionSpec& option : known) {
    names.push_back(config_name(option.name));
    for (const std::string_view alias : option.aliases) {
      if (alias.starts_with("--")) names.push_back(config_name(alias));
    }
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view near = nearest_name(name, views);
  return invalid_argument(where + "there is no option " + quote(name) + "; " +
                          (near.empty() ? "write an option of the command line without its dashes"
                                        : "the nearest is " + std::string(near)));
}

// The lines that name one option, in the file's order.
struct GivenEntry {
  const OptionSpec* option;
  const ConfigEntry* last;
  std::vector<std::string_view> values;
};

}  // namespace

Result<ConfigFile> parse_config(std::string name, std::string_view text) {
  ConfigFile file{.name = std::move(name), .entries = {}};
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    const std::string where = place(file, number);
    const auto is_control = [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == 0x7f; };
    if (std::ranges::any_of(line, is_control)) {
      return invalid_argument(where + "holds a control character; write plain text");
    }
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      return invalid_argument(where + quote(line) +
                              " is no setting; write name = value, such as port = 8000");
    }
    const std::string_view option = trimmed(line.substr(0, equals));
    if (option.empty()) return invalid_argument(where + "no name before the =; write name = value");
    if (option.starts_with('-')) {
      const std::string_view bare = option.substr(std::min(option.find_first_not_of('-'), option.size()));
      return invalid_argument(where + "names stand here without dashes; write " + escape(bare) + " = ...");
    }
    file.entries.push_back({.line = number,
                            .name = std::string(option),
                            .value = std::string(unquoted(trimmed(line.substr(equals + 1))))});
  }
  return file;
}

Result<ConfigFile> read_config(const std::filesystem::path& path) {
  const Result<std::string> text = read_file(path, kMaxBytes);
  if (!text.ok()) {
    return invalid_argument("--config: " + text.status().message() +
                            "; give a file of lines such as port = 8000");
  }
  return parse_config(escape(path.native()), *text);
}

Status apply_config(const ConfigFile& file, std::span<const OptionSpec> options,
                    std::span<const OptionSpec> known) {
  std::vector<GivenEntry> given;
  for (const ConfigEntry& entry : file.entries) {
    const OptionSpec* const option = find_named(entry.name, options);
    if (option == nullptr) {
      if (find_named(entry.name, known) == nullptr) {
        return unknown_name(place(file, entry.line), entry.name, known);
      }
      continue;
    }
    auto at = std::ranges::find(given, option, &GivenEntry::option);
    if (at == given.end()) at = given.insert(at, {.option = option, .last = nullptr, .values = {}});
    at->last = &entry;
    at->values.push_back(entry.value);
  }
  for (const GivenEntry& each : given) {
    const std::string where = place(file, each.last->line) + each.last->name + " " + quote(each.last->value);
    NIBBLE_RETURN_IF_ERROR(each.option->set(each.values).with_context(where));
  }
  return {};
}

}  // namespace nibble
