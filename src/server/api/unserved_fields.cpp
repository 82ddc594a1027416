// Fields of other servers and of OpenAI that this server does not act on. A field that asks for something is
// refused by name, unless its value asks for nothing; one whose absence nobody could tell from the answer is
// taken without effect, and still has to be of its type.
#include "server/api/field_rules.h"
#include "server/api/unserved_rules.h"

namespace nibble::api {
namespace {

// Samplers of other servers: their neutral value asks for nothing.
bool is_number(JsonValue json, int neutral) { return json.is_number() && json.as_double() == neutral; }

// Another server's name for what a field here does.
template <const std::string_view& name>
Refused go_by(Reading&, const std::string& field, const FieldValue&) {
  return bad_field(field, " is not known here; use " + std::string(name));
}
template <const std::string_view& name, int neutral>
Refused go_by(Reading& reading, const std::string& field, const FieldValue& value) {
  return is_number(value.json, neutral) ? Refused() : go_by<name>(reading, field, value);
}

template <int neutral>
Refused only(Reading&, const std::string& field, const FieldValue& value) {
  if (is_number(value.json, neutral)) return {};
  return bad_field(field, " is not served; leave it out, or set it to " + std::to_string(neutral));
}

Refused only_true(Reading&, const std::string& field, const FieldValue& value) {
  if (value.json.is_bool() && value.json.as_bool()) return {};
  return bad_field(field, " is always true here; leave it out");
}

Refused text_modality_only(Reading&, const std::string& field, const FieldValue& value) {
  const JsonValue json = value.json;
  if (json.is_array() && json.size() == 1 && (*json.elements().begin()).is_string() &&
      (*json.elements().begin()).as_string() == "text")
    return {};
  return bad_field(field, R"( must be ["text"]: this model writes text alone)");
}

Refused effect_free_verbosity(Reading&, const std::string& field, const FieldValue& value) {
  for (const std::string_view known : {"low", "medium", "high"}) {
    if (value.json.is_string() && value.json.as_string() == known) return {};
  }
  return bad_field(field, " must be low, medium or high");
}

constexpr Where both = Where::both, chat = Where::chat, completions = Where::completions;

// Whose options may all be left out: {} asks for it too.
Refused refuse_search(Reading&, const std::string& field, const FieldValue&) {
  return bad_field(field, " is not served: nothing here searches the web");
}

constexpr FieldType zero = other(R"({"const":0})");
constexpr FieldType one = other(R"({"const":1})");
constexpr FieldType true_type = other(R"({"const":true})");
constexpr std::string_view neutral_about = "Not served: refused unless it is neutral.";

constexpr std::string_view max_tokens = "max_tokens";
constexpr std::string_view repetition_penalty = "repetition_penalty";
constexpr std::string_view logprobs = "logprobs";
constexpr std::string_view reasoning_effort = "reasoning_effort, or the template's chat_template_kwargs";

constexpr FieldRule rules[] = {
    // OpenAI's
    {"audio", both, nothing, not_served_about, not_served},
    {"echo", chat, nothing, not_served_about, not_served},
    {"function_call", chat, nothing, not_served_about, not_served},
    {"functions", chat, nothing, not_served_about, not_served},
    {"metadata", both, any_object, no_effect_about, no_effect_object},
    {"modalities", chat, other(R"({"const":["text"]})"), "Text alone.", text_modality_only},
    {"prompt_cache_key", both, any_text, "Accepted without effect: equal beginnings are always shared.",
     no_effect},
    {"prompt_cache_retention", both, any_text, no_effect_about, no_effect},
    {"safety_identifier", both, any_text, no_effect_about, no_effect},
    {"service_tier", both, any_text, no_effect_about, no_effect},
    {"store", both, any_boolean, no_effect_about, no_effect},
    {"suffix", completions, nothing, not_served_about, not_served},
    {"user", both, any_text, no_effect_about, no_effect},
    {"verbosity", both, other(R"({"enum":["low","medium","high"]})"), no_effect_about, effect_free_verbosity},
    {"web_search_options", chat, never, "Not served: nothing here searches the web.", refuse_search},
    // vLLM's and SGLang's
    {"add_special_tokens", chat, nothing, "Not served: the chat template writes them.", not_served},
    {"documents", chat, nothing, not_served_about, not_served},
    {"guided_decoding_backend", both, any_text, no_effect_about, no_effect},
    {"guided_whitespace_pattern", both, nothing, not_served_about, not_served},
    {"include_stop_str_in_output", both, nothing, not_served_about, not_served},
    {"kv_transfer_params", both, nothing, not_served_about, not_served},
    {"length_penalty", both, one, neutral_about, only<1>},
    {"logits_processors", both, nothing, not_served_about, not_served},
    {"lora_path", both, nothing, not_served_about, not_served},
    {"lora_request", both, nothing, not_served_about, not_served},
    {"max_new_tokens", both, never, "Not known: use max_tokens.", go_by<max_tokens>},
    {"mm_processor_kwargs", both, nothing, not_served_about, not_served},
    {"no_stop_trim", both, nothing, not_served_about, not_served},
    {"priority", both, zero, neutral_about, only<0>},
    {"prompt_embeds", both, nothing, not_served_about, not_served},
    {"request_id", both, any_text, "Accepted without effect: ids are the server's.", no_effect},
    {"return_tokens_as_token_ids", both, nothing, not_served_about, not_served},
    {"separate_reasoning", chat, true_type, "Reasoning is always apart.", only_true},
    {"spaces_between_special_tokens", both, any_boolean, no_effect_about, no_effect},
    {"stop_regex", both, nothing, not_served_about, not_served},
    {"stream_reasoning", chat, true_type, "Reasoning is always streamed.", only_true},
    {"thinking_token_budget", both, nothing, not_served_about, not_served},
    {"truncate_prompt_tokens", both, nothing, not_served_about, not_served},
    {"use_beam_search", both, nothing, not_served_about, not_served},
    {"vllm_xargs", both, nothing, not_served_about, not_served},
    // llama.cpp's and Ollama's
    {"cache_prompt", both, any_boolean, "Accepted without effect: see --no-prefix-cache.", no_effect},
    {"dry_allowed_length", both, any_number, no_effect_about, no_effect},
    {"dry_base", both, any_number, no_effect_about, no_effect},
    {"dry_multiplier", both, zero, neutral_about, only<0>},
    {"dry_penalty_last_n", both, any_number, no_effect_about, no_effect},
    {"dry_sequence_breakers", both, any_list, no_effect_about, no_effect_list},
    {"dynatemp_exponent", both, any_number, no_effect_about, no_effect},
    {"dynatemp_range", both, zero, neutral_about, only<0>},
    {"id_slot", both, any_number, no_effect_about, no_effect},
    {"lora", both, nothing, not_served_about, not_served},
    {"mirostat", both, zero, neutral_about, only<0>},
    {"mirostat_eta", both, any_number, no_effect_about, no_effect},
    {"mirostat_tau", both, any_number, no_effect_about, no_effect},
    {"n_predict", both, never, "Not known: use max_tokens.", go_by<max_tokens>},
    {"n_probs", both, zero, "Not known: use logprobs.", go_by<logprobs, 0>},
    {"repeat_last_n", both, any_number, no_effect_about, no_effect},
    {"repeat_penalty", both, one, "Not known: use repetition_penalty.", go_by<repetition_penalty, 1>},
    {"parse_special", chat, nothing, "Not served: texts of a conversation never form control tokens.",
     not_served},
    {"samplers", both, nothing, not_served_about, not_served},
    {"tfs_z", both, one, neutral_about, only<1>},
    {"top_a", both, zero, neutral_about, only<0>},
    {"top_n_sigma", both, other(R"({"const":-1})"), neutral_about, only<-1>},
    {"typical_p", both, one, neutral_about, only<1>},
    {"xtc_probability", both, zero, neutral_about, only<0>},
    {"xtc_threshold", both, any_number, no_effect_about, no_effect},
    // Other names for how a model thinks
    {"enable_thinking", chat, never, "Not known: use reasoning_effort.", go_by<reasoning_effort>},
    {"reasoning", chat, never, "Not known: use reasoning_effort.", go_by<reasoning_effort>},
    {"thinking", chat, never, "Not known: use reasoning_effort.", go_by<reasoning_effort>},
};

}  // namespace

std::span<const FieldRule> unserved_fields() { return rules; }

}  // namespace nibble::api
