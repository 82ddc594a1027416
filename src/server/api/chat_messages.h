// The `messages` of a chat request: text in, structs out. Parts that are no text are
// refused by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/field_reader.h"
#include "text/conversation.h"

namespace nibble::api {

Refused read_messages(JsonValue value, std::vector<Message>& messages);
// A message's content: null, a text, or parts of text, which are joined.
Refused read_content(const std::string& field, JsonValue value, std::optional<std::string>& content);

}  // namespace nibble::api
