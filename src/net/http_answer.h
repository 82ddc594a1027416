// Reading a server's answers: HTTP/1.1 framing, and the events of a stream. Bytes in as they come, without
// sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace nibble {

class HttpAnswer {
 public:
  using OnBody = std::function<void(std::string_view bytes)>;

  // The next bytes of the connection; what of them is body goes to `on_body`. A Status says what is no HTTP.
  // Bytes after a complete answer are an error: nobody asked for more.
  Status take(std::string_view bytes, const OnBody& on_body);
  // The server has closed the connection. Not ok when the answer is not whole.
  Status end();

  bool complete() const { return state_ == State::complete; }
  int status() const { return status_; }  // 0 before it is known
  // The value of the first header of this name, which is in lower case; nothing where there is none.
  std::optional<std::string_view> header(std::string_view name) const;
  bool keeps_alive() const { return keeps_alive_; }

 private:
  enum class State : std::uint8_t {
    head,
    body,
    until_close,
    chunk_size,
    chunk,
    chunk_end,
    trailers,
    complete
  };

  Status take_head();
  Status take_header(const std::string& name, std::string_view value);
  Status take_line(std::string_view line);
  bool next_line(std::string_view& bytes, bool& whole);

  State state_ = State::head;
  std::string held_;                                          // of a head or a line that is not whole
  std::vector<std::pair<std::string, std::string>> headers_;  // names in lower case
  std::optional<std::uint64_t> length_;                       // as Content-Length has it
  int interim_ = 0;                                           // answers of 1xx so far
  std::size_t trailers_ = 0;                                  // bytes of them so far
  std::uint64_t left_ = 0;                                    // of a body or a chunk
  int status_ = 0;
  bool keeps_alive_ = true;
};

// Server-sent events: gives the data of each.
class EventReader {
 public:
  // resource_exhausted when an event is larger than 16 MB.
  Status take(std::string_view bytes, const std::function<void(std::string_view data)>& on_event);

 private:
  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace nibble
