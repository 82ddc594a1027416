#include "server/api/answer_schemas.h"

namespace nibble::api {
namespace {

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
      "properties":{"reasoning_tokens":{"type":"integer","minimum":0},
      "accepted_prediction_tokens":{"type":"integer","minimum":0},"rejected_prediction_tokens":{"type":"integer","minimum":0}}}}})"},
    {"TokenLogprob", R"({"type":"object","additionalProperties":false,"required":["token","logprob","bytes"],
      "properties":{"token":{"type":"string"},"logprob":{"type":"number","maximum":0},
      "bytes":{"type":"array","items":{"type":"integer","minimum":0,"maximum":255}},
      "top_logprobs":{"type":"array","maxItems":20,"items":{"$ref":"#/components/schemas/TokenLogprob"}}}})"},
    {"ChatCompletion", R"({"type":"object","additionalProperties":false,
      "required":["id","object","created","model","choices","usage"],"properties":{
      "id":{"type":"string","pattern":"^chatcmpl-[0-9a-f]{32}$"},"object":{"const":"chat.completion"},
      "created":{"type":"integer"},"model":{"type":"string"},"usage":{"$ref":"#/components/schemas/Usage"},
      "prompt_token_ids":{"type":"array","items":{"type":"integer"}},
      "prompt_logprobs":{"type":"array","items":{"type":["object","null"]}},
      "choices":{"type":"array","minItems":1,"maxItems":128,"items":{"type":"object","additionalProperties":false,
      "required":["index","message","logprobs","finish_reason"],"properties":{"index":{"type":"integer"},
      "finish_reason":{"enum":["stop","length","tool_calls","abort"]},"token_ids":{"type":"array","items":{"type":"integer"}},
      "message":{"type":"object","additionalProperties":false,"required":["role","content","refusal"],"properties":{
      "role":{"const":"assistant"},"content":{"type":["string","null"]},"refusal":{"type":"null"},
      "tool_calls":{"type":"array","minItems":1,"items":{"type":"object","additionalProperties":false,"required":["id","type","function"],
      "properties":{"id":{"type":"string","minLength":1},"type":{"const":"function"},"function":{"type":"object",
      "additionalProperties":false,"required":["name","arguments"],"properties":{"name":{"type":"string","minLength":1},
      "arguments":{"type":"string"}}}}}},
      "reasoning_content":{"type":"string"},"reasoning":{"type":"string"}}},
      "logprobs":{"anyOf":[{"type":"null"},{"type":"object","additionalProperties":false,"required":["content","refusal"],
      "properties":{"content":{"type":"array","items":{"$ref":"#/components/schemas/TokenLogprob"}},
      "refusal":{"type":"null"}}}]}}}}}})"},
    {"OutputText",
     R"({"type":"object","additionalProperties":false,"required":["type","text","annotations","logprobs"],
      "properties":{"type":{"const":"output_text"},"text":{"type":"string"},"annotations":{"type":"array","maxItems":0},
      "logprobs":{"type":"array","items":{"$ref":"#/components/schemas/TokenLogprob"}}}})"},
    {"ResponseItem", R"({"oneOf":[{"type":"object","additionalProperties":false,
      "required":["id","type","status","role","content"],"properties":{"id":{"type":"string","pattern":"^msg_"},
      "type":{"const":"message"},"role":{"const":"assistant"},"status":{"enum":["in_progress","completed","incomplete"]},
      "content":{"type":"array","items":{"$ref":"#/components/schemas/OutputText"}}}},
      {"type":"object","additionalProperties":false,"required":["id","type","status","summary"],"properties":{
      "id":{"type":"string","pattern":"^rs_"},"type":{"const":"reasoning"},
      "status":{"enum":["in_progress","completed","incomplete"]},"encrypted_content":{"type":"string"},
      "summary":{"type":"array","items":{"type":"object","additionalProperties":false,"required":["type","text"],
      "properties":{"type":{"const":"summary_text"},"text":{"type":"string"}}}},
      "content":{"type":"array","items":{"type":"object","additionalProperties":false,"required":["type","text"],
      "properties":{"type":{"const":"reasoning_text"},"text":{"type":"string"}}}}}},
      {"type":"object","additionalProperties":false,"required":["id","type","status","call_id","name","arguments"],
      "properties":{"id":{"type":"string","pattern":"^fc_"},"type":{"const":"function_call"},
      "status":{"enum":["in_progress","completed","incomplete"]},"call_id":{"type":"string","minLength":1},
      "name":{"type":"string","minLength":1},"arguments":{"type":"string"}}}]})"},
    {"ResponseUsage", R"({"type":"object","additionalProperties":false,
      "required":["input_tokens","input_tokens_details","output_tokens","output_tokens_details","total_tokens"],
      "properties":{"input_tokens":{"type":"integer","minimum":1},"output_tokens":{"type":"integer","minimum":0},
      "total_tokens":{"type":"integer","minimum":1},"input_tokens_details":{"type":"object","additionalProperties":false,
      "required":["cached_tokens","cache_write_tokens"],"properties":{"cached_tokens":{"type":"integer","minimum":0},
      "cache_write_tokens":{"const":0}}},"output_tokens_details":{"type":"object","additionalProperties":false,
      "required":["reasoning_tokens"],"properties":{"reasoning_tokens":{"type":"integer","minimum":0}}}}})"},
    {"Response", R"({"type":"object","additionalProperties":false,
      "required":["id","object","created_at","completed_at","status","error","incomplete_details","output","background","instructions",
      "max_output_tokens","max_tool_calls","metadata","model","parallel_tool_calls","previous_response_id","reasoning",
      "service_tier","store","temperature","text","tool_choice","tools","top_logprobs","top_p","truncation","usage"],
      "properties":{"id":{"type":"string","pattern":"^resp_[0-9a-f]{32}$"},"object":{"const":"response"},
      "created_at":{"type":"integer"},"completed_at":{"type":["integer","null"]},
      "status":{"enum":["completed","incomplete","queued","in_progress","cancelled","failed"]},
      "error":{"type":["object","null"],"additionalProperties":false,"required":["code","message"],"properties":{
      "code":{"type":"string"},"message":{"type":"string"}}},
      "incomplete_details":{"type":["object","null"],"additionalProperties":false,"required":["reason"],
      "properties":{"reason":{"const":"max_output_tokens"}}},
      "output":{"type":"array","items":{"$ref":"#/components/schemas/ResponseItem"}},"background":{"type":"boolean"},
      "instructions":{"type":["string","null"]},"max_output_tokens":{"type":["integer","null"]},"max_tool_calls":{"type":"null"},
      "metadata":{"type":"object","additionalProperties":{"type":"string"}},"model":{"type":"string"},
      "parallel_tool_calls":{"type":"boolean"},"previous_response_id":{"type":["string","null"]},
      "reasoning":{"type":"object","required":["effort","summary"],"properties":{"effort":{"type":["string","null"]},
      "summary":{"enum":[null,"detailed"]}}},"service_tier":{"const":"default"},"store":{"type":"boolean"},
      "temperature":{"type":"number"},"top_p":{"type":"number"},"text":{"type":"object","required":["format"]},
      "tool_choice":{"type":["string","object"]},"tools":{"type":"array","items":{"type":"object"}},
      "top_logprobs":{"type":"integer","minimum":0,"maximum":20},"truncation":{"enum":["auto","disabled"]},
      "usage":{"anyOf":[{"type":"null"},{"$ref":"#/components/schemas/ResponseUsage"}]}}})"},
    {"DeletedResponse", R"({"type":"object","required":["id","object","deleted"],"additionalProperties":false,
      "properties":{"id":{"type":"string"},"object":{"const":"response"},"deleted":{"const":true}}})"},
    {"InputItems",
     R"({"type":"object","required":["object","data","first_id","last_id","has_more"],"properties":{
      "object":{"const":"list"},"data":{"type":"array","items":{"type":"object","required":["id","type"]}}}})"},
    {"InputTokens",
     R"({"type":"object","required":["input_tokens"],"additionalProperties":false,"properties":{
      "object":{"const":"response.input_tokens"},"input_tokens":{"type":"integer","minimum":1}}})"},
    {"MessageBlock",
     R"({"oneOf":[{"type":"object","additionalProperties":false,"required":["type","text"],"properties":{
      "type":{"const":"text"},"text":{"type":"string"}}},
      {"type":"object","additionalProperties":false,"required":["type","thinking","signature"],"properties":{
      "type":{"const":"thinking"},"thinking":{"type":"string"},"signature":{"const":""}}},
      {"type":"object","additionalProperties":false,"required":["type","id","name","input"],"properties":{
      "type":{"const":"tool_use"},"id":{"type":"string","minLength":1},"name":{"type":"string","minLength":1},
      "input":{"type":"object"}}}]})"},
    {"Message",
     R"({"type":"object","additionalProperties":false,"required":["id","type","role","model","content",
      "stop_reason","stop_sequence","usage"],"properties":{"id":{"type":"string","pattern":"^msg_[0-9a-f]{32}$"},
      "type":{"const":"message"},"role":{"const":"assistant"},"model":{"type":"string"},
      "content":{"type":"array","items":{"$ref":"#/components/schemas/MessageBlock"}},
      "stop_reason":{"enum":["end_turn","max_tokens","stop_sequence","tool_use","model_context_window_exceeded"]},
      "stop_sequence":{"type":["string","null"]},"usage":{"type":"object","additionalProperties":false,"required":["input_tokens",
      "output_tokens","cache_creation_input_tokens","cache_read_input_tokens"],"properties":{
      "input_tokens":{"type":"integer","minimum":0},"output_tokens":{"type":"integer","minimum":0},
      "cache_creation_input_tokens":{"const":0},"cache_read_input_tokens":{"type":"integer","minimum":0}}}}})"},
    {"MessageError",
     R"({"type":"object","required":["type","error"],"additionalProperties":false,"properties":{
      "type":{"const":"error"},"error":{"type":"object","required":["type","message"],"additionalProperties":false,"properties":{
      "type":{"enum":["invalid_request_error","authentication_error","permission_error","not_found_error","request_too_large",
      "rate_limit_error","api_error","timeout_error","overloaded_error"]},"message":{"type":"string","maxLength":1000},
      "details":{"type":"object","required":["error_code"],"properties":{"error_code":{"type":"string"}}}}}}})"},
    {"Completion", R"({"type":"object","additionalProperties":false,
      "required":["id","object","created","model","choices","usage"],"properties":{
      "id":{"type":"string","pattern":"^cmpl-[0-9a-f]{32}$"},"object":{"const":"text_completion"},
      "created":{"type":"integer"},"model":{"type":"string"},"usage":{"$ref":"#/components/schemas/Usage"},
      "choices":{"type":"array","minItems":1,"maxItems":128,"items":{"type":"object","additionalProperties":false,
      "required":["index","text","logprobs","finish_reason"],"properties":{"index":{"type":"integer"},
      "text":{"type":"string"},"finish_reason":{"enum":["stop","length","abort"]},
      "token_ids":{"type":"array","items":{"type":"integer"}},
      "prompt_token_ids":{"type":"array","items":{"type":"integer"}},
      "prompt_logprobs":{"type":"array","items":{"type":["object","null"]}},
      "logprobs":{"anyOf":[{"type":"null"},{"type":"object","additionalProperties":false,
      "required":["tokens","token_logprobs","top_logprobs","text_offset"],"properties":{
      "tokens":{"type":"array","items":{"type":"string"}},
      "token_logprobs":{"type":"array","items":{"type":["number","null"]}},
      "top_logprobs":{"type":"array","items":{"type":["object","null"],"additionalProperties":{"type":"number"}}},
      "text_offset":{"type":"array","items":{"type":"integer"}}}}]}}}}}})"},
};

}  // namespace

std::span<const Schema> answer_schemas() { return answers; }

}  // namespace nibble::api
