#include "cache/page_hash.h"

namespace nibble {

PageHash keyed_hash(const HashKey& key, std::string_view bytes) {
  SipHash hash(key);
  hash.add_text(bytes);
  return hash.finish();
}

PageHash page_hash(const HashKey& key, const PageHash& parent, std::span<const TokenId> tokens) {
  SipHash hash(key);
  hash.add(parent.low);
  hash.add(parent.high);
  std::size_t i = 0;
  for (; i + 1 < tokens.size(); i += 2) {
    hash.add(static_cast<std::uint32_t>(tokens[i]) |
             static_cast<std::uint64_t>(static_cast<std::uint32_t>(tokens[i + 1])) << 32);
  }
  const std::uint64_t rest = i < tokens.size() ? static_cast<std::uint32_t>(tokens[i]) : 0;
  hash.add_end(rest, 16 + 4 * tokens.size());
  return hash.finish();
}

}  // namespace nibble
