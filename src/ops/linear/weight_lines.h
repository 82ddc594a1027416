// Software prefetch of weights that meet few inputs, one row after the other. Which form is fastest depends
// on the processor; it changes no bit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

enum class WeightLines : std::uint8_t {
  led,        // one line in eight steps, which starts the hardware prefetcher
  each,       // every line, into L2
  each_near,  // every line, into L1
  each_late,  // the same, not long before its use
};
inline constexpr std::array<std::string_view, 4> weight_lines_names = {"led", "each", "each_near",
                                                                       "each_late"};

constexpr std::string_view name_of(WeightLines lines) {
  return weight_lines_names[static_cast<std::size_t>(lines)];
}

constexpr std::optional<WeightLines> find_weight_lines(std::string_view name) {
  for (const WeightLines each :
       {WeightLines::led, WeightLines::each, WeightLines::each_near, WeightLines::each_late}) {
    if (name_of(each) == name) return each;
  }
  return std::nullopt;
}

}  // namespace nibble
