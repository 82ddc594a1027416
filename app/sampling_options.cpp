#include "app/sampling_options.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "core/sampling_fields.h"
#include "text/stop_strings.h"

namespace nibble {
namespace {

constexpr IntegerRange kLogprobs{0,
                                 1 << 20};  // the vocabulary's own bound is checked once the model is known

Status not_wanted(std::string_view name, std::string_view wanted) {
  return invalid_argument(std::string(name) + std::string(wanted));
}

// What is beyond an int says the same as the largest one; below zero is vLLM's way to say "all".
int as_count(std::int64_t number) { return static_cast<int>(std::clamp<std::int64_t>(number, 0, INT32_MAX)); }

Status read_integer(std::string_view name, IntegerRange range, JsonValue value, int& target) {
  const std::optional<std::int64_t> number = integer_in(range, value);
  if (!number) return not_wanted(name, wanted(range));
  target = as_count(*number);
  return {};
}

Status read_bool(std::string_view name, JsonValue value, bool& target) {
  if (!value.is_bool()) return not_wanted(name, " must be true or false");
  target = value.as_bool();
  return {};
}

// The readers of a member each: of the field's row, into its place.
template <const sampling::Number& field, float SamplingParams::*target>
Status number(JsonValue value, GenerationParams& params) {
  const std::optional<double> number = number_in(field.range, value);
  if (!number) return not_wanted(field.name, wanted(field.range));
  params.sampling.*target = field.as_float(*number);
  return {};
}

template <const sampling::Integer& field, int SamplingParams::*target>
Status integer(JsonValue value, GenerationParams& params) {
  return read_integer(field.name, field.range, value, params.sampling.*target);
}

Status read_seed(JsonValue value, GenerationParams& params) {
  const std::optional<std::int64_t> number = integer_in(sampling::seed.range, value);
  if (!number) return not_wanted(sampling::seed.name, wanted(sampling::seed.range));
  params.sampling.seed = static_cast<std::uint64_t>(*number);
  return {};
}

Status read_logprobs(JsonValue value, GenerationParams& params) {
  return read_integer("logprobs", kLogprobs, value, params.sampling.logprobs);
}

Status read_prompt_logprobs(JsonValue value, GenerationParams& params) {
  return read_bool("prompt_logprobs", value, params.sampling.prompt_logprobs);
}

Status read_ignore_eos(JsonValue value, GenerationParams& params) {
  return read_bool(sampling::ignore_eos.name, value, params.ignore_eos);
}

Status read_stop(JsonValue value, GenerationParams& params) {
  constexpr std::string_view kWanted = " must be a string or an array of strings";
  params.stop.clear();
  if (value.is_string()) {
    params.stop.emplace_back(value.as_string());
  } else if (value.is_array()) {
    for (const JsonValue element : value.elements()) {
      if (!element.is_string()) return not_wanted(sampling::stop, kWanted);
      params.stop.emplace_back(element.as_string());
    }
  } else {
    return not_wanted(sampling::stop, kWanted);
  }
  const Result<StopStrings> checked = StopStrings::make(params.stop);
  return checked.ok() ? Status() : checked.status().with_context(std::string(sampling::stop));
}

// Ids beyond the vocabulary end nothing.
Status read_stop_ids(JsonValue value, GenerationParams& params) {
  constexpr std::string_view kWanted = " must be an array of token ids";
  if (!value.is_array()) return not_wanted(sampling::stop_token_ids, kWanted);
  params.sampling.stop_ids.clear();
  for (const JsonValue element : value.elements()) {
    const std::optional<std::int64_t> id = integer_in({0, INT32_MAX}, element);
    if (!id) return not_wanted(sampling::stop_token_ids, kWanted);
    params.sampling.stop_ids.push_back(static_cast<TokenId>(*id));
  }
  return {};
}

// {"17": 2.5, ...}; the engine checks that the ids are in the vocabulary.
Status read_bias(JsonValue value, GenerationParams& params) {
  const sampling::Number& field = sampling::logit_bias;
  constexpr std::string_view kWanted = " must be an object from token ids to numbers from -100 to 100";
  if (!value.is_object()) return not_wanted(field.name, kWanted);
  std::vector<TokenBias>& target = params.sampling.logit_bias;
  target.clear();
  for (const auto& [name, given] : value.members()) {
    TokenBias bias;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), bias.id);
    const std::optional<double> number = number_in(field.range, given);
    if (error != std::errc() || end != name.data() + name.size() || !number)
      return not_wanted(field.name, kWanted);
    bias.bias = static_cast<float>(*number);
    target.push_back(bias);
  }
  return {};
}

