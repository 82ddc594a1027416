// Which process has a file mapped, as far as this user may see.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

// "python3 (process 1234)" of the first process that maps one of the files; nothing where none is seen to.
std::optional<std::string> process_that_maps(const std::vector<std::filesystem::path>& files);

}  // namespace nibble
