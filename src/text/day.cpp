#include "text/day.h"

#include <charconv>

#include "base/quote.h"

namespace nibble {
namespace {

bool is_leap(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

int days_in(int month, int year) {
  constexpr int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  return days[month - 1] + (month == 2 && is_leap(year) ? 1 : 0);
}

// Digits alone: from_chars would take a sign.
bool read_digits(std::string_view text, int& number) {
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
  }
  return std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc();
}

}  // namespace

std::tm Day::begin() const {
  std::tm time = {};
  time.tm_year = year - 1900;
  time.tm_mon = month - 1;
  time.tm_mday = day;
  ::timegm(&time);  // fills in the days of week and year
  time.tm_isdst = -1;
  return time;
}

Result<Day> parse_day(std::string_view text) {
  Day day;
  const bool shaped = text.size() == 10 && text[4] == '-' && text[7] == '-' &&
                      read_digits(text.substr(0, 4), day.year) && read_digits(text.substr(5, 2), day.month) &&
                      read_digits(text.substr(8, 2), day.day);
  const bool exists = shaped && day.year >= 1 && day.month >= 1 && day.month <= 12 && day.day >= 1 &&
                      day.day <= days_in(day.month, day.year);
  if (exists) return day;
  return invalid_argument(quote(text) + " is no day; write it as YYYY-MM-DD, for example 2026-01-31");
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&now, &local);
  return local;
}

}  // namespace nibble
