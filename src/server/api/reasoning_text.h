// Reasoning that a client keeps and brings back. Nothing is secret here, so what the API calls encrypted is
// the text itself, marked and in base64; the server keeps nothing of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble::api {

std::string wrapped_reasoning(std::string_view text);
// Nothing: it was not made by wrapped_reasoning().
std::optional<std::string> unwrapped_reasoning(std::string_view wrapped);

}  // namespace nibble::api
