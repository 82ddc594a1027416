#include "checkpoint/text_file.h"

#include "base/quote.h"
#include "checkpoint/mapped_file.h"

namespace nibble {

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  NIBBLE_ASSIGN(const MappedFile file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > max_bytes) {
    return broken_model(quote(path.native()) + " has " + std::to_string(bytes.size()) + " bytes; at most " +
                        std::to_string(max_bytes) + " are allowed");
  }
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  NIBBLE_RETURN_IF_ERROR(file.intact());
  return text;
}

}  // namespace nibble
