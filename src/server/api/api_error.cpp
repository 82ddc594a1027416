#include "server/api/api_error.h"

#include "base/json_writer.h"
#include "base/utf8.h"

namespace nibble::api {
namespace {

void member_or_null(JsonWriter& json, std::string_view name, const std::string& text) {
  json.key(name);
  text.empty() ? json.null() : json.value(std::string_view(text));
}

std::string_view shown_message(const std::string& message) {
  std::string_view shown = message;
  if (shown.size() > most_error_message_bytes) {
    shown = shown.substr(0, most_error_message_bytes);
    while (!shown.empty() && (static_cast<unsigned char>(message[shown.size()]) & 0xC0) == 0x80)
      shown.remove_suffix(1);
  }
  return shown;
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 500: return "api_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return "invalid_request_error";
  }
}

}  // namespace

bool speaks_anthropic(std::string_view path) {
  constexpr std::string_view messages = "/v1/messages";
  return path.starts_with(messages) && (path.size() == messages.size() || path[messages.size()] == '/');
}

std::string error_body(std::string_view path, const ApiError& error) {
  return speaks_anthropic(path) ? error.anthropic_json() : error.json();
}

std::string ApiError::anthropic_json() const {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("type", "error").key("error").begin_object();
  json.member("type", anthropic_type(status)).member("message", shown_message(message));
  if (!code.empty()) json.key("details").begin_object().member("error_code", code).end_object();
  json.end_object().end_object();
  return text;
}

std::string ApiError::json() const {
  const std::string_view shown = shown_message(message);
  std::string text;
  JsonWriter json(text);
  json.begin_object()
      .key("error")
      .begin_object()
      .member("message", shown)
      .member("type", std::string_view(type));
  member_or_null(json, "param", param);
  member_or_null(json, "code", code);
  json.end_object().end_object();
  return text;
}

ApiError bad_field(std::string field, std::string_view message) {
  std::string text = field;
  text += message;
  return {.message = std::move(text), .param = std::move(field)};
}

ApiError bad_request(std::string message, std::string code) {
  return {.message = std::move(message), .code = std::move(code)};
}

}  // namespace nibble::api
