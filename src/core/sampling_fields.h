// The fields that say how tokens are chosen, each once: its name, what it takes and what it means. The API's
// fields and its description, the lines of a prompts file and the options of the command line are made of
// these.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json_range.h"

namespace nibble::sampling {

struct Integer {
  std::string_view name;
  IntegerRange range;
  std::string_view about;
};

struct Number {
  std::string_view name;
  NumberRange range;
  std::string_view about;

  // As the engine takes it: what is above zero stays so.
  float as_float(double number) const {
    const auto narrow = static_cast<float>(number);
    return range.bound == Bound::above && narrow <= range.low ? FLT_MIN : narrow;
  }
};

struct Switch {
  std::string_view name;
  std::string_view about;
};

inline constexpr std::int64_t any_count = INT64_MAX;  // what is beyond the room there is means all of it
inline constexpr std::size_t most_stop_strings = 16;
inline constexpr std::size_t most_stop_characters = 4096;  // of one stop string

inline constexpr Number temperature{"temperature", {0, 2}, "0: always the likeliest token"};
inline constexpr Number top_p{
    "top_p", {0, 1, Bound::above}, "from the likeliest tokens that hold this share"};
inline constexpr Number min_p{"min_p", {0, 1}, "from tokens at least this likely beside the likeliest"};
inline constexpr Integer top_k{"top_k", {-1, any_count}, "from the N likeliest tokens; 0 and -1: all"};
inline constexpr Integer seed{"seed", {INT64_MIN, INT64_MAX}, "the same seed draws the same tokens"};
inline constexpr Integer max_tokens{
    "max_tokens", {0, any_count}, "longest answer; cut to the room that the context leaves"};
inline constexpr Integer min_tokens{
    "min_tokens", {0, any_count}, "nothing ends the answer before it has as many tokens"};
inline constexpr Number frequency_penalty{
    "frequency_penalty", {-2, 2}, "taken from a token's logit for each time the answer has it"};
inline constexpr Number presence_penalty{
    "presence_penalty", {-2, 2}, "taken from a token's logit once the answer has it"};
inline constexpr Number repetition_penalty{
    "repetition_penalty",
    {0, 2, Bound::above},
    "divides the logit of tokens that prompt or answer have, or multiplies it where it is negative"};
inline constexpr Number logit_bias{
    "logit_bias", {-100, 100}, "added to the logits of token ids, before penalties"};
inline constexpr Switch ignore_eos{"ignore_eos", "go on after the end token"};
inline constexpr std::string_view stop = "stop", stop_token_ids = "stop_token_ids";

}  // namespace nibble::sampling
