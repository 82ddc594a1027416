// Byte-pair encoding of one piece of text: the pair of neighbours with the lowest rank is merged, the
// leftmost among equals, until no pair has a rank. Exact, n log n in the piece's length, no recursion.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token_id.h"
#include "text/vocabulary.h"

namespace nibble {

struct BpeMerge {
  TokenId left;
  TokenId right;
  std::uint32_t rank;
};

// (left id, right id) -> rank, one 64-bit word an entry: 21 bits an id, 22 bits the rank.
class PairRanks {
 public:
  static constexpr int kIdBits = 21;
  static constexpr int kRankBits = 22;
  // All ones would read as an empty slot.
  static constexpr TokenId kMaxId = (1 << kIdBits) - 2;
  static constexpr std::uint32_t kMaxMerges = (1u << kRankBits) - 1;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  PairRanks() : PairRanks(std::span<const BpeMerge>()) {}
  // Ids are at most kMaxId, ranks below kMaxMerges. Of merges of one pair the first counts.
  explicit PairRanks(std::span<const BpeMerge> merges);
  std::size_t size() const { return used_; }
  std::uint32_t find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right);
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = place_of(key);; at = (at + 1) & mask) {
      const std::uint64_t slot = slots_[at];
      if (slot >> kRankBits == key) return static_cast<std::uint32_t>(slot & ((1u << kRankBits) - 1));
      if (slot == kEmpty) return kNone;
    }
  }
  void prefetch(TokenId left, TokenId right) const {
    __builtin_prefetch(&slots_[place_of(key_of(left, right))]);
  }

 private:
  static constexpr std::uint64_t kEmpty = UINT64_MAX;
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << kIdBits |
           static_cast<std::uint32_t>(right);
  }
  std::size_t place_of(std::uint64_t key) const {
    return static_cast<std::size_t>(key * 0x9E3779B97F4A7C15u >> shift_);
  }

  std::vector<std::uint64_t> slots_;  // a power of two, at most 3/4 full
  int shift_ = 0;                     // 64 - log2(slots)
  std::size_t used_ = 0;
};

struct BpeMerges {
  PairRanks ranks;
  std::vector<TokenId> results;  // [rank] the token that a merge of this rank makes
};

class BpeModel {
 public:
  // When a whole piece is looked up before any merging.
  enum class WholePiece {
    always,        // every token can be met so: ranks of tiktoken, ignore_merges
    when_reached,  // only if merging ends there too, so that the look-up is but a short cut
  };

  struct Parts {
    // Token of each byte; -1 where no valid text has that byte.
    std::array<TokenId, 256> bytes;
    BpeMerges merges;
    // Tokens that plain text may become, as a list and to be found by their bytes.
    std::vector<TokenId> plain;
    TokenFinder finder;
    WholePiece whole_piece;
  };
  // Ids are at most PairRanks::kMaxId, ranks below PairRanks::kMaxMerges. `vocabulary` holds still while the
  // model lives.
  BpeModel(const Vocabulary& vocabulary, Parts parts);

  // Starts to bring in what encode(piece) looks at first.
  void prefetch(std::string_view piece) const { whole_.prefetch(piece); }
  // Appends the ids of a non-empty piece of valid UTF-8 of less than 2^32 - 1 bytes.
  void encode(std::string_view piece, std::vector<TokenId>& ids) const;

 private:
  class LongPiece;
  std::uint32_t byte_pair_rank(std::string_view piece, std::size_t at) const {
    return byte_pairs_[static_cast<std::size_t>(static_cast<unsigned char>(piece[at])) << 8 |
                       static_cast<unsigned char>(piece[at + 1])];
  }
  void merge(std::string_view piece, std::vector<TokenId>& ids) const;
  void merge_short(std::string_view piece, std::vector<TokenId>& ids) const;
  void merge_long(std::string_view piece, std::vector<TokenId>& ids) const;

  std::array<TokenId, 256> bytes_;
  BpeMerges merges_;
  TokenFinder whole_;
  std::vector<std::uint32_t> byte_pairs_;  // [256 * left + right] the rank of two bytes
};

// Every way to write one of `tokens`, which `finder` knows, as two of them, ranked by the joint token's id:
// what a rank file means.
BpeMerges merges_of_ranks(const Vocabulary& vocabulary, const std::vector<TokenId>& tokens,
                          const TokenFinder& finder);

}  // namespace nibble