struct Member {
  std::string_view name;
  Status (*read)(JsonValue value, GenerationParams& params);
};

constexpr Member kMembers[] = {
    {sampling::max_tokens.name, integer<sampling::max_tokens, &SamplingParams::max_tokens>},
    {sampling::temperature.name, number<sampling::temperature, &SamplingParams::temperature>},
    {sampling::top_p.name, number<sampling::top_p, &SamplingParams::top_p>},
    {sampling::top_k.name, integer<sampling::top_k, &SamplingParams::top_k>},
    {sampling::min_p.name, number<sampling::min_p, &SamplingParams::min_p>},
    {sampling::seed.name, read_seed},
    {sampling::stop, read_stop},
    {"logprobs", read_logprobs},
    {"prompt_logprobs", read_prompt_logprobs},
    {sampling::ignore_eos.name, read_ignore_eos},
    {sampling::min_tokens.name, integer<sampling::min_tokens, &SamplingParams::min_tokens>},
    {sampling::logit_bias.name, read_bias},
    {sampling::frequency_penalty.name,
     number<sampling::frequency_penalty, &SamplingParams::frequency_penalty>},
    {sampling::presence_penalty.name, number<sampling::presence_penalty, &SamplingParams::presence_penalty>},
    {sampling::repetition_penalty.name,
     number<sampling::repetition_penalty, &SamplingParams::repetition_penalty>},
    {sampling::stop_token_ids, read_stop_ids}};

// A number of the field's range; the words are those of the other options'.
OptionSetter number_option(const sampling::Number& field, float& target) {
  return text_value([&field, &target](std::string_view text) -> Status {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || !contains(field.range, number)) {
      const std::string words = wanted(field.range);  // " must be a number from 0 to 2"
      return invalid_argument("not a number in range; give one" + words.substr(words.find(" number ") + 7));
    }
    target = field.as_float(number);
    return {};
  });
}

}  // namespace

GenerationParams default_generation_params() {
  GenerationParams params;
  params.sampling.temperature = 0.7f;
  return params;
}

std::vector<OptionSpec> sampling_option_specs(GenerationParams& params) {
  SamplingParams& chosen = params.sampling;
  constexpr std::string_view kGroup = "Sampling";
  const OptionSetter top_k =
      int_value(chosen.top_k, static_cast<int>(sampling::top_k.range.least), INT32_MAX);
  const OptionSetter stop = strings_value(params.stop);
  return {
      {.name = "--temperature",
       .aliases = {"--temp"},
       .value = "T",
       .help = sampling::temperature.about,
       .default_text = "0.7",
       .set = number_option(sampling::temperature, chosen.temperature),
       .group = kGroup},
      {.name = "--top-p",
       .value = "P",
       .help = sampling::top_p.about,
       .default_text = "1",
       .set = number_option(sampling::top_p, chosen.top_p),
       .group = kGroup},
      {.name = "--top-k",
       .value = "N",
       .help = sampling::top_k.about,
       .default_text = "0",
       .set = [top_k, &chosen](std::span<const std::string_view> values) -> Status {
         NIBBLE_RETURN_IF_ERROR(top_k(values));
         chosen.top_k = as_count(chosen.top_k);
         return {};
       },
       .group = kGroup},
      {.name = "--min-p",
       .value = "P",
       .help = sampling::min_p.about,
       .default_text = "0",
       .set = number_option(sampling::min_p, chosen.min_p),
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
  for (const Member& member : kMembers) {
    if (member.name != name) continue;
    NIBBLE_RETURN_IF_ERROR(member.read(value, params));
    return true;
  }
  return false;
}

std::string sampling_member_names() {
  std::string names;
  for (const Member& member : kMembers) names += (names.empty() ? "" : ", ") + std::string(member.name);
  return names;
}

}  // namespace nibble
