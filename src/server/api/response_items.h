// The `input` of /v1/responses: a text, or items of a conversation.
#pragma once

#include <string>
#include <vector>

#include "server/api/field_reader.h"
#include "text/conversation.h"

namespace nibble::api {

// `told`: each item's JSON as /input_items tells it, with an id.
Refused read_input_items(const std::string& field, JsonValue value, std::vector<Message>& messages,
                         std::vector<std::string>& told);

}  // namespace nibble::api
