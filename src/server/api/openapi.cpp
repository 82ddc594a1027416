#include "server/api/openapi.h"

#include "base/json_writer.h"
#include "server/api/answer_schemas.h"
#include "server/api/request_fields.h"

namespace nibble::api {
namespace {

constexpr Schema small_requests[] = {
    {"TokenizeRequest",
     R"({"type":"object","anyOf":[{"required":["prompt"]},{"required":["messages"]}],"properties":{
      "prompt":{"type":["string","null"]},"messages":{"type":["array","null"],"minItems":1,"items":{"type":"object"}},
      "add_special_tokens":{"type":["boolean","null"]},"parse_special":{"type":["boolean","null"]},
      "chat_template_kwargs":{"type":["object","null"]},"return_token_strs":{"type":["boolean","null"]},"add_generation_prompt":{"type":["boolean","null"]},
      "continue_final_message":{"type":["boolean","null"]},"chat_template":{"type":["string","null"]},
      "model":{"type":["string","null"],"minLength":1}}})"},
    {"DetokenizeRequest", R"({"type":"object","required":["tokens"],"properties":{"tokens":{"type":"array",
      "items":{"type":"integer","minimum":0}}}})"},
};

// Everything an answer may be instead.
constexpr struct {
  std::string_view status, about;
  bool of_posts;
} errors[] = {
    {"400", "The request is at fault; `param` names the field.", false},
    {"401", "No key, or a wrong one.", false},
    {"403", "The Host is not this server's.", false},
    {"404", "There is no such path or model.", false},
    {"408", "The request came too slowly.", false},
    {"413", "The body is too large.", true},
    {"415", "The body is not plain JSON.", true},
    {"429", "The queue is full; see Retry-After.", true},
    {"500", "The engine failed at this request.", true},
    {"503", "Loading, going down, or the engine has stopped.", false},
};

// Schemas are written over several lines above and on one here.
std::string one_line(std::string_view json) {
  std::string text;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (json[i] != '\n') {
      text += json[i];
      continue;
    }
    while (i + 1 < json.size() && json[i + 1] == ' ') ++i;
  }
  return text;
}

void write_reference(JsonWriter& json, std::string_view schema) {
  const std::string path = "#/components/schemas/" + std::string(schema);
  json.key("schema").begin_object().member("$ref", std::string_view(path)).end_object();
}

void write_content(JsonWriter& json, std::string_view type, std::string_view schema) {
  json.key(type).begin_object();
  if (schema.empty()) {
    json.key("schema").begin_object().member("type", "string").end_object();
  } else {
    write_reference(json, schema);
  }
  json.end_object();
}

// What stands in the path, and behind its question mark.
void write_parameters(JsonWriter& json, const RouteInfo& route) {
  const std::size_t brace = route.path.find('{');
  if (brace == route.path.npos) return;
  const std::string_view name = route.path.substr(brace + 1, route.path.find('}') - brace - 1);
  json.key("parameters").begin_array().begin_object();
  json.member("name", name).member("in", "path").member("required", true);
  json.key("schema").begin_object().member("type", "string").end_object().end_object();
  for (const QueryParameter& parameter : route.query) {
    json.begin_object().member("name", parameter.name).member("in", "query");
    json.key("schema").raw(parameter.schema).end_object();
  }
  json.end_array();
}

void write_route(JsonWriter& json, const RouteInfo& route) {
  const std::string_view method = route.method == "GET" ? "get" : route.method == "POST" ? "post" : "delete";
  json.key(method).begin_object().member("summary", route.about);
  write_parameters(json, route);
  if (!route.body.empty()) {
    json.key("requestBody").begin_object().member("required", true).key("content").begin_object();
    write_content(json, "application/json", route.body);
    json.end_object().end_object();
  }
  json.key("responses").begin_object();
  json.key("200").begin_object().member("description", "Done.").key("content").begin_object();
  write_content(json, route.answer.empty() ? "text/plain" : "application/json", route.answer);
  // Events of the answer's chunks; this version of OpenAPI has no words for them.
  if (route.streams) json.key("text/event-stream").begin_object().end_object();
  json.end_object().end_object();
  for (const auto& error : errors) {
    if (error.of_posts && route.body.empty()) continue;
    json.key(error.status).begin_object().member("description", error.about).key("content").begin_object();
    write_content(json, "application/json",
                  route.answer == "Health" && error.status == "503" ? "Health"
                  : route.path.starts_with("/v1/messages")          ? "MessageError"
                                                                    : "Error");
    json.end_object().end_object();
  }
  json.end_object().end_object();
}

}  // namespace

std::string openapi_description(std::span<const RouteInfo> routes, std::string_view version) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("openapi", "3.1.0").key("info").begin_object();
  json.member("title", "nibble").member("version", version);
  json.member("description",
              "The OpenAI API as nibble serves it. Fields that are not listed are ignored and named in the "
              "header X-Nibble-Ignored; null is as if a field were absent.");
  json.end_object().key("paths").begin_object();
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const bool first = i == 0 || routes[i - 1].path != routes[i].path;
    const bool last = i + 1 == routes.size() || routes[i + 1].path != routes[i].path;
    if (first) json.key(routes[i].path).begin_object();
    write_route(json, routes[i]);
    if (last) json.end_object();
  }
  json.end_object().key("components").begin_object().key("schemas").begin_object();
  json.key("ChatCompletionRequest");
  write_request_schema(Endpoint::chat, json);
  json.key("CompletionRequest");
  write_request_schema(Endpoint::completions, json);
  json.key("ResponseRequest");
  write_request_schema(Endpoint::responses, json);
  json.key("MessageRequest");
  write_request_schema(Endpoint::messages, json);
  json.key("MessageCountRequest");
  write_request_schema(Endpoint::messages, json, RequestUse::count);
  for (const Schema& schema : small_requests) json.key(schema.name).raw(one_line(schema.json));
  for (const Schema& schema : answer_schemas()) json.key(schema.name).raw(one_line(schema.json));
  json.end_object().key("securitySchemes").begin_object().key("key").begin_object();
  json.member("type", "http").member("scheme", "bearer").end_object().end_object();
  json.end_object().end_object();
  return text;
}

}  // namespace nibble::api
