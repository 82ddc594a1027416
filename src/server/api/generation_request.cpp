#include "server/api/generation_request.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/quote.h"
#include "server/api/chat_messages.h"
#include "server/api/field_reader.h"

namespace nibble::api {
namespace {

constexpr std::size_t most_stop_bytes = 4096;
constexpr std::size_t most_salt_bytes = 256;

// What a field's reader may look at beside its value.
struct Reading {
  GenerationRequest& request;
  TokenId vocabulary;
  bool wants_logprobs = false;  // chat's switch
  std::optional<int> top_logprobs;
  std::optional<int> max_completion_tokens, best_of;
};

enum class Where : std::uint8_t { both, chat, completions };

struct FieldRule {
  std::string_view name;
  Where where;
  Refused (*read)(Reading& reading, const std::string& field, JsonValue value);
};

Refused read_optional_number(const std::string& field, JsonValue value, double least, double most,
                             std::optional<double>& target, Bound bound = Bound::inclusive) {
  double number = 0;
  if (Refused refused = read_number(field, value, least, most, number, bound)) return refused;
  target = number;
  return {};
}

template <class Integer>
Refused read_optional_integer(const std::string& field, JsonValue value, std::int64_t least,
                              std::int64_t most, std::optional<Integer>& target) {
  std::int64_t number = 0;
  if (Refused refused = read_integer(field, value, least, most, number)) return refused;
  target = static_cast<Integer>(number);
  return {};
}

Refused read_token(const Reading& reading, const std::string& field, JsonValue value, TokenId& token) {
  if (Refused refused = read_integer(field, value, 0, reading.vocabulary - 1, token)) return refused;
  return {};
}

Refused read_tokens(const Reading& reading, const std::string& field, JsonValue value,
                    std::vector<TokenId>& tokens) {
  if (!value.is_array()) return bad_field(field, " must be an array of token ids");
  tokens.reserve(value.size());
  for (const JsonValue element : value.elements()) {
    TokenId token = 0;
    if (Refused refused =
            read_token(reading, field + "[" + std::to_string(tokens.size()) + "]", element, token))
      return refused;
    tokens.push_back(token);
  }
  return {};
}

Refused read_stop(Reading& reading, const std::string& field, JsonValue value) {
  std::vector<std::string>& stop = reading.request.sampling.stop;
  const auto add = [&](const std::string& where, JsonValue text) -> Refused {
    if (!text.is_string() || text.as_string().empty())
      return bad_field(where, " must be a string that is not empty");
    if (text.as_string().size() > most_stop_bytes)
      return bad_field(where, " must be at most " + std::to_string(most_stop_bytes) + " bytes");
    stop.emplace_back(text.as_string());
    return {};
  };
  if (!value.is_array()) return add(field, value);
  if (value.size() > most_stop_strings)
    return bad_field(field, " takes at most " + std::to_string(most_stop_strings) + " strings");
  for (const JsonValue element : value.elements()) {
    if (Refused refused = add(field + "[" + std::to_string(stop.size()) + "]", element)) return refused;
  }
  return {};
}

Refused read_logit_bias(Reading& reading, const std::string& field, JsonValue value) {
  if (!value.is_object()) return bad_field(field, " must be an object from token ids to numbers");
  for (const auto& [name, bias] : value.members()) {
    TokenId token = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || end != name.data() + name.size() || token < 0 ||
        token >= reading.vocabulary) {
      return bad_field(field, " has the key " + quote(name) + ", which is no token id of this model");
    }
    double number = 0;
    if (Refused refused = read_number(field + "." + std::string(name), bias, -100, 100, number))
      return refused;
    reading.request.sampling.logit_bias.emplace_back(token, static_cast<float>(number));
  }
  return {};
}

Refused read_stream_options(Reading& reading, const std::string& field, JsonValue value) {
  if (!value.is_object()) return bad_field(field, " must be an object");
  if (const auto usage = value.find("include_usage"); usage && !usage->is_null()) {
    return read_bool(field + ".include_usage", *usage, reading.request.include_usage);
  }
  return {};
}

// A string, an array of strings, an array of token ids, or an array of such arrays.
Refused read_prompts(Reading& reading, const std::string& field, JsonValue value) {
  std::vector<Prompt>& prompts = reading.request.prompts;
  constexpr std::string_view wanted =
      " must be a string, an array of strings, an array of token ids or an array of those";
  if (value.is_string()) {
    prompts.emplace_back(std::string(value.as_string()));
    return {};
  }
  if (!value.is_array() || value.size() == 0) return bad_field(field, wanted);
  const JsonType kind = (*value.elements().begin()).type();
  if (kind == JsonType::integer || kind == JsonType::real) {
    std::vector<TokenId> tokens;
    if (Refused refused = read_tokens(reading, field, value, tokens)) return refused;
    prompts.emplace_back(std::move(tokens));
    return {};
  }
  if (value.size() > most_choices)
    return bad_field(field, " takes at most " + std::to_string(most_choices) + " prompts");
  for (const JsonValue element : value.elements()) {
    const std::string where = field + "[" + std::to_string(prompts.size()) + "]";
    if (element.type() != kind)
      return bad_field(where, " is of another kind than the first: prompt" + std::string(wanted));
    if (kind == JsonType::string) {
      prompts.emplace_back(std::string(element.as_string()));
    } else if (kind == JsonType::array) {
      std::vector<TokenId> tokens;
      if (Refused refused = read_tokens(reading, where, element, tokens)) return refused;
      prompts.emplace_back(std::move(tokens));
    } else {
      return bad_field(field, wanted);
    }
  }
  return {};
}

Refused read_reasoning_effort(Reading& reading, const std::string& field, JsonValue value) {
  constexpr std::array<std::string_view, 5> efforts = {"none", "minimal", "low", "medium", "high"};
  if (!value.is_string() || std::find(efforts.begin(), efforts.end(), value.as_string()) == efforts.end()) {
    return bad_field(field, " must be none, minimal, low, medium or high");
  }
  reading.request.reasoning_effort = value.as_string();
  return {};
}

Refused no_effect(Reading&, const std::string&, JsonValue) { return {}; }

// Refused unless it asks for nothing.
Refused not_served(Reading&, const std::string& field, JsonValue value) {
  const bool nothing =
      (value.is_array() && value.size() == 0) || (value.is_string() && value.as_string().empty());
  if (nothing) return {};
  return bad_field(field, " is not served; leave it out");
}

Refused read_tool_choice(Reading& reading, const std::string& field, JsonValue value) {
  if (value.is_string() && (value.as_string() == "none" || value.as_string() == "auto")) return {};
  return not_served(reading, field, value);
}

constexpr auto within_int32 = std::int64_t{INT32_MAX};

// Every field that means something here, in the order of their names.
constexpr FieldRule rules[] = {
    {"audio", Where::both, not_served},
    {"best_of", Where::completions,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_optional_integer(f, v, 1, most_choices, r.best_of);
     }},
    {"cache_salt", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) -> Refused {
       if (Refused refused = read_text(f, v, r.request.cache_salt)) return refused;
       if (r.request.cache_salt.size() <= most_salt_bytes) return {};
       return bad_field(f, " must be at most " + std::to_string(most_salt_bytes) + " bytes");
     }},
    {"chat_template_kwargs", Where::chat,
     [](Reading& r, const std::string& f, JsonValue v) -> Refused {
       if (!v.is_object()) return bad_field(f, " must be an object");
       r.request.chat_template_kwargs = v;
       return {};
     }},
    {"echo", Where::completions,
     [](Reading& r, const std::string& f, JsonValue v) { return read_bool(f, v, r.request.echo); }},
    {"frequency_penalty", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_number(f, v, -2, 2, r.request.sampling.frequency_penalty);
     }},
    {"function_call", Where::chat, not_served},
    {"functions", Where::chat, not_served},
    {"guided_choice", Where::both, not_served},
    {"guided_grammar", Where::both, not_served},
    {"guided_json", Where::both, not_served},
    {"guided_regex", Where::both, not_served},
    {"ignore_eos", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_bool(f, v, r.request.sampling.ignore_eos);
     }},
    {"logit_bias", Where::both, read_logit_bias},
    {"logprobs", Where::chat,
     [](Reading& r, const std::string& f, JsonValue v) { return read_bool(f, v, r.wants_logprobs); }},
    {"logprobs", Where::completions,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_integer(f, v, 0, most_top_logprobs, r.request.sampling.logprobs);
     }},
    {"max_completion_tokens", Where::chat,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_optional_integer(f, v, 1, within_int32, r.max_completion_tokens);
     }},
    {"max_tokens", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_optional_integer(f, v, r.request.endpoint == Endpoint::chat ? 1 : 0, within_int32,
                                    r.request.sampling.max_tokens);
     }},
    {"messages", Where::chat,
     [](Reading& r, const std::string&, JsonValue v) { return read_messages(v, r.request.messages); }},
    {"metadata", Where::both, no_effect},
    {"min_p", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_optional_number(f, v, 0, 1, r.request.sampling.min_p);
     }},
    {"min_tokens", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_integer(f, v, 0, within_int32, r.request.sampling.min_tokens);
     }},
    {"modalities", Where::chat,
     [](Reading&, const std::string& f, JsonValue v) -> Refused {
       if (v.is_array() && v.size() == 1 && (*v.elements().begin()).is_string() &&
           (*v.elements().begin()).as_string() == "text")
         return {};
       return bad_field(f, R"( must be ["text"]: this model writes text alone)");
     }},
    {"model", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) { return read_text(f, v, r.request.model); }},
    {"n", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_integer(f, v, 1, most_choices, r.request.n);
     }},
    {"prediction", Where::chat, not_served},
    {"presence_penalty", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_number(f, v, -2, 2, r.request.sampling.presence_penalty);
     }},
    {"prompt", Where::completions, read_prompts},
    {"reasoning_effort", Where::chat, read_reasoning_effort},
    {"repetition_penalty", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_number(f, v, 0, 2, r.request.sampling.repetition_penalty, Bound::above);
     }},
    {"response_format", Where::chat,
     [](Reading&, const std::string& f, JsonValue v) -> Refused {
       const auto type = v.find("type");
       if (type && type->is_string() && type->as_string() == "text") return {};
       return bad_field(f, R"( other than {"type":"text"} is not served)");
     }},
    {"return_token_ids", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_bool(f, v, r.request.return_token_ids);
     }},
    {"seed", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_optional_integer(f, v, INT64_MIN, INT64_MAX, r.request.sampling.seed);
     }},
    {"service_tier", Where::both, no_effect},
    {"stop", Where::both, read_stop},
    {"stop_token_ids", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_tokens(r, f, v, r.request.sampling.stop_token_ids);
     }},
    {"store", Where::both, no_effect},
    {"stream", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) { return read_bool(f, v, r.request.stream); }},
    {"stream_options", Where::both, read_stream_options},
    {"suffix", Where::completions, not_served},
    {"temperature", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_optional_number(f, v, 0, 2, r.request.sampling.temperature);
     }},
    {"tool_choice", Where::chat, read_tool_choice},
    {"tools", Where::chat, not_served},
    {"top_k", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) -> Refused {
       std::int64_t number = 0;
       if (Refused refused = read_integer(f, v, -1, within_int32, number)) return refused;
       r.request.sampling.top_k =
           static_cast<int>(std::max<std::int64_t>(number, 0));  // -1 is another way to say all
       return {};
     }},
    {"top_logprobs", Where::chat,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_optional_integer(f, v, 0, most_top_logprobs, r.top_logprobs);
     }},
    {"top_p", Where::both,
     [](Reading& r, const std::string& f, JsonValue v) {
       return read_optional_number(f, v, 0, 1, r.request.sampling.top_p, Bound::above);
     }},
    {"user", Where::both, no_effect},
    {"verbosity", Where::both, no_effect},
};

