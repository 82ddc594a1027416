// The server's description of itself in OpenAPI 3.1: its routes, the fields their bodies take
// (request_fields.h) and the shapes of its answers.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace nibble::api {

struct QueryParameter {
  std::string_view name;
  std::string_view schema;  // JSON
};

struct RouteInfo {
  std::string_view method;
  std::string_view path;  // a segment in braces stands for what is there, slashes included
  std::string_view about;
  std::string_view body = {};                  // the name of its schema; empty: none
  std::string_view answer = {};                // likewise; empty: text
  bool streams = false;                        // may answer with events instead
  std::span<const QueryParameter> query = {};  // of a path with a name in it

  // `escaped_slash`: where `asked` has its first slash that was sent as %2F. Only a name in braces may hold
  // one.
  bool matches(std::string_view asked, std::size_t escaped_slash = std::string_view::npos) const {
    const std::size_t brace = path.find('{');
    if (brace == path.npos) return asked == path && escaped_slash == path.npos;
    const std::string_view end = path.substr(path.find('}') + 1);
    return escaped_slash >= brace && asked.size() > brace + end.size() &&
           asked.substr(0, brace) == path.substr(0, brace) && asked.ends_with(end);
  }
};

std::string openapi_description(std::span<const RouteInfo> routes, std::string_view version);

}  // namespace nibble::api
