// Numbers as JSON writes them, within limits, as languages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/languages.h"

namespace nibble {

// A decimal number without exponent: "-12.5".
struct NumberLimit {
  std::string number;
  bool at_most = false;
  bool or_equal = true;
};

struct NumberFacts {
  bool integers = true;
  bool fractions = true;  // numbers that are no integers
  std::vector<NumberLimit> limits;
  struct Multiple {
    std::uint64_t unit;  // of 10^-digits
    std::uint32_t digits;
    bool not_of = false;
  };
  std::vector<Multiple> multiples;
  bool plain_decimals = false;  // no exponents
};

Language numbers(Languages& languages, const NumberFacts& facts);
// The number without exponent; nothing for one that has more than 400 digits.
std::string decimal_of(JsonValue number);
std::optional<NumberFacts::Multiple> multiple_of(JsonValue number);

}  // namespace nibble