const FieldRule* find_rule(Endpoint endpoint, std::string_view name) {
  for (const FieldRule& rule : rules) {
    if (rule.name != name) continue;
    if (rule.where == Where::both || (rule.where == Where::chat) == (endpoint == Endpoint::chat))
      return &rule;
  }
  return nullptr;
}

// What holds between fields.
Refused check_together(const Reading& reading, bool has_stream_options) {
  GenerationRequest& request = reading.request;
  Sampling& sampling = request.sampling;
  const bool chat = request.endpoint == Endpoint::chat;
  if (chat && request.messages.empty())
    return bad_field("messages", " must be an array of at least one message");
  if (!chat && request.prompts.empty()) return bad_field("prompt", " must be there");
  if (has_stream_options && !request.stream)
    return bad_field("stream_options", " goes with stream: true only");
  if (reading.best_of && *reading.best_of != request.n) return bad_field("best_of", " must be equal to n");
  if (reading.top_logprobs && !reading.wants_logprobs)
    return bad_field("top_logprobs", " needs logprobs: true");
  if (chat && reading.wants_logprobs) sampling.logprobs = reading.top_logprobs.value_or(0);
  if (reading.max_completion_tokens)
    sampling.max_tokens = reading.max_completion_tokens;  // the newer name wins
  if (sampling.max_tokens == 0 && !request.echo)
    return bad_field("max_tokens", " may be 0 only with echo: true");
  if (sampling.max_tokens && sampling.min_tokens > *sampling.max_tokens)
    return bad_field("min_tokens", " must be at most max_tokens");
  if (static_cast<std::size_t>(request.n) * std::max<std::size_t>(request.prompts.size(), 1) > most_choices) {
    return bad_field("n", " times the number of prompts must be at most " + std::to_string(most_choices));
  }
  return {};
}

}  // namespace

std::variant<GenerationRequest, ApiError> parse_generation_request(Endpoint endpoint, std::string body,
                                                                   TokenId vocabulary) {
  Result<JsonDocument> document = JsonDocument::parse(std::move(body));
  if (!document.ok()) return bad_request(document.status().message(), "invalid_json");
  if (!document->root().is_object()) return bad_request("the body must be a JSON object", "invalid_json");
  GenerationRequest request{.endpoint = endpoint, .body = std::move(*document)};
  Reading reading{.request = request, .vocabulary = vocabulary};
  bool has_stream_options = false;
  for (const auto& [name, value] : request.body.root().members()) {
    const FieldRule* rule = find_rule(endpoint, name);
    if (rule == nullptr) {
      request.ignored.emplace_back(name);
      continue;
    }
    if (value.is_null()) continue;  // as if it were absent
    has_stream_options |= name == "stream_options";
    if (Refused refused = rule->read(reading, std::string(name), value)) return *refused;
  }
  if (Refused refused = check_together(reading, has_stream_options)) return *refused;
  return request;
}

}  // namespace nibble::api
