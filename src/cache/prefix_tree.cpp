#include "cache/prefix_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

std::string_view text_of(const Salt& salt) { return salt ? std::string_view(*salt) : std::string_view(); }

}  // namespace

PrefixTree::PrefixTree(int capacity, int page_size)
    : page_size_(page_size),
      nodes_(static_cast<std::size_t>(capacity)),
      tokens_(static_cast<std::size_t>(capacity) * static_cast<std::size_t>(page_size)),
      buckets_(std::bit_ceil(static_cast<std::size_t>(std::max(capacity, 1))), no_node) {
  free_.reserve(nodes_.size());
  for (NodeId id = capacity - 1; id >= 0; --id) free_.push_back(id);
}

NodeId PrefixTree::find(NodeId parent, const PageHash& hash, std::span<const TokenId> tokens,
                        const Salt& salt) const {
  for (NodeId id = buckets_[bucket_of(hash)]; id != no_node; id = (*this)[id].next_in_bucket) {
    const PrefixNode& node = (*this)[id];
    if (node.hash != hash || node.parent != parent) continue;
    if (parent == no_node && text_of(node.salt) != text_of(salt)) continue;
    const auto own = tokens_.begin() + static_cast<std::ptrdiff_t>(id) * page_size_;
    if (std::equal(tokens.begin(), tokens.end(), own, own + page_size_)) return id;
  }
  return no_node;
}

NodeId PrefixTree::add(NodeId parent, const PageHash& hash, std::span<const TokenId> tokens,
                       const Salt& salt) {
  NIBBLE_CHECK(!free_.empty() && static_cast<int>(tokens.size()) == page_size_);
  const NodeId id = free_.back();
  free_.pop_back();
  NodeId& bucket = buckets_[bucket_of(hash)];
  (*this)[id] = {.hash = hash,
                 .parent = parent,
                 .listed = true,
                 .salt = parent == no_node ? salt : nullptr,
                 .next_in_bucket = std::exchange(bucket, id)};
  std::copy(tokens.begin(), tokens.end(), tokens_of(id).begin());
  if (parent != no_node) ++(*this)[parent].children;
  return id;
}

void PrefixTree::unlist(NodeId id) {
  PrefixNode& node = (*this)[id];
  if (!node.listed) return;
  node.listed = false;
  NodeId* link = &buckets_[bucket_of(node.hash)];
  while (*link != id) link = &(*this)[*link].next_in_bucket;
  *link = node.next_in_bucket;
}

void PrefixTree::remove(NodeId id) {
  PrefixNode& node = (*this)[id];
  NIBBLE_CHECK(node.children == 0, "a page goes after those that follow it");
  unlist(id);
  if (node.parent != no_node) --(*this)[node.parent].children;
  node = {};
  free_.push_back(id);
}

void IdleList::push(PrefixTree& tree, NodeId id) {
  PrefixNode::Links& links = tree[id].idle[room_];
  NIBBLE_CHECK(!links.linked);
  links = {.before = last_, .after = no_node, .linked = true};
  (last_ == no_node ? first_ : tree[last_].idle[room_].after) = id;
  last_ = id;
  ++count_;
}

void IdleList::remove(PrefixTree& tree, NodeId id) {
  PrefixNode::Links& links = tree[id].idle[room_];
  NIBBLE_CHECK(links.linked);
  (links.before == no_node ? first_ : tree[links.before].idle[room_].after) = links.after;
  (links.after == no_node ? last_ : tree[links.after].idle[room_].before) = links.before;
  links = {};
  --count_;
}

}  // namespace nibble
