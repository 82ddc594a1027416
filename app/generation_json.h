// One result of `nibble generate --json` as its line. cli.md's shape: scripts and tests rely on it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/generation.h"

namespace nibble {

// A line of JSON with its newline. `prompt` is the text as given, rendered or decoded.
std::string generation_json_line(std::string_view case_name, std::string_view prompt,
                                 const GenerationInput& input, const GenerationResult& result);

}  // namespace nibble
