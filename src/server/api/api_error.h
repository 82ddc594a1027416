// What the API answers when it does not do what was asked: OpenAI's error object, always with all four keys.
#pragma once

#include <string>
#include <string_view>

namespace nibble::api {

inline constexpr std::size_t most_error_message_bytes = 1000;

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::string param;  // begins with the name of the field at fault; empty: null
  std::string code;   // empty: null

  std::string json() const;            // as OpenAI has it
  std::string anthropic_json() const;  // as Anthropic has it; the code stands in its details
};

// In the form of the API that has the path.
// Whether the path is one of Anthropic's API.
bool speaks_anthropic(std::string_view path);
std::string error_body(std::string_view path, const ApiError& error);

// `message` goes on after the field's name: "temperature" + " must be a number".
ApiError bad_field(std::string field, std::string_view message);
ApiError bad_request(std::string message, std::string code = {});

}  // namespace nibble::api
