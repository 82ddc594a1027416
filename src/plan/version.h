// Versions of drivers and libraries: numbers between dots, compared from the left; what is missing counts as
// 0.
#pragma once

#include <array>
#include <compare>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

struct Version {
  std::array<int, 3> parts{};

  auto operator<=>(const Version&) const = default;
  std::string text() const {
    return std::to_string(parts[0]) + "." + std::to_string(parts[1]) + "." + std::to_string(parts[2]);
  }
};

// "2.28.9", "12.8", "9"; nothing for anything else.
std::optional<Version> parse_version(std::string_view text);

}  // namespace nibble
