// Pages whose tokens are known, as a tree: a node is one whole page after its parent's, with the pages that
// hold its keys and values and, of some, a snapshot of the state that a sequence has behind it. An index
// only: who holds a node and what may be evicted is page_cache.h's.
//
//      salt ""  [The story of the] -- [fox who lived in] -- [a wood by the sea]
//                                 \-- [bear who slept i] -- ...
//      salt "t" [The story of the] -- ...
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/page_hash.h"
#include "core/batch.h"

namespace nibble {

using NodeId = std::int32_t;
inline constexpr NodeId no_node = -1;
inline constexpr PageId no_page = -1;

// What a node may own, each with holders and an order of leaving of its own: its page of each group, and the
// slot of a snapshot.
enum NodeRoom : int { snapshot_room = page_groups };
inline constexpr int node_rooms = page_groups + 1;

// Null for the empty salt, so that most requests carry none.
using Salt = std::shared_ptr<const std::string>;

struct PrefixNode {
  PageHash hash;
  NodeId parent = no_node;  // no_node: a prompt begins here
  int children = 0;
  bool listed = false;  // find() may return it
  Salt salt;            // of a node without a parent; the others share their first ancestor's
  std::array<PageId, node_rooms> pages{no_page, no_page, no_page};
  std::array<int, node_rooms> holders{};  // sequences that hold it

  NodeId next_in_bucket = no_node;
  // Neighbours among those of a kind that nobody holds, the longest idle first.
  struct Links {
    NodeId before = no_node;
    NodeId after = no_node;
    bool linked = false;
  };
  std::array<Links, node_rooms> idle;
};

class PrefixTree {
 public:
  // Takes all the memory that `capacity` nodes need.
  PrefixTree(int capacity, int page_size);

  // The child of `parent` with these tokens. Equal hashes alone are not enough.
  NodeId find(NodeId parent, const PageHash& hash, std::span<const TokenId> tokens, const Salt& salt) const;
  // There must be none with these tokens, and room.
  NodeId add(NodeId parent, const PageHash& hash, std::span<const TokenId> tokens, const Salt& salt);
  // No longer found; it stays until remove().
  void unlist(NodeId id);
  void remove(NodeId id);  // without children

  PrefixNode& operator[](NodeId id) { return nodes_[static_cast<std::size_t>(id)]; }
  const PrefixNode& operator[](NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  int capacity() const { return static_cast<int>(nodes_.size()); }
  int size() const { return capacity() - static_cast<int>(free_.size()); }

 private:
  std::size_t bucket_of(const PageHash& hash) const { return hash.low & (buckets_.size() - 1); }
  std::span<TokenId> tokens_of(NodeId id) {
    return std::span(tokens_).subspan(static_cast<std::size_t>(id * page_size_),
                                      static_cast<std::size_t>(page_size_));
  }

  int page_size_;
  std::vector<PrefixNode> nodes_;
  std::vector<TokenId> tokens_;  // [capacity, page_size]
  std::vector<NodeId> free_;
  std::vector<NodeId> buckets_;  // first node of each, a power of two of them
};

// The order in which idle pages of one group, or idle snapshots, go: the longest idle first.
class IdleList {
 public:
  explicit IdleList(int room) : room_(static_cast<std::size_t>(room)) {}

  int count() const { return count_; }
  NodeId first() const { return first_; }
  void push(PrefixTree& tree, NodeId id);
  void remove(PrefixTree& tree, NodeId id);

 private:
  std::size_t room_;
  int count_ = 0;
  NodeId first_ = no_node;
  NodeId last_ = no_node;
};

}  // namespace nibble
