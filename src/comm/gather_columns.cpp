#include <algorithm>

#include "base/check.h"
#include "comm/collectives.h"

namespace nibble {

Status gather_columns(Communicator& communicator, const ColumnParts& parts) {
  const auto members = static_cast<std::size_t>(communicator.size());
  NIBBLE_CHECK(parts.begins.size() == members + 1 && parts.begins[0] == 0);
  const auto columns_of = [&](std::size_t member) { return parts.begins[member + 1] - parts.begins[member]; };
  const std::int64_t width = parts.begins[members];
  std::int64_t widest = 1;
  for (std::size_t i = 0; i < members; ++i) widest = std::max(widest, columns_of(i));
  const std::int64_t mine = columns_of(static_cast<std::size_t>(communicator.member()));
  const auto fit = static_cast<std::int64_t>(communicator.slot_bytes() / sizeof(float)) / widest;
  NIBBLE_CHECK(fit > 0, "a slot holds a row at least");
  for (std::int64_t row = 0; row < parts.rows; row += fit) {
    const std::int64_t rows = std::min<std::int64_t>(fit, parts.rows - row);
    const std::span<const float> values(parts.mine + row * mine, static_cast<std::size_t>(rows * mine));
    NIBBLE_ASSIGN(const Communicator::Shares shares,
                  communicator.share({.kind = Call::Kind::gather_columns,
                                      .count = static_cast<std::uint64_t>(rows),
                                      .width = static_cast<std::uint64_t>(width)},
                                     std::as_bytes(values)));
    for (std::size_t i = 0; parts.all != nullptr && i < members; ++i) {
      const std::int64_t columns = columns_of(i);
      const float* from = shares.of<float>(static_cast<int>(i));
      for (std::int64_t r = 0; r < rows; ++r)
        std::copy_n(from + r * columns, columns, parts.all + (row + r) * width + parts.begins[i]);
    }
  }
  return {};
}

}  // namespace nibble
