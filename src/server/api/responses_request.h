// What /v1/responses takes: items of OpenAI's newer API, read into the conversation that every endpoint
// shares.
#pragma once

#include <span>

#include "server/api/request_fields.h"

namespace nibble::api {

// The rows of its fields, those that are refused or have no effect among them.
std::span<const FieldRule> responses_fields();
// What holds between its fields.
Refused check_responses(const Reading& reading);

}  // namespace nibble::api
