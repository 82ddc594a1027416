// A small text file of a model, whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace nibble {

// A model whose file is larger than max_bytes or no regular file is broken.
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace nibble
