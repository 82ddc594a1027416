// A port that is listened on. It exists before the server that accepts from it, so that a parent can hold it
// while the processes that serve come and go.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace nibble::http {

class ListeningSocket {
 public:
  // Port 0 takes any free one. A port in use is a Status that says so.
  static Result<ListeningSocket> open(const std::string& host, int port);

  ListeningSocket(ListeningSocket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  ListeningSocket& operator=(ListeningSocket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~ListeningSocket();

  int port() const;
  bool is_ipv6() const;
  int release() { return std::exchange(handle_, -1); }

 private:
  explicit ListeningSocket(int handle) : handle_(handle) {}

  int handle_;
};

}  // namespace nibble::http
