#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace nibble {
namespace {

// A model over a few letters, and the same by definition: look at every pair, merge the leftmost of the
// lowest.
struct Toy {
  std::vector<std::string> tokens;  // [id]
  std::map<std::pair<TokenId, TokenId>, std::uint32_t> ranks;
  std::vector<TokenId> results;

  TokenId id_of(const std::string& token) const {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == token) return static_cast<TokenId>(i);
    }
    return -1;
  }
  TokenId add(const std::string& token) {
    if (id_of(token) < 0) tokens.push_back(token);
    return id_of(token);
  }

  std::vector<TokenId> encode(std::string_view piece) const {
    std::vector<TokenId> ids;
    for (const char c : piece) ids.push_back(id_of(std::string(1, c)));
    while (true) {
      std::size_t best = ids.size();
      std::uint32_t lowest = PairRanks::kNone;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto at = ranks.find({ids[i], ids[i + 1]});
        if (at != ranks.end() && at->second < lowest) {
          lowest = at->second;
          best = i;
        }
      }
      if (best == ids.size()) return ids;
      ids[best] = results[lowest];
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }
};

class Built {
 public:
  Built(const Toy& toy, BpeModel::WholePiece whole_piece, bool by_rank)
      : vocabulary_(entries(toy)), model_(vocabulary_, parts(toy, vocabulary_, whole_piece, by_rank)) {}
  std::vector<TokenId> encode(std::string_view piece) const {
    std::vector<TokenId> ids;
    model_.encode(piece, ids);
    return ids;
  }

 private:
  static std::vector<VocabularyEntry> entries(const Toy& toy) {
    std::vector<VocabularyEntry> all;
    for (const std::string& token : toy.tokens) all.push_back({static_cast<TokenId>(all.size()), token});
    return all;
  }
  static BpeModel::Parts parts(const Toy& toy, const Vocabulary& vocabulary, BpeModel::WholePiece whole_piece,
                               bool by_rank) {
    BpeModel::Parts parts;
    for (TokenId id = 0; id < vocabulary.size(); ++id) parts.plain.push_back(id);
    parts.finder = TokenFinder(vocabulary, parts.plain);
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      parts.bytes[static_cast<std::size_t>(byte)] = parts.finder.find({&c, 1});
    }
    if (by_rank) {
      parts.merges = merges_of_ranks(vocabulary, parts.plain, parts.finder);
    } else {
      std::vector<BpeMerge> merges;
      for (const auto& [pair, rank] : toy.ranks) merges.push_back({pair.first, pair.second, rank});
      parts.merges = {PairRanks(merges), toy.results};
    }
    parts.whole_piece = whole_piece;
    return parts;
  }
  Vocabulary vocabulary_;
  BpeModel model_;
};

// Few letters give many ways to make the same token.
std::string random_piece(std::mt19937& random, std::size_t length, unsigned letters) {
  std::string piece;
  while (piece.size() < length) piece.push_back(static_cast<char>('a' + random() % letters));
  return piece;
}

Toy random_merges(std::mt19937& random, bool in_order) {
  Toy toy;
  for (const char* letter : {"a", "b", "c"}) toy.add(letter);
  std::vector<std::pair<TokenId, TokenId>> pairs;
  std::set<std::pair<TokenId, TokenId>> seen;
  for (int i = 0; i < 24; ++i) {
    const auto left = static_cast<TokenId>(random() % toy.tokens.size());
    const auto right = static_cast<TokenId>(random() % toy.tokens.size());
    const std::string joint =
        toy.tokens[static_cast<std::size_t>(left)] + toy.tokens[static_cast<std::size_t>(right)];
    if (joint.size() > 14 || !seen.insert({left, right}).second) continue;
    toy.add(joint);
    pairs.emplace_back(left, right);
  }
  if (!in_order) std::shuffle(pairs.begin(), pairs.end(), random);
  for (const auto& [left, right] : pairs) {
    toy.ranks[{left, right}] = static_cast<std::uint32_t>(toy.results.size());
    toy.results.push_back(
        toy.id_of(toy.tokens[static_cast<std::size_t>(left)] + toy.tokens[static_cast<std::size_t>(right)]));
  }
  return toy;
}

// Pieces on both sides of where the algorithms change over.
constexpr std::size_t kLengths[] = {1, 2, 3, 5, 9, 17, 40, 47, 48, 49, 64, 200};

