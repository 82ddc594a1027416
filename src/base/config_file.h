// Options read from a file of `name = value` lines, in the option names of the command line:
//
//   # comment
//   model = openai/gpt-oss-20b
//   max-model-len = 32768
//   log-json = true
//
// A name stands without its dashes; a switch takes true or false. Spaces around name and value are not part
// of them, and neither is one pair of double quotes around a value. A comment has a line of its own, since a
// value may hold a #. An option that may be given several times takes one line a value. Every error names
// file and line.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "base/status.h"

namespace nibble {

struct ConfigEntry {
  int line = 0;
  std::string name;
  std::string value;
};

struct ConfigFile {
  std::string name;  // for errors
  std::vector<ConfigEntry> entries;
};

Result<ConfigFile> parse_config(std::string name, std::string_view text);
Result<ConfigFile> read_config(const std::filesystem::path& path);

// Sets the options that the file names. As with the environment, an option of another command (`known` has
// those of all) is no error and sets nothing, so that one file serves several commands.
Status apply_config(const ConfigFile& file, std::span<const OptionSpec> options,
                    std::span<const OptionSpec> known);

}  // namespace nibble
