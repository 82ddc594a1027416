#include "server/api/openapi.h"

#include "base/json_writer.h"
#include "server/api/request_fields.h"

namespace nibble::api {
namespace {

struct Schema {
  std::string_view name;
  std::string_view json;
};

// What is answered, member for member; the tests hold live answers against it.
constexpr Schema answers[] = {
    {"Error", R"({"type":"object","required":["error"],"additionalProperties":false,"properties":{"error":{
      "type":"object","required":["message","type","param","code"],"additionalProperties":false,"properties":{
      "message":{"type":"string","maxLength":1000},"type":{"type":"string"},"param":{"type":["string","null"]},
      "code":{"type":["string","null"]}}}}})"},
    {"Health", R"({"type":"object","required":["status"],"properties":{"status":{"type":"string"}}})"},
    {"Version", R"({"type":"object","required":["version"],"properties":{"version":{"type":"string"}}})"},
    {"Description", R"({"type":"object","required":["openapi","paths"]})"},
    {"Live", R"({"type":"object","additionalProperties":{"type":"integer","minimum":0}})"},
    {"Plan", R"({"type":"object","required":["choices"],"properties":{"choices":{"type":"array","items":{
      "type":"object","required":["field","value","from","why","rejected"]}}}})"},
    {"Model", R"({"type":"object","required":["id","object","created","owned_by","max_model_len"],
      "properties":{"id":{"type":"string"},"object":{"const":"model"},"created":{"type":"integer"},
      "owned_by":{"type":"string"},"max_model_len":{"type":"integer","minimum":1}}})"},
    {"ModelList", R"({"type":"object","required":["object","data"],"properties":{"object":{"const":"list"},
      "data":{"type":"array","items":{"$ref":"#/components/schemas/Model"}}}})"},
    {"Tokens", R"({"type":"object","required":["count","tokens","max_model_len"],"additionalProperties":false,
      "properties":{"count":{"type":"integer","minimum":0},"tokens":{"type":"array","items":{"type":"integer"}},
      "token_strs":{"type":"array","items":{"type":"string"}},"max_model_len":{"type":"integer"}}})"},
    {"TokenizerInfo", R"({"type":"object","required":["tokenizer_class"],"properties":{
      "tokenizer_class":{"type":"string"},"chat_template":{"type":["string","array","null"]}}})"},
    {"Text", R"({"type":"object","required":["prompt"],"additionalProperties":false,
      "properties":{"prompt":{"type":"string"}}})"},
    {"Usage", R"({"type":"object","additionalProperties":false,
      "required":["prompt_tokens","completion_tokens","total_tokens","prompt_tokens_details","completion_tokens_details"],
      "properties":{"prompt_tokens":{"type":"integer","minimum":1},"completion_tokens":{"type":"integer","minimum":0},
      "total_tokens":{"type":"integer","minimum":1},"prompt_tokens_details":{"type":"object","required":["cached_tokens"],
      "additionalProperties":false,"properties":{"cached_tokens":{"type":"integer","minimum":0}}},
      "completion_tokens_details":{"type":"object","required":["reasoning_tokens"],"additionalProperties":false,
      "properties":{"reasoning_tokens":{"type":"integer","minimum":0}}}}})"},
    {"TokenLogprob", R"({"type":"object","additionalProperties":false,"required":["token","logprob","bytes"],
      "properties":{"token":{"type":"string"},"logprob":{"type":"number","maximum":0},
      "bytes":{"type":"array","items":{"type":"integer","minimum":0,"maximum":255}},
      "top_logprobs":{"type":"array","maxItems":20,"items":{"$ref":"#/components/schemas/TokenLogprob"}}}})"},
    {"ChatCompletion", R"({"type":"object","additionalProperties":false,
      "required":["id","object","created","model","choices","usage"],"properties":{
      "id":{"type":"string","pattern":"^chatcmpl-[0-9a-f]{32}$"},"object":{"const":"chat.completion"},
      "created":{"type":"integer"},"model":{"type":"string"},"usage":{"$ref":"#/components/schemas/Usage"},
      "prompt_token_ids":{"type":"array","items":{"type":"integer"}},
      "choices":{"type":"array","minItems":1,"maxItems":128,"items":{"type":"object","additionalProperties":false,
      "required":["index","message","logprobs","finish_reason"],"properties":{"index":{"type":"integer"},
      "finish_reason":{"enum":["stop","length","abort"]},"token_ids":{"type":"array","items":{"type":"integer"}},
      "message":{"type":"object","additionalProperties":false,"required":["role","content","refusal"],"properties":{
      "role":{"const":"assistant"},"content":{"type":"string"},"refusal":{"type":"null"},
      "reasoning_content":{"type":"string"},"reasoning":{"type":"string"}}},
      "logprobs":{"anyOf":[{"type":"null"},{"type":"object","additionalProperties":false,"required":["content","refusal"],
      "properties":{"content":{"type":"array","items":{"$ref":"#/components/schemas/TokenLogprob"}},
      "refusal":{"type":"null"}}}]}}}}}})"},
    {"Response",
     R"({"type":"object","required":["id","object","created_at","status","error","incomplete_details",
      "output","model","usage","store","tools","tool_choice"],"properties":{
      "id":{"type":"string","pattern":"^resp_[0-9a-f]{32}$"},"object":{"const":"response"},"created_at":{"type":"integer"},
      "status":{"enum":["completed","incomplete","queued","in_progress","cancelled","failed"]},"model":{"type":"string"},
      "output":{"type":"array","items":{"type":"object","required":["id","type"],"properties":{
      "type":{"enum":["message","reasoning"]}}}}}})"},
    {"DeletedResponse", R"({"type":"object","required":["id","object","deleted"],"properties":{
      "deleted":{"const":true}}})"},
    {"InputItems",
     R"({"type":"object","required":["object","data","first_id","last_id","has_more"],"properties":{
      "object":{"const":"list"},"data":{"type":"array","items":{"type":"object","required":["id","type"]}}}})"},
    {"InputTokens", R"({"type":"object","required":["input_tokens"],"properties":{
      "input_tokens":{"type":"integer","minimum":1}}})"},
    {"Message",
     R"({"type":"object","additionalProperties":false,"required":["id","type","role","model","content",
      "stop_reason","stop_sequence","usage"],"properties":{"id":{"type":"string","pattern":"^msg_[0-9a-f]{32}$"},
      "type":{"const":"message"},"role":{"const":"assistant"},"model":{"type":"string"},
      "content":{"type":"array","items":{"type":"object","required":["type"],"properties":{"type":{"enum":["text","thinking"]}}}},
      "stop_reason":{"enum":["end_turn","max_tokens","stop_sequence","model_context_window_exceeded"]},
      "stop_sequence":{"type":["string","null"]},"usage":{"type":"object","required":["input_tokens","output_tokens",
      "cache_creation_input_tokens","cache_read_input_tokens"]}}})"},
    {"MessageError", R"({"type":"object","required":["type","error"],"properties":{"type":{"const":"error"},
      "error":{"type":"object","required":["type","message"],"properties":{"type":{"type":"string"},
      "message":{"type":"string","maxLength":1000}}}}})"},
    {"Completion", R"({"type":"object","additionalProperties":false,
      "required":["id","object","created","model","choices","usage"],"properties":{
      "id":{"type":"string","pattern":"^cmpl-[0-9a-f]{32}$"},"object":{"const":"text_completion"},
      "created":{"type":"integer"},"model":{"type":"string"},"usage":{"$ref":"#/components/schemas/Usage"},
      "choices":{"type":"array","minItems":1,"maxItems":128,"items":{"type":"object","additionalProperties":false,
      "required":["index","text","logprobs","finish_reason"],"properties":{"index":{"type":"integer"},
      "text":{"type":"string"},"finish_reason":{"enum":["stop","length","abort"]},
      "token_ids":{"type":"array","items":{"type":"integer"}},
      "prompt_token_ids":{"type":"array","items":{"type":"integer"}},
      "logprobs":{"anyOf":[{"type":"null"},{"type":"object","additionalProperties":false,
      "required":["tokens","token_logprobs","top_logprobs","text_offset"],"properties":{
      "tokens":{"type":"array","items":{"type":"string"}},
      "token_logprobs":{"type":"array","items":{"type":["number","null"]}},
      "top_logprobs":{"type":"array","items":{"type":["object","null"],"additionalProperties":{"type":"number"}}},
      "text_offset":{"type":"array","items":{"type":"integer"}}}}]}}}}}})"},
};