TEST(Bpe, MergesListsOfMergesAsDefined) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const Toy toy = random_merges(random, round % 2 == 0);
    const unsigned letters = 1 + random() % 3;
    const Built built(toy, BpeModel::WholePiece::when_reached, false);
    for (const std::size_t length : kLengths) {
      const std::string piece = random_piece(random, length, letters);
      ASSERT_EQ(built.encode(piece), toy.encode(piece)) << piece;
    }
  }
}

TEST(Bpe, MergesRanksAsDefinedThoughTheyBeInAnyOrder) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    Toy toy;
    const unsigned letters = 1 + random() % 3;
    std::set<std::string> tokens;
    while (tokens.size() < 4 + 8 * letters) tokens.insert(random_piece(random, 2 + random() % 13, letters));
    std::vector<std::string> shuffled(tokens.begin(), tokens.end());
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    for (const char* letter : {"a", "b", "c"}) toy.add(letter);
    for (const std::string& token : shuffled) toy.add(token);
    for (std::size_t l = 0; l < toy.tokens.size(); ++l) {
      for (std::size_t r = 0; r < toy.tokens.size(); ++r) {
        const TokenId joint = toy.id_of(toy.tokens[l] + toy.tokens[r]);
        if (joint >= 0)
          toy.ranks[{static_cast<TokenId>(l), static_cast<TokenId>(r)}] = static_cast<std::uint32_t>(joint);
      }
    }
    for (std::size_t i = 0; i < toy.tokens.size(); ++i) toy.results.push_back(static_cast<TokenId>(i));
    const Built built(toy, BpeModel::WholePiece::always, true);
    for (const std::size_t length : kLengths) {
      const std::string piece = random_piece(random, length, letters);
      if (toy.id_of(piece) < 0) {
        ASSERT_EQ(built.encode(piece), toy.encode(piece)) << piece;
      } else {
        ASSERT_EQ(built.encode(piece), std::vector<TokenId>{toy.id_of(piece)}) << piece;
      }
    }
  }
}

TEST(Bpe, AWholePieceIsATokenOnlyWhereTheFileSaysSoOrMergingMakesIt) {
  Toy toy;
  for (const char* token : {"a", "b", "c", "ab", "abc"}) toy.add(token);
  toy.ranks[{0, 1}] = 0;  // "abc" is in the vocabulary, but no merge makes it
  toy.results = {3};
  EXPECT_EQ(Built(toy, BpeModel::WholePiece::when_reached, false).encode("abc"),
            (std::vector<TokenId>{3, 2}));
  EXPECT_EQ(Built(toy, BpeModel::WholePiece::always, false).encode("abc"), std::vector<TokenId>{4});
}

TEST(Bpe, TheLeftmostOfEqualPairsIsMergedFirst) {
  Toy toy;
  for (const char* token : {"a", "aa"}) toy.add(token);
  toy.ranks[{0, 0}] = 0;
  toy.results = {1};
  const Built built(toy, BpeModel::WholePiece::when_reached, false);
  EXPECT_EQ(built.encode("aaa"), (std::vector<TokenId>{1, 0}));
  std::vector<TokenId> ids(50, 1);
  ids.push_back(0);
  EXPECT_EQ(built.encode(std::string(101, 'a')), ids);
}

TEST(TokenFinder, FindsExactlyWhatWasInserted) {
  std::mt19937 random(3);
  std::set<std::string> tokens;
  while (tokens.size() < 2000) {
    std::string token;
    for (std::size_t length = 1 + random() % 40; length > 0; --length)
      token.push_back(static_cast<char>(random() % 3));
    tokens.insert(token);
  }
  std::vector<VocabularyEntry> entries;
  for (const std::string& token : tokens)
    entries.push_back({static_cast<TokenId>(3 * entries.size()), token});
  const Vocabulary vocabulary(entries);
  TokenFinder finder(vocabulary, 4);  // too few, so that it grows
  for (const VocabularyEntry& entry : entries) EXPECT_EQ(finder.insert(entry.id), entry.id);
  for (const VocabularyEntry& entry : entries) {
    EXPECT_EQ(vocabulary.bytes(entry.id), entry.bytes);
    EXPECT_EQ(finder.insert(entry.id), entry.id);
    EXPECT_EQ(finder.find(entry.bytes), entry.id);
    const std::string longer = std::string(entry.bytes) + '\x07';
    EXPECT_EQ(finder.find(longer), -1);
  }
  EXPECT_EQ(finder.find(""), -1);
  EXPECT_EQ(vocabulary.bytes(1), "");
  EXPECT_EQ(vocabulary.bytes(-1), "");
  EXPECT_EQ(vocabulary.bytes(vocabulary.size()), "");
}

}  // namespace
}  // namespace nibble
