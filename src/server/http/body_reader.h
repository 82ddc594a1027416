// The body of a request, taken from the bytes as they arrive. Nothing beyond the body is consumed, so what
// follows it is the next request's head.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/request_head.h"

namespace nibble::http {

class BodyReader {
 public:
  // Refuses a body that is announced as larger than `most_bytes` before any of it is read. What is not kept
  // is read to its end and forgotten: its sender may get an answer that does not depend on it.
  static std::variant<BodyReader, Refusal> start(const RequestHead& head, std::uint64_t most_bytes,
                                                 bool keep = true);

  // Takes what it can from the front of `bytes` and returns how much that was; 0 when it needs more than
  // there is. Once complete() it takes nothing.
  std::variant<std::size_t, Refusal> take(std::string_view bytes);
  bool complete() const { return state_ == State::complete; }
  const std::string& body() const { return body_; }
  std::string release() { return std::move(body_); }

 private:
  enum class State : std::uint8_t { data, chunk_size, chunk_data, chunk_end, trailer, complete };

  BodyReader(State state, std::uint64_t left, std::uint64_t most_bytes, bool keep)
      : state_(state), keep_(keep), left_(left), most_bytes_(most_bytes) {}
  std::optional<Refusal> begin_chunk(std::string_view line);

  State state_;
  bool keep_;
  std::uint64_t left_;  // of the body or of this chunk
  std::uint64_t most_bytes_;
  std::uint64_t taken_ = 0;  // of the body, kept or not
  std::size_t trailer_bytes_ = 0;
  std::string body_;
};

}  // namespace nibble::http
