// The "byte level" alphabet of GPT-2: each byte is written as one printable character, so that a vocabulary
// of bytes can be kept as JSON strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// Appends the bytes that `token` (valid UTF-8) stands for; false if it has a character outside the alphabet,
// and `bytes` is then as before.
bool append_byte_level(std::string_view token, std::string& bytes);

}  // namespace nibble
