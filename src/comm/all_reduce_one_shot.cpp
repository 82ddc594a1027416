#include <algorithm>

#include "comm/collectives.h"
#include "comm/leaves.h"

namespace nibble {

void sum_parts(const Communicator::Shares& parts, int members, std::size_t first, std::span<float> out) {
  const float* of_member[most_ranks] = {};
  for (int i = 0; i < members; ++i) of_member[i] = parts.of<float>(i) + first;
  for (std::size_t at = 0; at < out.size(); ++at)
    out[at] = tree_sum(members, [&](int i) { return of_member[i][at]; });
}

Status all_reduce_one_shot(Communicator& communicator, std::span<float> values) {
  const std::size_t piece = communicator.slot_bytes() / sizeof(float);
  std::size_t begin = 0;
  do {
    const std::span<float> now = values.subspan(begin, std::min(piece, values.size() - begin));
    NIBBLE_ASSIGN(const Communicator::Shares parts,
                  communicator.share({.kind = Call::Kind::all_reduce, .count = values.size()},
                                     std::as_bytes(std::span<const float>(now))));
    sum_parts(parts, communicator.size(), 0, now);
    begin += now.size();
  } while (begin < values.size());
  return {};
}

}  // namespace nibble
