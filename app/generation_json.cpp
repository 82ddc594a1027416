#include "app/generation_json.h"

#include "base/json_writer.h"

namespace nibble {
namespace {

template <class T>
void write_array(JsonWriter& json, std::string_view name, const std::vector<T>& values) {
  json.key(name).begin_array();
  for (const T value : values) json.value(value);
  json.end_array();
}

void write_top(JsonWriter& json, const std::vector<std::vector<TokenLogprob>>& steps) {
  json.key("top_logprobs").begin_array();
  for (const std::vector<TokenLogprob>& step : steps) {
    json.begin_array();
    for (const TokenLogprob& entry : step)
      json.begin_array().value(entry.id).value(entry.logprob).end_array();
    json.end_array();
  }
  json.end_array();
}

// Nothing comes before the first token, so its entry is null.
void write_prompt_logprobs(JsonWriter& json, const std::vector<float>& logprobs) {
  json.key("prompt_logprobs").begin_array();
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    if (i == 0) {
      json.null();
    } else {
      json.value(logprobs[i]);
    }
  }
  json.end_array();
}

}  // namespace

std::string generation_json_line(std::string_view case_name, std::string_view prompt,
                                 const GenerationInput& input, const GenerationResult& result) {
  std::string line;
  JsonWriter json(line);
  json.begin_object();
  json.key("case");
  if (case_name.empty()) {
    json.null();
  } else {
    json.value(case_name);
  }
  json.member("prompt", prompt);
  write_array(json, "prompt_ids", input.ids);
  write_array(json, "token_ids", result.token_ids);
  json.member("text", std::string_view(result.text));
  if (!result.reasoning.empty()) json.member("reasoning", std::string_view(result.reasoning));
  write_array(json, "logprobs", result.logprobs);
  write_top(json, result.top);
  json.member("finish_reason", finish_reason_name(result.finish));
  if (!result.error.empty()) json.member("error", std::string_view(result.error));
  if (input.params.sampling.prompt_logprobs) write_prompt_logprobs(json, result.prompt_logprobs);
  json.key("timings").begin_object();
  json.member("prefill_s", result.timings.prefill_s).member("decode_s", result.timings.decode_s);
  json.member("prefill_tokens", result.timings.prefill_tokens)
      .member("decode_tokens", result.timings.decode_tokens);
  json.end_object().end_object();
  line += '\n';
  return line;
}

}  // namespace nibble
