// The fields by which a chat offers tools, the calls that its messages tell of, and what holds of a function
// whichever endpoint's form it comes in.
#pragma once

#include <string>
#include <vector>

#include "server/api/field_rules.h"
#include "text/conversation.h"

namespace nibble::api {

Refused take_tools(Reading& reading, const std::string& field, const FieldValue& value);
Refused take_tool_choice(Reading& reading, const std::string& field, const FieldValue& value);
Refused take_parallel_tool_calls(Reading& reading, const std::string& field, const FieldValue& value);

inline constexpr std::size_t most_tools = 512;
// `schema`: the member with the parameters' JSON schema.
Refused check_function(const std::string& where, JsonValue function, std::string_view schema);

inline constexpr FieldType tools_type = other(
    R"({"anyOf":[{"enum":[{},"",false]},{"type":"array","maxItems":512,"items":{"type":"object",)"
    R"("required":["type","function"],"properties":{"type":{"const":"function"},"function":{"type":"object",)"
    R"("required":["name"],"properties":{"name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,128}$"},)"
    R"("description":{"type":["string","null"]},"parameters":{"type":["object","null"]},)"
    R"("strict":{"enum":[false,null]}}}}}}]})");
inline constexpr FieldType tool_choice_type = other(R"({"enum":["none","auto"]})");

// The `tool_calls` of an assistant's message.
Refused read_tool_calls(const std::string& field, JsonValue value, std::vector<ToolCall>& calls);

}  // namespace nibble::api
