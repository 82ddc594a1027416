// Tools in the forms of other endpoints, written as the array that chat templates know.
#pragma once

#include <string>

#include "server/api/field_reader.h"
#include "server/api/generation_request.h"

namespace nibble::api {

// Where a tool of an endpoint's own form keeps what every tool has.
struct ToolForm {
  std::string_view schema;    // the member with the parameters' JSON schema
  std::string_view own_type;  // the type of a tool that the client runs itself
  bool type_may_be_absent = false;
};
inline constexpr ToolForm responses_tools{.schema = "parameters", .own_type = "function"};
inline constexpr ToolForm messages_tools{
    .schema = "input_schema", .own_type = "custom", .type_may_be_absent = true};

// `field` is the array's name. Tools that a server would have to run are refused by their type.
Refused read_tools(const std::string& field, JsonValue value, const ToolForm& form, ToolUse& use);

}  // namespace nibble::api
