#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "base/check.h"

namespace nibble {
namespace {

// Up to this many bytes a scan for the lowest rank beats a heap.
constexpr std::size_t kShortPiece = 48;

}  // namespace

PairRanks::PairRanks(std::span<const BpeMerge> merges)
    : slots_(std::bit_ceil(std::max<std::size_t>(merges.size() + merges.size() / 3, 16)), kEmpty),
      shift_(64 - std::countr_zero(slots_.size())) {
  constexpr std::size_t kAhead = 16;  // merges in flight: each is a cache miss
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    if (i + kAhead < merges.size()) {
      const BpeMerge& later = merges[i + kAhead];
      __builtin_prefetch(&slots_[place_of(key_of(later.left, later.right))], 1);
    }
    const BpeMerge& merge = merges[i];
    NIBBLE_CHECK(merge.left >= 0 && merge.left <= kMaxId && merge.right >= 0 && merge.right <= kMaxId &&
                 merge.rank < kMaxMerges);
    const std::uint64_t key = key_of(merge.left, merge.right);
    std::size_t at = place_of(key);
    while (slots_[at] != kEmpty && slots_[at] >> kRankBits != key) at = (at + 1) & mask;
    if (slots_[at] != kEmpty) continue;
    slots_[at] = key << kRankBits | merge.rank;
    ++used_;
  }
}

BpeModel::BpeModel(const Vocabulary& vocabulary, Parts parts)
    : bytes_(parts.bytes), merges_(std::move(parts.merges)), byte_pairs_(256 * 256) {
  for (std::size_t i = 0; i < byte_pairs_.size(); ++i) {
    byte_pairs_[i] = merges_.ranks.find(bytes_[i >> 8], bytes_[i & 255]);
  }
  if (parts.whole_piece == WholePiece::always) {
    whole_ = std::move(parts.finder);
    return;
  }
  std::vector<TokenId> ids;
  std::erase_if(parts.plain, [&](TokenId token) {
    ids.clear();
    merge(vocabulary.bytes(token), ids);
    return ids.size() != 1 || ids[0] != token;
  });
  whole_ = TokenFinder(vocabulary, parts.plain);
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
  for (std::size_t i = 0; i + 1 < count; ++i) rank[i] = byte_pair_rank(piece, i);
  rank[count - 1] = PairRanks::kNone;
  while (count > 1) {
    const std::size_t at = static_cast<std::size_t>(std::min_element(rank, rank + count - 1) - rank);
    if (rank[at] == PairRanks::kNone) break;
    token[at] = merges_.results[rank[at]];
    std::copy(token + at + 2, token + count, token + at + 1);
    std::copy(rank + at + 1, rank + count, rank + at);
    --count;
    rank[at] = at + 1 < count ? merges_.ranks.find(token[at], token[at + 1]) : PairRanks::kNone;
    if (at > 0) rank[at - 1] = merges_.ranks.find(token[at - 1], token[at]);
  }
  ids.insert(ids.end(), token, token + count);
}

// A long piece as a list of tokens, linked by the offset of each one's first byte.
class BpeModel::LongPiece {
 public:
  LongPiece(const BpeModel& model, std::string_view piece) : model_(model), nodes_(piece.size()) {
    const auto size = static_cast<std::uint32_t>(piece.size());
    for (std::uint32_t i = 0; i < size; ++i) {
      const std::uint32_t rank = i + 1 < size ? model.byte_pair_rank(piece, i) : PairRanks::kNone;
      nodes_[i] = {model.bytes_[static_cast<unsigned char>(piece[i])], rank, i - 1, i + 1};
    }
    nodes_[0].previous = kEnd;
    nodes_[size - 1].next = kEnd;
  }

  void merge_all() {
    if (!merge_by_rank()) merge_by_heap();
  }
  void append_to(std::vector<TokenId>& ids) const {
    for (std::uint32_t at = 0; at != kEnd; at = nodes_[at].next) ids.push_back(nodes_[at].token);
  }

