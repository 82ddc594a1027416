// A small text file, whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace nibble {

// Refuses a file larger than max_bytes before reading it, and what is not a regular file.
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace nibble
