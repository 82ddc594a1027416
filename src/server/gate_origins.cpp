#include "server/gate_origins.h"

#include <algorithm>
#include <string_view>

namespace nibble {
namespace {

// Beyond these a script sees only a few fields of an answer, none of them ours.
constexpr std::string_view exposed_fields =
    "X-Request-Id, X-Nibble-Ignored, X-Should-Retry, Retry-After, Traceparent, Traceresponse";
constexpr std::string_view usual_request_fields =
    "anthropic-beta, anthropic-version, authorization, content-type, traceparent, x-api-key, x-request-id";
constexpr std::size_t most_request_fields_bytes = 4096;

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// The names in Access-Control-Request-Headers, or the usual ones if that is absent or no list of names.
std::string wanted_fields(const http::RequestHead& head) {
  std::string_view rest = head.field("access-control-request-headers").value_or("");
  if (rest.size() > most_request_fields_bytes) rest = {};
  std::string names;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view name = trimmed(rest.substr(0, comma));
    if (!http::is_token(name)) return std::string(usual_request_fields);
    if (!names.empty()) names += ", ";
    names += name;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return names.empty() ? std::string(usual_request_fields) : names;
}

}  // namespace

std::string AllowedOrigins::match(const http::RequestHead& head) const {
  const std::optional<std::string_view> origin = head.field("origin");
  if (!origin) return {};
  for (const std::string& allowed : allowed_) {
    if (allowed == "*" || allowed == *origin) return allowed;
  }
  return {};
}

void AllowedOrigins::mark(const http::RequestHead& head, http::Response& response) const {
  if (allowed_.empty()) return;
  response.fields.emplace_back("Vary", "Origin");
  std::string origin = match(head);
  if (origin.empty()) return;
  response.fields.emplace_back("Access-Control-Allow-Origin", std::move(origin));
  response.fields.emplace_back("Access-Control-Expose-Headers", exposed_fields);
}

std::optional<http::Response> AllowedOrigins::preflight(const http::RequestHead& head) const {
  if (head.method != "OPTIONS" || head.count("access-control-request-method") == 0) return {};
  std::string origin = match(head);
  if (origin.empty()) return {};
  http::Response response{
      .status = 204,
      .content_type = "",
      .fields = {{"Access-Control-Allow-Origin", std::move(origin)},
                 {"Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS"},
                 {"Access-Control-Allow-Headers", wanted_fields(head)},
                 {"Access-Control-Max-Age", "600"},
                 {"Vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Private-Network"}}};
  // Asked by a browser whose page comes from a public address, of a server at a private one.
  if (head.field("access-control-request-private-network") == "true")
    response.fields.emplace_back("Access-Control-Allow-Private-Network", "true");
  return response;
}

}  // namespace nibble
