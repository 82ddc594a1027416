// Which lines of weights that go by few inputs, one row after the other, are asked for ahead of their use.
// What is best is a processor's own, and changes no bit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

enum class WeightLines : std::uint8_t {
  led,        // as many as lead a processor that asks for the rest itself
  each,       // into the second-level cache
  each_near,  // into the first
};
inline constexpr std::array<std::string_view, 3> weight_lines_names = {"led", "each", "each_near"};

constexpr std::string_view name_of(WeightLines lines) {
  return weight_lines_names[static_cast<std::size_t>(lines)];
}

constexpr std::optional<WeightLines> find_weight_lines(std::string_view name) {
  for (const WeightLines each : {WeightLines::led, WeightLines::each, WeightLines::each_near}) {
    if (name_of(each) == name) return each;
  }
  return std::nullopt;
}

}  // namespace nibble
