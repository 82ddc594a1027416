// The `messages` of a chat request: text in, structs out. Parts that are no text are
// refused by name.
#pragma once

#include <vector>

#include "server/api/field_reader.h"
#include "text/conversation.h"

namespace nibble::api {

Refused read_messages(JsonValue value, std::vector<Message>& messages);

}  // namespace nibble::api
