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
// `schema`: the member with the parameters' JSON schema. Notes in `use` whether that is to be held to.
Refused check_function(const std::string& where, JsonValue function, std::string_view schema, ToolUse& use);
// Of {"mode", "tools"}: the only tools that may be called. `name_at`: the member of a tool that has its name;
// empty: the tool itself.
Refused read_allowed_tools(const std::string& field, JsonValue value, std::string_view name_at, ToolUse& use);

// What must hold between a request's tools, its choice among them and its other fields.
Refused check_tool_choice(const GenerationRequest& request);

inline constexpr FieldType tools_type = other(
    R"({"anyOf":[{"enum":[{},"",false]},{"type":"array","maxItems":512,"items":{"type":"object",)"
    R"("required":["type","function"],"properties":{"type":{"const":"function"},"function":{"type":"object",)"
    R"("required":["name"],"properties":{"name":{"type":"string","pattern":"^[a-zA-Z0-9_.-]{1,128}$"},)"
    R"("description":{"type":["string","null"]},"parameters":{"type":["object","null"]},)"
    R"("strict":{"type":["boolean","null"]}}}}}}]})");
inline constexpr FieldType tool_choice_type = other(
    R"({"anyOf":[{"enum":["none","auto","required"]},{"type":"object","required":["type","function"],"properties":{)"
    R"("type":{"const":"function"},"function":{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}}},)"
    R"({"type":"object","required":["type","allowed_tools"],"properties":{"type":{"const":"allowed_tools"},)"
    R"("allowed_tools":{"type":"object","required":["mode","tools"],"properties":{"mode":{"enum":["auto","required"]},)"
    R"("tools":{"type":"array","minItems":1,"items":{"type":"object"}}}}}}]})");

// The `tool_calls` of an assistant's message.
Refused read_tool_calls(const std::string& field, JsonValue value, std::vector<ToolCall>& calls);

}  // namespace nibble::api
