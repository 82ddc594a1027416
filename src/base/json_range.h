// A JSON number as what a field takes, or the words for what that is. A field's name stands before the words:
// "temperature" + " must be a number from 0 to 2".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"

namespace nibble {

struct IntegerRange {
  std::int64_t least = INT64_MIN, most = INT64_MAX;
};

enum class Bound : bool { inclusive, above };

// [low, high], or (low, high] where the bound says so.
struct NumberRange {
  double low = 0, high = 0;
  Bound bound = Bound::inclusive;
};

// 2.0 is a whole number, true is none. A count without an upper bound may be written as any whole double
// below 2^63; other numbers must be exact.
std::optional<std::int64_t> integer_in(IntegerRange range, JsonValue value);
std::optional<double> number_in(NumberRange range, JsonValue value);
bool contains(NumberRange range, double number);

std::string wanted(IntegerRange range);
std::string wanted(NumberRange range);

}  // namespace nibble
