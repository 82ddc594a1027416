// A TCP connection between two processes of a world, or the place where one waits for connections.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"

namespace nibble {

struct LinkAddress {
  std::string host;  // a name or a number
  int port = 0;      // 0: any that is free

  // "host:port", "[::1]:port".
  static Result<LinkAddress> parse(const std::string& text);
  std::string text() const;
  // Whether it is reached from this machine alone.
  bool is_loopback() const;
  bool operator==(const LinkAddress&) const = default;
};

class LinkSocket {
 public:
  using Clock = std::chrono::steady_clock;

  LinkSocket() = default;
  LinkSocket(LinkSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  LinkSocket& operator=(LinkSocket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~LinkSocket();

  static Result<LinkSocket> listen(const LinkAddress& at);
  // The next connection; cancelled where none comes until then.
  Result<LinkSocket> accept(Clock::time_point until) const;
  // Tries again until then, as the other may not listen yet.
  static Result<LinkSocket> connect(const LinkAddress& to, Clock::time_point until);

  bool is_open() const { return descriptor_ >= 0; }
  // Of its own end.
  Result<LinkAddress> address() const;
  // How long a single send or receive may wait; 0: as long as it takes.
  void limit_sends(std::chrono::milliseconds limit) const;
  void limit_receives(std::chrono::milliseconds limit) const;

  // All of both, one behind the other.
  Status send(std::span<const std::byte> head, std::span<const std::byte> body = {}) const;
  // As much as there is room for; cancelled where the other has closed its end.
  Status receive(std::span<std::byte> into) const;
  // Both ends find it closed; any thread may call it.
  void shut_down() const;

 private:
  explicit LinkSocket(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace nibble
