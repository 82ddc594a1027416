#include "server/api/response_items.h"

#include "base/json_copy.h"
#include "base/quote.h"
#include "server/api/reasoning_text.h"
#include "server/api/request_id.h"

namespace nibble::api {
namespace {

// An id alone is one too.
bool is_reference(JsonValue item) {
  if (!item.is_object()) return false;
  const auto type = item.find("type");
  if (type && type->is_string()) return type->as_string() == "item_reference";
  return (!type || type->is_null()) && item.find("id") && !item.find("role");
}

// Reads one list of items into messages. Reasoning belongs to the assistant's message or call behind it, and
// calls that follow each other to one message.
class ItemReader {
 public:
  ItemReader(std::vector<Message>& messages, const ItemLookup& lookup)
      : messages_(messages), lookup_(lookup) {}

  // `item` becomes what it refers to, where it is a reference.
  Refused read(const std::string& where, JsonValue& item) {
    if (!item.is_object()) return bad_field(where, " must be an object");
    std::string type = "message";
    if (const auto named = item.find("type"); named && !named->is_null()) {
      if (Refused refused = read_text(where + ".type", *named, type)) return refused;
    }
    if (is_reference(item)) {
      if (Refused refused = follow(where, item)) return refused;
      type = item.find("type")->as_string();
    }
    if (type == "message") return read_message(where, item);
    if (type == "function_call") return read_call(where, item);
    if (type == "function_call_output") return read_output(where, item);
    if (type == "reasoning") return read_reasoning(where, item);
    return bad_field(where + ".type", " " + quote(type) +
                                          " is not served; message, function_call, function_call_output, "
                                          "reasoning and item_reference are");
  }

 private:
  Refused follow(const std::string& where, JsonValue& item) {
    std::string id;
    if (Refused refused = member_text(where, item, "id", id)) return refused;
    const std::optional<JsonValue> found = lookup_(id);
    if (!found)
      return bad_field(
          where + ".id",
          " " + quote(id) + " names no item of a stored response's output; send the item itself");
    item = *found;
    return {};
  }

  static Refused member_text(const std::string& where, JsonValue item, std::string_view name,
                             std::string& text) {
    const auto member = item.find(name);
    const std::string field = where + "." + std::string(name);
    if (!member) return bad_field(field, " must be there");
    return read_text(field, *member, text);
  }

  // A text, or parts of text, joined.
  static Refused read_texts(const std::string& field, JsonValue value, std::string& text) {
    if (value.is_string()) {
      text += value.as_string();
      return {};
    }
    if (!value.is_array()) return bad_field(field, " must be a string or an array of text parts");
    int number = 0;
    for (const JsonValue part : value.elements()) {
      const std::string where = field + "[" + std::to_string(number++) + "]";
      const auto type = part.find("type");
      if (!type || !type->is_string()) return bad_field(where, " must be an object with a type");
      const std::string_view name = type->as_string();
      const bool known = name == "input_text" || name == "output_text" || name == "text" ||
                         name == "refusal" || name == "summary_text" || name == "reasoning_text";
      if (!known)
        return bad_field(where + ".type", " " + quote(name) + " is not served: this model reads text alone");
      std::string more;
      if (Refused refused = member_text(where, part, name == "refusal" ? "refusal" : "text", more))
        return refused;
      text += more;
    }
    return {};
  }

  Refused read_message(const std::string& where, JsonValue item) {
    const auto named = item.find("role");
    const auto role = named && named->is_string() ? parse_role(named->as_string()) : std::nullopt;
    if (!role || *role == Role::tool)
      return bad_field(where + ".role", " must be user, assistant, system or developer");
    const auto content = item.find("content");
    if (!content) return bad_field(where + ".content", " must be there");
    Message message{.role = *role, .content = ""};
    if (Refused refused = read_texts(where + ".content", *content, *message.content)) return refused;
    if (*role == Role::assistant) message.reasoning = std::exchange(reasoning_, {});
    messages_.push_back(std::move(message));
    return {};
  }

  Refused read_call(const std::string& where, JsonValue item) {
    ToolCall call;
    if (Refused refused = member_text(where, item, "call_id", call.id)) return refused;
    if (Refused refused = member_text(where, item, "name", call.name)) return refused;
    if (Refused refused = member_text(where, item, "arguments", call.arguments)) return refused;
    const bool goes_on = !messages_.empty() && messages_.back().role == Role::assistant && reasoning_.empty();
    if (!goes_on)
      messages_.push_back(
          {.role = Role::assistant, .content = {}, .reasoning = std::exchange(reasoning_, {})});
    messages_.back().tool_calls.push_back(std::move(call));
    return {};
  }

