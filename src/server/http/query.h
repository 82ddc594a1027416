// A request's query: pairs of names and values between ampersands.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble::http {

// The value of the first parameter of that name, its escapes decoded; nothing: there is none. What is no
// escape stands as it was sent.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

}  // namespace nibble::http
