// What /v1/messages takes: Anthropic's conversation of content blocks, read into the one that every endpoint
// shares.
#pragma once

#include <span>

#include "server/api/request_fields.h"

namespace nibble::api {

// The rows of its fields, those that are refused or have no effect among them.
std::span<const FieldRule> messages_fields();
// What holds between its fields.
Refused check_messages(const Reading& reading);

}  // namespace nibble::api