 private:
  static constexpr std::uint32_t kEnd = UINT32_MAX;
  struct Node {
    TokenId token;       // -1: now part of one on its left
    std::uint32_t rank;  // with the next token
    std::uint32_t previous, next;
  };

  // Merges the pair at `at` and calls push(rank, at) for the pairs it makes.
  template <class Push>
  void merge_at(std::uint32_t at, Push&& push) {
    Node& node = nodes_[at];
    Node& right = nodes_[node.next];
    node.token = model_.merges_.results[node.rank];
    node.next = right.next;
    if (node.next != kEnd) nodes_[node.next].previous = at;
    right.token = -1;
    right.rank = PairRanks::kNone;
    rerank(at, push);
    if (node.previous != kEnd) rerank(node.previous, push);
  }
  template <class Push>
  void rerank(std::uint32_t at, Push&& push) {
    Node& node = nodes_[at];
    node.rank =
        node.next == kEnd ? PairRanks::kNone : model_.merges_.ranks.find(node.token, nodes_[node.next].token);
    if (node.rank != PairRanks::kNone) push(node.rank, at);
  }

  // What merge_at(at) will look up when this rank's turn comes.
  static constexpr std::size_t kAhead = 6;
  void prefetch_merge(std::uint32_t at, std::uint32_t rank) const {
    const Node& node = nodes_[at];
    if (node.rank != rank) return;
    const TokenId made = model_.merges_.results[rank];
    if (node.previous != kEnd) model_.merges_.ranks.prefetch(nodes_[node.previous].token, made);
    const std::uint32_t after = nodes_[node.next].next;
    if (after != kEnd) model_.merges_.ranks.prefetch(made, nodes_[after].token);
  }

  bool merge_by_rank();
  void merge_by_heap();

  const BpeModel& model_;
  std::vector<Node> nodes_;  // [bytes]
};

namespace {

// Offsets by rank. Ranks come out lowest first, the offsets of one all together.
class RankBuckets {
 public:
  void push(std::uint32_t rank, std::uint32_t offset) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[place_of(slots_, rank)];
    if (slot.rank == kUnused) {
      slot.rank = rank;
      ++used_;
    }
    std::uint32_t entry = free_;
    if (entry != kNone) {
      free_ = entries_[entry].next;
      entries_[entry] = {offset, kNone};
    } else {
      entry = static_cast<std::uint32_t>(entries_.size());
      entries_.push_back({offset, kNone});
    }
    if (slot.first == kNone) {
      slot.first = entry;
      ranks_.push(rank);
    } else {
      entries_[slot.last].next = entry;
    }
    slot.last = entry;
  }

  bool empty() const { return ranks_.empty(); }
  // Takes out the lowest rank, whose offsets replace those in `offsets`, in order.
  std::uint32_t pop(std::vector<std::uint32_t>& offsets) {
    const std::uint32_t rank = ranks_.top();
    ranks_.pop();
    Slot& slot = slots_[place_of(slots_, rank)];
    offsets.clear();
    for (std::uint32_t entry = slot.first; entry != kNone; entry = entries_[entry].next) {
      offsets.push_back(entries_[entry].offset);
    }
    entries_[slot.last].next = free_;
    free_ = slot.first;
    slot.first = kNone;
    if (!std::is_sorted(offsets.begin(), offsets.end())) std::sort(offsets.begin(), offsets.end());
    return rank;
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kUnused = UINT32_MAX;
  struct Slot {
    std::uint32_t rank = kUnused;
    std::uint32_t first = kNone, last = kNone;
  };
  struct Entry {
    std::uint32_t offset;
    std::uint32_t next;
  };

  static std::size_t place_of(const std::vector<Slot>& slots, std::uint32_t rank) {
    const std::size_t mask = slots.size() - 1;
    std::size_t at = rank * 0x9E3779B1u >> 7 & mask;
    while (slots[at].rank != kUnused && slots[at].rank != rank) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<Slot> larger(slots_.size() * 2);
    for (const Slot& slot : slots_) {
      if (slot.rank != kUnused) larger[place_of(larger, slot.rank)] = slot;
    }
    slots_.swap(larger);
  }

  std::vector<Slot> slots_ = std::vector<Slot>(256);  // by rank; a power of two, at most half full
  std::size_t used_ = 0;
  std::vector<Entry> entries_;
  std::uint32_t free_ = kNone;  // entries to use again
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ranks_;  // not empty ones
};

}  // namespace

