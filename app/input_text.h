// The text that a command reads: a file that the user named, or standard input.
#pragma once

#include <cstddef>
#include <string>

#include "app/cli.h"
#include "base/status.h"

namespace nibble {

inline constexpr std::size_t max_input_bytes = std::size_t{1} << 30;

// The whole file (a pipe may be one, as in `--file <(...)`), or what is on standard input for "-".
Result<std::string> read_input_text(const std::string& path, Console& console);

}  // namespace nibble
