#include "app/amount.h"

#include <cstdio>
#include <span>

namespace nibble {
namespace {

std::string scaled(std::int64_t count, std::span<const char* const> units) {
  double value = static_cast<double>(count);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f%s" : "%.3g%s", value, units[unit]);
  return text;
}

}  // namespace

std::string scaled_bytes(std::int64_t bytes) {
  static constexpr const char* units[] = {" B", " kB", " MB", " GB", " TB", " PB", " EB"};
  return scaled(bytes, units);
}

std::string scaled_count(std::int64_t count) {
  static constexpr const char* units[] = {"", " thousand", " million", " billion", " trillion"};
  return scaled(count, units);
}

}  // namespace nibble