  Refused read_output(const std::string& where, JsonValue item) {
    Message message{.role = Role::tool, .content = ""};
    if (Refused refused = member_text(where, item, "call_id", message.tool_call_id)) return refused;
    const auto output = item.find("output");
    if (!output) return bad_field(where + ".output", " must be there");
    if (Refused refused = read_texts(where + ".output", *output, *message.content)) return refused;
    messages_.push_back(std::move(message));
    return {};
  }

  // The text itself where it is there, else what the client kept of it for us, else its summary.
  Refused read_reasoning(const std::string& where, JsonValue item) {
    std::string text;
    if (const auto content = item.find("content"); content && !content->is_null()) {
      if (Refused refused = read_texts(where + ".content", *content, text)) return refused;
    }
    const auto kept = item.find("encrypted_content");
    if (text.empty() && kept && !kept->is_null()) {
      std::string wrapped;
      if (Refused refused = read_text(where + ".encrypted_content", *kept, wrapped)) return refused;
      std::optional<std::string> unwrapped = unwrapped_reasoning(wrapped);
      if (!unwrapped) {
        return bad_field(where + ".encrypted_content",
                         " was not made by this server; leave the reasoning item out");
      }
      text = *std::move(unwrapped);
    }
    if (const auto summary = item.find("summary"); text.empty() && summary && !summary->is_null()) {
      if (Refused refused = read_texts(where + ".summary", *summary, text)) return refused;
    }
    reasoning_ += text;
    return {};
  }

  std::vector<Message>& messages_;
  const ItemLookup& lookup_;
  std::string reasoning_;  // that no message has yet
};

std::string_view id_prefix(JsonValue item) {
  const auto named = item.find("type");
  const std::string_view type = named && named->is_string() ? named->as_string() : "message";
  if (type == "function_call") return "fc_";
  if (type == "function_call_output") return "fco_";
  return type == "reasoning" ? "rs_" : "msg_";
}

// With an id, a type and, of a message, parts for its text, whatever of them the client left out.
std::string told_item(JsonValue item) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  const auto id = item.find("id");
  json.member("id", id && id->is_string() ? std::string(id->as_string())
                                          : std::string(id_prefix(item)) + new_request_id());
  const auto type = item.find("type");
  const bool message = !type || !type->is_string() || type->as_string() == "message";
  if (message) json.member("type", "message").member("status", "completed");
  const auto role = item.find("role");
  const bool assistant = role && role->is_string() && role->as_string() == "assistant";
  for (const auto& [name, value] : item.members()) {
    if (name == "id" || (message && (name == "type" || name == "status"))) continue;
    json.key(name);
    if (message && name == "content" && value.is_string()) {
      json.begin_array().begin_object();
      json.member("type", assistant ? "output_text" : "input_text").member("text", value.as_string());
      if (assistant) json.key("annotations").begin_array().end_array();
      json.end_object().end_array();
    } else {
      copy_json(value, json);
    }
  }
  json.end_object();
  return text;
}

std::string told_text(std::string_view input) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("id", "msg_" + new_request_id()).member("type", "message");
  json.member("status", "completed").member("role", "user").key("content").begin_array().begin_object();
  json.member("type", "input_text").member("text", input).end_object().end_array().end_object();
  return text;
}

}  // namespace

std::optional<std::string> response_of_item(std::string_view item_id) {
  const std::size_t begin = item_id.find('_'), end = item_id.rfind('_');
  if (begin == item_id.npos || begin == end) return {};
  return "resp_" + std::string(item_id.substr(begin + 1, end - begin - 1));
}

std::vector<std::string> referred_items(JsonValue input) {
  std::vector<std::string> ids;
  if (!input.is_array()) return ids;
  for (const JsonValue item : input.elements()) {
    if (!is_reference(item)) continue;
    if (const auto id = item.find("id"); id && id->is_string()) ids.emplace_back(id->as_string());
  }
  return ids;
}

Refused read_input_items(const std::string& field, JsonValue value, std::vector<Message>& messages,
                         std::vector<std::string>& told, const ItemLookup& lookup) {
  if (value.is_string()) {
    messages.push_back({.role = Role::user, .content = std::string(value.as_string())});
    told.push_back(told_text(value.as_string()));
    return {};
  }
  if (!value.is_array() || value.size() == 0)
    return bad_field(field, " must be a string or an array of at least one item");
  ItemReader reader(messages, lookup);
  int number = 0;
  for (JsonValue item : value.elements()) {
    if (Refused refused = reader.read(field + "[" + std::to_string(number++) + "]", item)) return refused;
    told.push_back(told_item(item));
  }
  return {};
}

}  // namespace nibble::api
