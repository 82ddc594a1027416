#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/quote.h"

namespace nibble {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

Status failed(std::string_view verb, const std::string& name) {
  const int error = errno;
  const std::string message = "cannot " + std::string(verb) + " " + name + ": " + std::strerror(error);
  return error == ENOENT || error == ENOTDIR ? not_found(message) : io_error(message);
}

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const std::string name = quote(path.native());
  // Without O_NONBLOCK opening a named pipe would wait for a writer.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return failed("open", name);
  struct stat facts {};
  if (fstat(file.fd, &facts) != 0) return failed("stat", name);
  if (!S_ISREG(facts.st_mode)) return invalid_argument(name + " is not a regular file");
  const auto size = static_cast<std::size_t>(facts.st_size);
  if (size > max_bytes) {
    return invalid_argument(name + " has " + std::to_string(size) + " bytes; at most " +
                            std::to_string(max_bytes) + " are allowed");
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = read(file.fd, text.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", name);
    if (got == 0) {
      return io_error(name + " shrank from " + std::to_string(size) + " to " + std::to_string(done) +
                      " bytes while it was being read");
    }
    done += static_cast<std::size_t>(got);
  }
  return text;
}

Result<std::string> read_stream(std::FILE* stream, std::string_view name, std::size_t max_bytes) {
  std::string text;
  char chunk[1 << 16];
  while (const std::size_t got = std::fread(chunk, 1, sizeof chunk, stream)) {
    if (got > max_bytes - text.size()) {
      return invalid_argument(std::string(name) + " has more than the " + std::to_string(max_bytes) +
                              " bytes that are allowed");
    }
    text.append(chunk, got);
  }
  if (std::ferror(stream) != 0) return failed("read", std::string(name));
  return text;
}

}  // namespace nibble
