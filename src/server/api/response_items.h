// The `input` of /v1/responses: a text, or items of a conversation.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/field_reader.h"
#include "text/conversation.h"

namespace nibble::api {

// An item of an earlier response's output, by its id.
using ItemLookup = std::function<std::optional<JsonValue>(std::string_view id)>;

// `told`: each item's JSON as /input_items tells it, with an id.
Refused read_input_items(const std::string& field, JsonValue value, std::vector<Message>& messages,
                         std::vector<std::string>& told, const ItemLookup& lookup);

// Of an item's id: the response that it belongs to. Nothing: no response here has such items.
std::optional<std::string> response_of_item(std::string_view item_id);
// The items that an input refers to, each by its id.
std::vector<std::string> referred_items(JsonValue input);

}  // namespace nibble::api
