// A day of the calendar, as templates show one to the model.
#pragma once

#include <ctime>
#include <string_view>

#include "base/status.h"

namespace nibble {

struct Day {
  int year = 1970;
  int month = 1;
  int day = 1;

  bool operator==(const Day&) const = default;
  // Its first second, with the day of the week and of the year.
  std::tm begin() const;
};

// "2026-01-31", of the Gregorian calendar, from year 1 to 9999.
Result<Day> parse_day(std::string_view text);

// The local time of now.
std::tm local_time();

}  // namespace nibble
