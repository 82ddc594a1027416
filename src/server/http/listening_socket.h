// Where a server listens: a TCP port, or a Unix socket. It exists before the server that accepts from it, so
// that a parent can hold it while the processes that serve come and go.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "base/status.h"

namespace nibble::http {

// A Unix socket is written "unix:/path".
bool is_unix_host(const std::string& host);

// The file of a Unix socket. Whoever outlives all processes that accept from the socket removes it.
struct SocketFile {
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;

  // Unless another file has taken its place.
  void remove() const;
};

class ListeningSocket {
 public:
  // Port 0 takes any free one; it does not count for a Unix socket. A port or a file in use is a Status that
  // says so. The file of a Unix socket gets `mode`; one that nobody listens on any more is replaced.
  static Result<ListeningSocket> open(const std::string& host, int port, mode_t mode = 0600);

  ListeningSocket(ListeningSocket&& other) noexcept
      : handle_(std::exchange(other.handle_, -1)), file_(std::move(other.file_)) {}
  ListeningSocket& operator=(ListeningSocket&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~ListeningSocket();

  int port() const;  // 0 of a Unix socket
  int family() const;
  const std::optional<SocketFile>& file() const { return file_; }
  int release() { return std::exchange(handle_, -1); }

 private:
  explicit ListeningSocket(int handle) : handle_(handle) {}
  static Result<ListeningSocket> open_file(const std::string& path, mode_t mode);

  int handle_;
  std::optional<SocketFile> file_;
};

}  // namespace nibble::http
