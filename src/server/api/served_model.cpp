#include "server/api/served_model.h"

#include <ctime>

#include "base/json_writer.h"

namespace nibble::api {
namespace {

// As RFC 3339 has it.
std::string time_text(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  char text[32] = "";
  if (gmtime_r(&time, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

std::string ServedModel::openai_json(bool listed) const {
  std::string body;
  JsonWriter json(body);
  if (listed) json.begin_object().member("object", "list").key("data").begin_array();
  json.begin_object()
      .member("id", name)
      .member("object", "model")
      .member("created", created)
      .member("owned_by", "nibble")
      .member("max_model_len", max_model_len)
      .end_object();
  if (listed) json.end_array().end_object();
  return body;
}

std::string ServedModel::anthropic_json(bool listed) const {
  std::string body;
  JsonWriter json(body);
  if (listed) json.begin_object().key("data").begin_array();
  json.begin_object()
      .member("type", "model")
      .member("id", name)
      .member("display_name", name)
      .member("created_at", time_text(created))
      .member("lifecycle", "active")
      .member("max_input_tokens", max_model_len)
      .member("max_tokens", max_model_len)
      .end_object();
  if (listed)
    json.end_array().member("has_more", false).member("first_id", name).member("last_id", name).end_object();
  return body;
}

}  // namespace nibble::api
