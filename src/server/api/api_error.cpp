#include "server/api/api_error.h"

#include "base/json_writer.h"
#include "base/utf8.h"

namespace nibble::api {
namespace {

void member_or_null(JsonWriter& json, std::string_view name, const std::string& text) {
  json.key(name);
  text.empty() ? json.null() : json.value(std::string_view(text));
}

}  // namespace

std::string ApiError::json() const {
  std::string_view shown = message;
  if (shown.size() > most_error_message_bytes) {
    shown = shown.substr(0, most_error_message_bytes);
    while (!shown.empty() && (static_cast<unsigned char>(message[shown.size()]) & 0xC0) == 0x80)
      shown.remove_suffix(1);
  }
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
