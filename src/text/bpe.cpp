#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace nibble {
namespace {

// Up to this many bytes a scan for the lowest rank beats a heap.
constexpr std::size_t kShortPiece = 48;

}  // namespace

PairRanks::PairRanks(std::size_t expected)
    : slots_(std::bit_ceil(std::max<std::size_t>(expected + expected / 2, 16)), kEmpty),
      shift_(64 - std::countr_zero(slots_.size())) {}

void PairRanks::grow() {
  std::vector<std::uint64_t> old(slots_.size() * 2, kEmpty);
  old.swap(slots_);
  --shift_;
  const std::size_t mask = slots_.size() - 1;
  for (const std::uint64_t slot : old) {
    if (slot == kEmpty) continue;
    std::size_t at = place_of(slot >> kRankBits);
    while (slots_[at] != kEmpty) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

bool PairRanks::insert(TokenId left, TokenId right, std::uint32_t rank) {
  NIBBLE_CHECK(left >= 0 && left <= kMaxId && right >= 0 && right <= kMaxId && rank < kMaxMerges);
  if (4 * (used_ + 1) > 3 * slots_.size()) grow();
  const std::uint64_t key = key_of(left, right);
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = place_of(key);
  for (; slots_[at] != kEmpty; at = (at + 1) & mask) {
    if (slots_[at] >> kRankBits == key) return false;
  }
  slots_[at] = key << kRankBits | rank;
  ++used_;
  return true;
}

BpeModel::BpeModel(const Vocabulary& vocabulary, Parts parts)
    : bytes_(parts.bytes),
      results_(std::move(parts.merges.results)),
      ranks_(parts.merges.merges.size()),
      whole_(vocabulary, parts.whole.size()) {
  for (const BpeMerge& merge : parts.merges.merges) {
    NIBBLE_CHECK(merge.rank < results_.size());
    NIBBLE_CHECK(ranks_.insert(merge.left, merge.right, merge.rank), "merges are distinct pairs");
  }
  std::vector<TokenId> ids;
  for (const TokenId token : parts.whole) {
    if (parts.whole_piece == WholePiece::when_reached) {
      ids.clear();
      merge(vocabulary.bytes(token), ids);
      if (ids.size() != 1 || ids[0] != token) continue;
    }
    whole_.insert(token);
  }
}

void BpeModel::encode(std::string_view piece, std::vector<TokenId>& ids) const {
  if (const TokenId whole = whole_.find(piece); whole >= 0) {
    ids.push_back(whole);
  } else {
    merge(piece, ids);
  }
}

void BpeModel::merge(std::string_view piece, std::vector<TokenId>& ids) const {
  if (piece.size() <= kShortPiece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void BpeModel::merge_short(std::string_view piece, std::vector<TokenId>& ids) const {
  TokenId token[kShortPiece];
  std::uint32_t rank[kShortPiece];  // of token[i] with token[i + 1]; none for the last
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) token[i] = bytes_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) rank[i] = ranks_.find(token[i], token[i + 1]);
  rank[count - 1] = PairRanks::kNone;
  while (count > 1) {
    const std::size_t at = static_cast<std::size_t>(std::min_element(rank, rank + count - 1) - rank);
    if (rank[at] == PairRanks::kNone) break;
    token[at] = results_[rank[at]];
    std::copy(token + at + 2, token + count, token + at + 1);
    std::copy(rank + at + 1, rank + count, rank + at);
    --count;
    rank[at] = at + 1 < count ? ranks_.find(token[at], token[at + 1]) : PairRanks::kNone;
    if (at > 0) rank[at - 1] = ranks_.find(token[at - 1], token[at]);
  }
  ids.insert(ids.end(), token, token + count);
}

void BpeModel::merge_long(std::string_view piece, std::vector<TokenId>& ids) const {
  NIBBLE_CHECK(piece.size() < UINT32_MAX);
  constexpr std::uint32_t kEnd = UINT32_MAX;
  constexpr TokenId kMerged = -1;  // the token here is now part of one on its left
  struct Node {
    TokenId token;
    std::uint32_t rank;  // with the next token
    std::uint32_t previous, next;
  };
  const auto size = static_cast<std::uint32_t>(piece.size());
  std::vector<Node> nodes(size);
  for (std::uint32_t i = 0; i < size; ++i) {
    nodes[i] = {bytes_[static_cast<unsigned char>(piece[i])], PairRanks::kNone, i - 1, i + 1};
  }
  nodes[0].previous = kEnd;
  nodes[size - 1].next = kEnd;

  // rank << 32 | position, lowest first. An entry is stale when its node has another rank by now.
  std::vector<std::uint64_t> heap;
  heap.reserve(size);
  const auto entry = [](std::uint32_t rank, std::uint32_t at) {
    return static_cast<std::uint64_t>(rank) << 32 | at;
  };
  for (std::uint32_t i = 0; i + 1 < size; ++i) {
    nodes[i].rank = ranks_.find(nodes[i].token, nodes[i + 1].token);
    if (nodes[i].rank != PairRanks::kNone) heap.push_back(entry(nodes[i].rank, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto rerank = [&](std::uint32_t at) {
    Node& node = nodes[at];
    node.rank = node.next == kEnd ? PairRanks::kNone : ranks_.find(node.token, nodes[node.next].token);
    if (node.rank == PairRanks::kNone) return;
    heap.push_back(entry(node.rank, at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };

  while (!heap.empty()) {
    const std::uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto at = static_cast<std::uint32_t>(top);
    Node& node = nodes[at];
    if (node.token == kMerged || node.rank != top >> 32) continue;
    Node& right = nodes[node.next];
    node.token = results_[node.rank];
    node.next = right.next;
    if (node.next != kEnd) nodes[node.next].previous = at;
    right.token = kMerged;
    rerank(at);
    if (node.previous != kEnd) rerank(node.previous);
  }
  for (std::uint32_t i = 0; i != kEnd; i = nodes[i].next) ids.push_back(nodes[i].token);
}

BpeMerges merges_of_ranks(const Vocabulary& vocabulary, const std::vector<TokenId>& tokens,
                          const TokenFinder& finder) {
  BpeMerges all;
  for (const TokenId token : tokens) {
    const std::string_view bytes = vocabulary.bytes(token);
    if (all.results.size() <= static_cast<std::size_t>(token)) {
      all.results.resize(static_cast<std::size_t>(token) + 1, -1);
    }
    all.results[static_cast<std::size_t>(token)] = token;
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const TokenId left = finder.find(bytes.substr(0, cut));
      if (left < 0) continue;
      const TokenId right = finder.find(bytes.substr(cut));
      if (right >= 0) all.merges.push_back({left, right, static_cast<std::uint32_t>(token)});
    }
  }
  return all;
}

}  // namespace nibble
