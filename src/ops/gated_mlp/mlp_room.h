// How many rows a GPU takes at once through a feed-forward that every row takes: the layer needs room for
// what lies between their products, and the plan has to know how much.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace nibble {

// A multiple of 8 unless it is all of a step's rows. Gates and ups of so many take 16 MiB; but for fewer than
// 1,024 rows products of wide layers would not fill the GPU, and from 4,096 on those of narrow ones do.
constexpr int mlp_rows_at_once(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t room = 16 << 20;
  const std::int64_t bytes_of_row = 8 * std::max<std::int64_t>(width, 1);
  const auto fitting =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(room / bytes_of_row)));
  return static_cast<int>(std::min(rows, std::clamp<std::int64_t>(fitting, 1024, 4096)));
}

}  // namespace nibble
