#include <algorithm>
#include <cstring>

#include "comm/collectives.h"

namespace nibble {
namespace {

struct Part {
  std::size_t begin, count;
};
Part part_of(std::size_t count, int member, int members) {
  const std::size_t i = static_cast<std::size_t>(member), n = static_cast<std::size_t>(members);
  const std::size_t begin = count * i / n;
  return {begin, count * (i + 1) / n - begin};
}

}  // namespace

Status all_reduce_two_shot(Communicator& communicator, std::span<float> values) {
  const std::size_t piece = communicator.slot_bytes() / sizeof(float);
  const Call call{.kind = Call::Kind::all_reduce, .algorithm = Algorithm::two_shot, .count = values.size()};
  std::size_t begin = 0;
  do {
    const std::span<float> now = values.subspan(begin, std::min(piece, values.size() - begin));
    NIBBLE_ASSIGN(const Communicator::Shares parts,
                  communicator.share(call, std::as_bytes(std::span<const float>(now))));
    const Part own = part_of(now.size(), communicator.member(), communicator.size());
    const std::span<float> mine = now.subspan(own.begin, own.count);
    sum_parts(parts, communicator.size(), own.begin, mine);
    NIBBLE_ASSIGN(const Communicator::Shares sums,
                  communicator.share(call, std::as_bytes(std::span<const float>(mine))));
    for (int i = 0; i < communicator.size(); ++i) {
      const Part theirs = part_of(now.size(), i, communicator.size());
      std::copy_n(sums.of<float>(i), theirs.count, now.data() + theirs.begin);
    }
    begin += now.size();
  } while (begin < values.size());
  return {};
}

}  // namespace nibble