// A whole rank at a time, from left to right, as long as what the merges of a rank make has higher ranks:
// so it is where merges are ranked in the order they were learned. False if it is not so; then some merging
// is left to do.
bool BpeModel::LongPiece::merge_by_rank() {
  RankBuckets buckets;
  for (std::uint32_t at = 0; at < nodes_.size(); ++at) {
    if (nodes_[at].rank != PairRanks::kNone) buckets.push(nodes_[at].rank, at);
  }
  std::vector<std::uint32_t> offsets;
  while (!buckets.empty()) {
    const std::uint32_t rank = buckets.pop(offsets);
    bool in_order = true;
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      if (i + 2 * kAhead < offsets.size()) __builtin_prefetch(&nodes_[offsets[i + 2 * kAhead]]);
      if (i + kAhead < offsets.size()) prefetch_merge(offsets[i + kAhead], rank);
      const std::uint32_t at = offsets[i];
      if (nodes_[at].rank != rank) continue;  // its pair is no more
      merge_at(at, [&](std::uint32_t made, std::uint32_t where) {
        in_order &= made > rank;
        buckets.push(made, where);
      });
      if (!in_order) return false;
    }
  }
  return true;
}

// One pair at a time, for any order of ranks.
void BpeModel::LongPiece::merge_by_heap() {
  // rank << 32 | offset, lowest first. An entry is stale when its node has another rank by now.
  std::vector<std::uint64_t> heap;
  const auto entry = [](std::uint32_t rank, std::uint32_t at) { return std::uint64_t{rank} << 32 | at; };
  for (std::uint32_t at = 0; at != kEnd; at = nodes_[at].next) {
    if (nodes_[at].rank != PairRanks::kNone) heap.push_back(entry(nodes_[at].rank, at));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const std::uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto at = static_cast<std::uint32_t>(top);
    if (nodes_[at].rank != top >> 32) continue;
    merge_at(at, [&](std::uint32_t made, std::uint32_t where) {
      heap.push_back(entry(made, where));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    });
  }
}

void BpeModel::merge_long(std::string_view piece, std::vector<TokenId>& ids) const {
  NIBBLE_CHECK(piece.size() < UINT32_MAX);
  LongPiece tokens(*this, piece);
  tokens.merge_all();
  tokens.append_to(ids);
}

BpeMerges merges_of_ranks(const Vocabulary& vocabulary, const std::vector<TokenId>& tokens,
                          const TokenFinder& finder) {
  BpeMerges all;
  std::vector<BpeMerge> merges;
  merges.reserve(3 * tokens.size());
  for (const TokenId token : tokens) {
    const std::string_view bytes = vocabulary.bytes(token);
    if (all.results.size() <= static_cast<std::size_t>(token)) {
      all.results.resize(static_cast<std::size_t>(token) + 1, -1);
    }
    all.results[static_cast<std::size_t>(token)] = token;
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      finder.prefetch(bytes.substr(0, cut));
      finder.prefetch(bytes.substr(cut));
    }
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const TokenId left = finder.find(bytes.substr(0, cut));
      if (left < 0) continue;
      const TokenId right = finder.find(bytes.substr(cut));
      if (right >= 0) merges.push_back({left, right, static_cast<std::uint32_t>(token)});
    }
  }
  all.ranks = PairRanks(merges);
  return all;
}

}  // namespace nibble
