#include "text/tokenizer_parts.h"

#include <algorithm>
#include <array>

namespace nibble {

Status VocabularyBuilder::add(std::int64_t id, std::string_view bytes) {
  if (id < 0 || id > PairRanks::kMaxId) {
    return broken_model("token id " + std::to_string(id) + " is outside 0.." +
                        std::to_string(PairRanks::kMaxId));
  }
  if (bytes.empty()) return broken_model("token " + std::to_string(id) + " is empty");
  const auto at = static_cast<std::size_t>(id);
  if (at >= taken_.size()) taken_.resize(at + 1 + at / 2);
  if (taken_[at]) return broken_model("token id " + std::to_string(id) + " is given to two tokens");
  taken_[at] = true;
  entries_.push_back({static_cast<TokenId>(id), bytes});
  return {};
}

bool VocabularyBuilder::has(std::int64_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < taken_.size() && taken_[static_cast<std::size_t>(id)];
}

Result<std::unique_ptr<const Vocabulary>> VocabularyBuilder::finish() const {
  if (entries_.empty()) return broken_model("the vocabulary is empty");
  TokenId largest = 0;
  for (const VocabularyEntry& entry : entries_) largest = std::max(largest, entry.id);
  if (static_cast<std::size_t>(largest) > 4 * entries_.size() + 262144) {
    return broken_model("token id " + std::to_string(largest) + " is far beyond the vocabulary's " +
                        std::to_string(entries_.size()) + " tokens");
  }
  return std::make_unique<const Vocabulary>(entries_);
}

Result<std::array<TokenId, 256>> byte_tokens(const TokenFinder& finder) {
  std::array<TokenId, 256> tokens;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    tokens[byte] = finder.find({&c, 1});
    const bool in_utf8 = byte < 0xC0 || (byte >= 0xC2 && byte <= 0xF4);
    if (tokens[byte] < 0 && in_utf8) {
      constexpr char kHex[] = "0123456789ABCDEF";
      return broken_model(std::string("the vocabulary has no token for the byte 0x") + kHex[byte >> 4] +
                          kHex[byte & 15] + ", so some text could not be encoded");
    }
  }
  return tokens;
}

}  // namespace nibble
