// Which web pages' scripts may send requests and read answers: the server's side of CORS (the Fetch
// standard).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/http/request_head.h"
#include "server/http/response.h"

namespace nibble {

class AllowedOrigins {
 public:
  // As browsers write them: "https://host" or "https://host:port". "*" allows any.
  explicit AllowedOrigins(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {}

  // Adds what lets the page read this answer, errors included, if its origin is allowed.
  void mark(const http::RequestHead& head, http::Response& response) const;

  // The answer to a preflight from an allowed origin; nothing for any other request. The headers that the
  // page wants to send are allowed whatever their names, because clients add their own (x-stainless-*) and a
  // page that may ask gains nothing by one more header.
  std::optional<http::Response> preflight(const http::RequestHead& head) const;

 private:
  // The value of Access-Control-Allow-Origin; empty: not allowed.
  std::string match(const http::RequestHead& head) const;

  std::vector<std::string> allowed_;
};

}  // namespace nibble