constexpr Schema small_requests[] = {
    {"TokenizeRequest",
     R"({"type":"object","anyOf":[{"required":["prompt"]},{"required":["messages"]}],"properties":{
      "prompt":{"type":["string","null"]},"messages":{"type":["array","null"],"minItems":1,"items":{"type":"object"}},
      "add_special_tokens":{"type":["boolean","null"]},"parse_special":{"type":["boolean","null"]},
      "chat_template_kwargs":{"type":["object","null"]},"return_token_strs":{"type":["boolean","null"]},"add_generation_prompt":{"type":["boolean","null"]},
      "model":{"type":["string","null"],"minLength":1}}})"},
    {"MessageCountRequest",
     R"({"type":"object","required":["messages"],"properties":{"messages":{"type":"array",
      "minItems":1,"items":{"type":"object","required":["role","content"]}},"model":{"type":["string","null"],"minLength":1}}})"},
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

void write_route(JsonWriter& json, const RouteInfo& route) {
  const std::string_view method = route.method == "GET" ? "get" : route.method == "POST" ? "post" : "delete";
  json.key(method).begin_object().member("summary", route.about);
  if (const std::size_t brace = route.path.find('{'); brace != route.path.npos) {
    const std::string_view name = route.path.substr(brace + 1, route.path.find('}') - brace - 1);
    json.key("parameters").begin_array().begin_object();
    json.member("name", name).member("in", "path").member("required", true);
    json.key("schema").begin_object().member("type", "string").end_object().end_object().end_array();
  }
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
  for (const Schema& schema : small_requests) json.key(schema.name).raw(one_line(schema.json));
  for (const Schema& schema : answers) json.key(schema.name).raw(one_line(schema.json));
  json.end_object().key("securitySchemes").begin_object().key("key").begin_object();
  json.member("type", "http").member("scheme", "bearer").end_object().end_object();
  json.end_object().end_object();
  return text;
}

}  // namespace nibble::api
