// Shell completions, written from the same tables that the command line is read by.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "app/cli.h"
#include "base/status.h"

namespace nibble {

// The script that teaches bash, zsh or fish the commands and their options.
Result<std::string> completion_script(std::string_view shell, std::span<const Command* const> commands);

}  // namespace nibble
