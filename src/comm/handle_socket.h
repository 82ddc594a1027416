// A connection between two processes of one host and one user that passes open files: memory of GPUs that
// several processes write travels so. Its name lies in no file system; the network namespace has it.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"

namespace nibble {

class HandleSocket {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t most_bytes = 256, most_files = 8;  // of a message

  HandleSocket() = default;

  static Result<HandleSocket> listen(const std::string& name);
  // The next process of this user; others are let go. Cancelled where none comes until then.
  Result<HandleSocket> accept(Clock::time_point until) const;
  // Tries again until then, as the other may not listen yet. Who listens there for another user is refused.
  static Result<HandleSocket> connect(const std::string& name, Clock::time_point until);
  bool is_open() const { return socket_.is_open(); }

  struct Message {
    std::vector<std::byte> bytes;
    std::vector<Descriptor> files;
  };
  // The files stay open here too.
  Status send(std::span<const std::byte> bytes, std::span<const int> files) const;
  // Cancelled where the other has closed its end.
  Result<Message> receive(Clock::time_point until) const;

 private:
  explicit HandleSocket(Descriptor socket) : socket_(std::move(socket)) {}

  Descriptor socket_;
};

}  // namespace nibble
