// Names of requests: ours, which nobody can guess, and what a client may have called its own.
#pragma once

#include <string>
#include <string_view>

namespace nibble::api {

// 128 random bits as 32 hexadecimal digits.
std::string new_request_id();

// Whether a client's X-Request-Id may be sent back: 1 to 256 visible ASCII characters.
bool may_echo(std::string_view id);

}  // namespace nibble::api
