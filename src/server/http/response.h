// An answer's head as bytes. Names and values are the server's own or were checked by it: nothing a client
// sent reaches them unchecked.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::http {

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> fields;
  std::string body;
};

std::string_view reason_phrase(int status);

// How a reader finds the body's end; `none`: the status says that there is no body.
enum class Ending : std::uint8_t { length, chunked, close, none };

// The head of a response up to and with its empty line. `content_length` counts for Ending::length alone.
std::string response_head(const Response& response, Ending ending, std::uint64_t content_length,
                          bool keep_alive);

// One chunk of a chunked body; `data` is not empty, for an empty one would end it.
std::string chunk(std::string_view data);
inline constexpr std::string_view last_chunk = "0\r\n\r\n";

// A date as fields have it: "Sun, 06 Nov 1994 08:49:37 GMT".
std::string date_text(std::chrono::sys_seconds date);

// May stand in a field: a token as name, and no control character in the value.
bool is_field(std::string_view name, std::string_view value);

}  // namespace nibble::http
