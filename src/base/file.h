// Reading whole files and streams of bounded size.
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"

namespace nibble {

// A regular file, read whole. One of more than max_bytes is refused before it is read (invalid_argument), and
// so is what is no regular file: a pipe would make us wait, a device might never end.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes);

// What is left of an open stream, such as standard input or a pipe that the user named; `name` is for errors.
Result<std::string> read_stream(std::FILE* stream, std::string_view name, std::size_t max_bytes);

}  // namespace nibble
