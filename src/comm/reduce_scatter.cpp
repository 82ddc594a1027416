#include <algorithm>
#include <string>
#include <vector>

#include "comm/collectives.h"

namespace nibble {

Status reduce_scatter(Communicator& communicator, std::span<const float> values, std::span<float> out) {
  const std::size_t members = static_cast<std::size_t>(communicator.size());
  if (values.size() != out.size() * members) {
    return invalid_argument("a reduce_scatter over " + std::to_string(members) + " ranks takes " +
                            std::to_string(out.size() * members) + " values for " +
                            std::to_string(out.size()) + " results, not " + std::to_string(values.size()));
  }
  const Call call{.kind = Call::Kind::reduce_scatter, .count = values.size()};
  const std::size_t piece = communicator.slot_bytes() / sizeof(float) / members;  // of each member's part
  std::vector<float> together(std::min(piece, out.size()) * members);
  std::size_t begin = 0;
  do {
    const std::size_t count = std::min(piece, out.size() - begin);
    for (std::size_t i = 0; i < members; ++i)
      std::copy_n(values.data() + i * out.size() + begin, count, together.data() + i * count);
    NIBBLE_ASSIGN(
        const Communicator::Shares parts,
        communicator.share(call, std::as_bytes(std::span<const float>(together).first(count * members))));
    sum_parts(parts, communicator.size(), static_cast<std::size_t>(communicator.member()) * count,
              out.subspan(begin, count));
    begin += count;
  } while (begin < out.size());
  return {};
}

}  // namespace nibble
