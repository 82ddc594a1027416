// How many rows a GPU takes at once through a feed-forward that every row takes. The layer lays out room for
// what lies between the products of so many rows, and the plan counts it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace nibble {

// A power of two, unless it is all of a step's rows. Gates and ups take at most 16 MiB where 1,024 rows do:
// fewer rows would not fill the GPU. From 4,096 rows on the products of narrow layers fill it.
constexpr int mlp_rows_at_once(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t room = 16 << 20;
  const std::int64_t bytes_of_row = 8 * std::max<std::int64_t>(width, 1);
  const auto fitting =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(room / bytes_of_row)));
  return static_cast<int>(std::min(rows, std::clamp<std::int64_t>(fitting, 1024, 4096)));
}

}  // namespace nibble
