#include "cache/page_hash.h"

#include <bit>

namespace nibble {
namespace {

class SipHash {
 public:
  explicit SipHash(const HashKey& key)
      : v0_(key[0] ^ 0x736f6d6570736575),
        v1_(key[1] ^ 0x646f72616e646f6d ^ 0xee),
        v2_(key[0] ^ 0x6c7967656e657261),
        v3_(key[1] ^ 0x7465646279746573) {}

  void add(std::uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }

  // `rest`: up to seven bytes behind the last whole word; `bytes`: of everything together.
  PageHash finish(std::uint64_t rest, std::size_t bytes) {
    add(rest | static_cast<std::uint64_t>(bytes) << 56);
    v2_ ^= 0xee;
    rounds(4);
    PageHash hash{.low = v0_ ^ v1_ ^ v2_ ^ v3_};
    v1_ ^= 0xdd;
    rounds(4);
    hash.high = v0_ ^ v1_ ^ v2_ ^ v3_;
    return hash;
  }

 private:
  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v3_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ += v3_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ += v1_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace

PageHash keyed_hash(const HashKey& key, std::string_view bytes) {
  SipHash hash(key);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    word |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * (i % 8));
    if (i % 8 != 7) continue;
    hash.add(word);
    word = 0;
  }
  return hash.finish(word, bytes.size());
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
  return hash.finish(rest, 16 + 4 * tokens.size());
}

}  // namespace nibble
