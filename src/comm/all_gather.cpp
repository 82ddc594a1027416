#include <algorithm>
#include <cstring>
#include <string>

#include "comm/collectives.h"

namespace nibble {

Status all_gather(Communicator& communicator, std::span<const std::byte> mine, std::span<std::byte> all) {
  const std::size_t members = static_cast<std::size_t>(communicator.size());
  if (all.size() != mine.size() * members) {
    return invalid_argument("an all_gather of " + std::to_string(mine.size()) + " bytes from each of " +
                            std::to_string(members) + " ranks needs room for " +
                            std::to_string(mine.size() * members) + ", not " + std::to_string(all.size()));
  }
  std::size_t begin = 0;
  do {
    const std::size_t bytes = std::min(communicator.slot_bytes(), mine.size() - begin);
    NIBBLE_ASSIGN(const Communicator::Shares shares,
                  communicator.share({.kind = Call::Kind::all_gather, .count = mine.size()},
                                     mine.subspan(begin, bytes)));
    for (std::size_t i = 0; i < members; ++i) {
      if (bytes > 0)
        std::memcpy(all.data() + i * mine.size() + begin, shares.of<std::byte>(static_cast<int>(i)), bytes);
    }
    begin += bytes;
  } while (begin < mine.size());
  return {};
}

}  // namespace nibble
