#include "checkpoint/text_file.h"

#include "base/file.h"

namespace nibble {

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  Result<std::string> text = read_file(path, max_bytes);
  if (text.ok() || text.status().code() != StatusCode::invalid_argument) return text;
  return broken_model(text.status().message());
}

}  // namespace nibble
