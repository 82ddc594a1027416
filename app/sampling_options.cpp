#include "app/sampling_options.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/quote.h"
#include "text/stop_strings.h"

namespace nibble {
namespace {

constexpr int kMostTokens = 1 << 30;
constexpr int kMostLogprobs = 1 << 20;  // the vocabulary's own bound is checked once the model is known
constexpr float kMostTemperature = 2.0f;
// The smallest top_p: zero would leave no token at all.
constexpr float kLeastTopP = 1e-6f;
constexpr float kMostPenalty = 2.0f;
constexpr float kLeastRepetitionPenalty = 1e-3f;  // it divides
constexpr float kMostBias = 100.0f;

Status out_of_range(std::string_view name, std::string_view range) {
  return invalid_argument(std::string(name) + " must be " + std::string(range));
}

Status read_int(std::string_view name, JsonValue value, std::int64_t min, std::int64_t max, int& target) {
  if (!value.is_integer() || value.as_integer() < min || value.as_integer() > max) {
    return out_of_range(name, "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  target = static_cast<int>(value.as_integer());
  return {};
}

Status read_float(std::string_view name, JsonValue value, float min, float max, std::string_view range,
                  float& target) {
  if (!value.is_number() || !(value.as_double() >= min && value.as_double() <= max))
    return out_of_range(name, range);
  target = static_cast<float>(value.as_double());
  return {};
}

Status read_bool(std::string_view name, JsonValue value, bool& target) {
  if (!value.is_bool()) return out_of_range(name, "true or false");
  target = value.as_bool();
  return {};
}

Status read_seed(JsonValue value, std::uint64_t& target) {
  if (!value.is_integer() || value.as_integer() < 0)
    return out_of_range("seed", "a whole number from 0 to 2^63 - 1");
  target = static_cast<std::uint64_t>(value.as_integer());
  return {};
}

Status read_stop(JsonValue value, std::vector<std::string>& target) {
  target.clear();
  if (value.is_string()) target.emplace_back(value.as_string());
  if (value.is_array()) {
    for (const JsonValue element : value.elements()) {
      if (!element.is_string()) return out_of_range("stop", "a string or an array of strings");
      target.emplace_back(element.as_string());
    }
  } else if (!value.is_string()) {
    return out_of_range("stop", "a string or an array of strings");
  }
  const Result<StopStrings> checked = StopStrings::make(target);
  return checked.ok() ? Status() : checked.status().with_context("stop");
}

// -1 is vLLM's way to say "all".
Status read_top_k(JsonValue value, int& target) {
  NIBBLE_RETURN_IF_ERROR(read_int("top_k", value, -1, kMostTokens, target));
  if (target < 0) target = 0;
  return {};
}

// Ids beyond the vocabulary end nothing.
Status read_ids(std::string_view name, JsonValue value, std::vector<TokenId>& target) {
  constexpr std::string_view kWanted = "an array of token ids";
  if (!value.is_array()) return out_of_range(name, kWanted);
  target.clear();
  for (const JsonValue element : value.elements()) {
    if (!element.is_integer() || element.as_integer() < 0 || element.as_integer() > INT32_MAX)
      return out_of_range(name, kWanted);
    target.push_back(static_cast<TokenId>(element.as_integer()));
  }
  return {};
}

// {"17": 2.5, ...}; the engine checks that the ids are in the vocabulary.
Status read_bias(JsonValue value, std::vector<TokenBias>& target) {
  constexpr std::string_view kWanted = "an object from token ids to numbers from -100 to 100";
  if (!value.is_object()) return out_of_range("logit_bias", kWanted);
  target.clear();
  for (const auto& [name, number] : value.members()) {
    TokenBias bias;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), bias.id);
    if (error != std::errc() || end != name.data() + name.size()) return out_of_range("logit_bias", kWanted);
    NIBBLE_RETURN_IF_ERROR(read_float("logit_bias", number, -kMostBias, kMostBias, kWanted, bias.bias));
    target.push_back(bias);
  }
  return {};
}

constexpr std::array<std::string_view, 16> kMembers = {"max_tokens",
                                                       "temperature",
                                                       "top_p",
                                                       "top_k",
                                                       "min_p",
                                                       "seed",
                                                       "stop",
                                                       "logprobs",
                                                       "prompt_logprobs",
                                                       "ignore_eos",
                                                       "min_tokens",
                                                       "logit_bias",
                                                       "frequency_penalty",
                                                       "presence_penalty",
                                                       "repetition_penalty",
                                                       "stop_token_ids"};

Status read_member(std::string_view name, JsonValue value, GenerationParams& params) {
  SamplingParams& sampling = params.sampling;
  if (name == "max_tokens") return read_int(name, value, 0, kMostTokens, sampling.max_tokens);
  if (name == "temperature")
    return read_float(name, value, 0, kMostTemperature, "a number from 0 to 2", sampling.temperature);
  if (name == "top_p")
    return read_float(name, value, kLeastTopP, 1, "a number above 0 and at most 1", sampling.top_p);
  if (name == "top_k") return read_top_k(value, sampling.top_k);
  if (name == "min_p") return read_float(name, value, 0, 1, "a number from 0 to 1", sampling.min_p);
  if (name == "seed") return read_seed(value, sampling.seed);
  if (name == "stop") return read_stop(value, params.stop);
  if (name == "logprobs") return read_int(name, value, 0, kMostLogprobs, sampling.logprobs);
  constexpr std::string_view kPenalty = "a number from -2 to 2";
  if (name == "frequency_penalty")
    return read_float(name, value, -kMostPenalty, kMostPenalty, kPenalty, sampling.frequency_penalty);
  if (name == "presence_penalty")
    return read_float(name, value, -kMostPenalty, kMostPenalty, kPenalty, sampling.presence_penalty);
  if (name == "repetition_penalty")
    return read_float(name, value, kLeastRepetitionPenalty, kMostPenalty, "a number above 0 and at most 2",
                      sampling.repetition_penalty);
  if (name == "min_tokens") return read_int(name, value, 0, kMostTokens, sampling.min_tokens);
  if (name == "logit_bias") return read_bias(value, sampling.logit_bias);
  if (name == "stop_token_ids") return read_ids(name, value, sampling.stop_ids);
  if (name == "prompt_logprobs") return read_bool(name, value, sampling.prompt_logprobs);
  return read_bool(name, value, params.ignore_eos);
}

}  // namespace

GenerationParams default_generation_params() {
  GenerationParams params;
  params.sampling.temperature = 0.7f;
  return params;
}

std::vector<OptionSpec> sampling_option_specs(GenerationParams& params) {
  SamplingParams& sampling = params.sampling;
  constexpr std::string_view kGroup = "Sampling";
  const OptionSetter top_k = int_value(sampling.top_k, -1, kMostTokens);
  const OptionSetter stop = strings_value(params.stop);
  return {
      {.name = "--temperature",
       .aliases = {"--temp"},
       .value = "T",
       .help = "0: always the likeliest token; up to 2",
       .default_text = "0.7",
       .set = float_value(sampling.temperature, 0, kMostTemperature),
       .group = kGroup},
      {.name = "--top-p",
       .value = "P",
       .help = "from the likeliest tokens that hold this share",
       .default_text = "1",
       .set = float_value(sampling.top_p, kLeastTopP, 1),
       .group = kGroup},
      {.name = "--top-k",
       .value = "N",
       .help = "from the N likeliest tokens; 0: all",
       .default_text = "0",
       .set = [top_k, &sampling](std::span<const std::string_view> values) -> Status {
         NIBBLE_RETURN_IF_ERROR(top_k(values));
         if (sampling.top_k < 0) sampling.top_k = 0;
         return {};
       },
       .group = kGroup},
      {.name = "--min-p",
       .value = "P",
       .help = "from tokens at least this likely beside the likeliest",
       .default_text = "0",
       .set = float_value(sampling.min_p, 0, 1),
       .group = kGroup},
      {.name = "--stop",
       .value = "TEXT",
       .help = "end before this text; repeatable",
       .set = [stop, &params](std::span<const std::string_view> values) -> Status {
         NIBBLE_RETURN_IF_ERROR(stop(values));
         const Result<StopStrings> checked = StopStrings::make(params.stop);
         return checked.ok() ? Status() : checked.status();
       },
       .group = kGroup},
  };
}

Result<bool> read_sampling_member(std::string_view name, JsonValue value, GenerationParams& params) {
  for (const std::string_view member : kMembers) {
    if (member != name) continue;
    NIBBLE_RETURN_IF_ERROR(read_member(name, value, params));
    return true;
  }
  return false;
}

std::string sampling_member_names() {
  std::string names;
  for (const std::string_view member : kMembers) names += (names.empty() ? "" : ", ") + std::string(member);
  return names;
}

}  // namespace nibble
