// The fields by which a client offers tools, and messages of and about calls.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/generation_request.h"
#include "text/conversation.h"

namespace nibble::api {

// [{"type":"function","function":{"name", "description"?, "parameters"?, "strict"?}}, ...]
Refused read_tools(const std::string& field, JsonValue value, ToolUse& use);
// "auto", "none"; what would have to force a call is refused.
Refused read_tool_choice(const std::string& field, JsonValue value, ToolUse& use);
// An assistant's: [{"id", "type":"function", "function":{"name", "arguments"}}, ...]
Refused read_tool_calls(const std::string& field, JsonValue value, std::vector<ToolCall>& calls);

}  // namespace nibble::api
