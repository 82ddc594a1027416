// The head of an HTTP/1.x request, read strictly. Whatever two readers of the protocol could understand
// differently is refused, for such a request can mean one thing to a proxy and another to us: bare line
// feeds, folded lines, space before a colon, repeated or listed lengths, codings other than `chunked`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::http {

struct HeadLimits {
  std::size_t bytes = 32 << 10;  // the whole head
  std::size_t target_bytes = 8 << 10;
  std::size_t value_bytes = 8 << 10;
  std::size_t fields = 100;
};

// Why a request is not served: the status, and a sentence for its sender that repeats none of its bytes.
struct Refusal {
  int status = 400;
  std::string message;
};

struct Field {
  std::string name;   // lower case
  std::string value;  // without the space around it
};

enum class BodyFraming : std::uint8_t { none, length, chunked };

struct RequestHead {
  std::string method;  // a token, known or not
  static constexpr std::size_t none = std::string::npos;

  std::string path;   // begins with '/'; escapes are decoded once, so it is UTF-8 without control characters
  std::string query;  // after '?', as sent
  // Where the path has its first slash that was sent as %2F, or none. Such a slash belongs to a name and
  // separates no segments; proxies tell the two apart, so a route must too.
  std::size_t escaped_slash = none;
  int minor_version = 1;
  std::string host;  // with its port, as sent; empty only from an HTTP/1.0 client
  std::vector<Field> fields;
  BodyFraming framing = BodyFraming::none;
  std::uint64_t content_length = 0;
  bool keep_alive = true;
  bool expects_continue = false;
  std::string client;  // the sender's address, which the connection knows; empty where there is none

  // The value of a field that was sent once, by its lower-case name; nothing if it is absent or repeated.
  std::optional<std::string_view> field(std::string_view name) const;
  int count(std::string_view name) const;
};

// Where the head ends in what has arrived: one past the empty line, or nothing while that is to come. Empty
// lines before a request line belong to no request and are counted in `begin`.
struct HeadExtent {
  std::size_t begin = 0;
  std::size_t end = 0;
};
std::variant<HeadExtent, Refusal, std::monostate> find_head(std::string_view bytes, const HeadLimits& limits);

// `head` is one whole head with its empty line.
std::variant<RequestHead, Refusal> parse_head(std::string_view head, const HeadLimits& limits);

// What methods, names of fields and the like are made of.
bool is_token(std::string_view text);
// A whole line, without its end: name, colon, value, each of the characters it may have.
bool is_field_line(std::string_view line);

}  // namespace nibble::http
