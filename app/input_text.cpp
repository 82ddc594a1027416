#include "app/input_text.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/file.h"
#include "base/quote.h"

namespace nibble {

Result<std::string> read_input_text(const std::string& path, Console& console) {
  if (path == "-") return read_stream(console.in, "standard input", max_input_bytes);
  const std::string remedy = "; give a file that can be read, or - for standard input";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return invalid_argument("cannot open " + quote(path) + ": " + std::strerror(errno) + remedy);
  Result<std::string> text = read_stream(file.get(), quote(path), max_input_bytes);
  if (!text.ok()) return invalid_argument(text.status().message() + remedy);
  return text;
}

}  // namespace nibble
