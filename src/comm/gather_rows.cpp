#include <algorithm>
#include <array>

#include "base/check.h"
#include "comm/collectives.h"

namespace nibble {

// A member puts its rows down one after the other, straight into the slot's order; everybody knows from the
// owners where in whose slot a row is.
Status gather_rows(Communicator& communicator, const RowParts& parts) {
  const int me = communicator.member();
  const auto fit = communicator.slot_bytes() / (static_cast<std::size_t>(parts.width) * sizeof(float));
  NIBBLE_CHECK(fit > 0, "a slot holds a row at least");
  std::size_t row = 0;
  while (row < parts.owners.size()) {
    const std::size_t end = std::min(row + fit, parts.owners.size());
    NIBBLE_ASSIGN(
        const Communicator::Shares shares,
        communicator.share_with({.kind = Call::Kind::gather_rows,
                                 .count = end - row,
                                 .width = static_cast<std::uint64_t>(parts.width)},
                                [&](std::byte* slot) {
                                  float* to = reinterpret_cast<float*>(slot);
                                  for (std::size_t i = row; i < end; ++i) {
                                    if (parts.owners[i] != me) continue;
                                    std::copy_n(parts.rows + static_cast<std::int64_t>(i) * parts.width,
                                                parts.width, to);
                                    to += parts.width;
                                  }
                                  return static_cast<std::size_t>(reinterpret_cast<std::byte*>(to) - slot);
                                }));
    std::array<std::int64_t, most_ranks> taken{};
    for (; row < end; ++row) {
      const int owner = parts.owners[row];
      if (owner >= communicator.size()) continue;
      const std::int64_t from = taken[static_cast<std::size_t>(owner)]++ * parts.width;
      if (owner == me) continue;
      std::copy_n(shares.of<float>(owner) + from, parts.width,
                  parts.rows + static_cast<std::int64_t>(row) * parts.width);
    }
  }
  return {};
}

}  // namespace nibble
