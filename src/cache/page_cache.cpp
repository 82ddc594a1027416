#include "cache/page_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::uint64_t cut(std::uint64_t word, int bits) {
  return bits >= 64 ? word : bits <= 0 ? 0 : word & ((std::uint64_t{1} << bits) - 1);
}

PageHash cut(const PageHash& hash, int bits) {
  return {.low = cut(hash.low, bits), .high = cut(hash.high, bits - 64)};
}

}  // namespace

SequencePages::SequencePages(SequencePages&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      tables_(std::exchange(other.tables_, {})),
      nodes_(std::exchange(other.nodes_, {})),
      window_begin_(std::exchange(other.window_begin_, 0)),
      state_(std::exchange(other.state_, no_page)) {}

SequencePages& SequencePages::operator=(SequencePages&& other) noexcept {
  if (this != &other) {
    release();
    cache_ = std::exchange(other.cache_, nullptr);
    tables_ = std::exchange(other.tables_, {});
    nodes_ = std::exchange(other.nodes_, {});
    window_begin_ = std::exchange(other.window_begin_, 0);
    state_ = std::exchange(other.state_, no_page);
  }
  return *this;
}

void SequencePages::reserve(int count) {
  for (std::vector<PageId>& table : tables_) table.reserve(at(count));
  nodes_.reserve(at(count));
}

void SequencePages::release() {
  if (cache_ != nullptr) cache_->release(*this);
  cache_ = nullptr;
}

PageCache::PageCache(const PageCacheOptions& options)
    : options_(options),
      pools_{PagePool(options.page_count[full_pages]), PagePool(options.page_count[window_pages])},
      states_(options.states),
      tree_(options.keep_prefixes ? options.page_count[full_pages] : 0, options.page_size) {
  NIBBLE_CHECK(options.page_size > 0 && options.page_count[full_pages] > 0);
  NIBBLE_CHECK(!has_windows() || options.window > 0);
  NIBBLE_CHECK(options.states == 0 || !options.keep_prefixes, "a prefix has no state to go on from");
}

PageCache::~PageCache() {
  NIBBLE_CHECK(states_.free_count() == states_.page_count(), "every sequence gives its state back likewise");
  for (int group = 0; group < page_groups; ++group) {
    NIBBLE_CHECK(used(group) == 0, "every sequence gives its pages back before the cache goes");
    while (idle(group) > 0) pools_[at(group)].give_back(evict(group));
  }
}

PageHash PageCache::root_hash(const Salt& salt) const {
  return cut(keyed_hash(options_.key, salt ? std::string_view(*salt) : std::string_view()),
             options_.hash_bits);
}

PageHash PageCache::hash(std::span<const TokenId> tokens, int index, const PageHash& parent) const {
  const auto page = tokens.subspan(at(index * page_size()), at(page_size()));
  return cut(page_hash(options_.key, parent, page), options_.hash_bits);
}

int PageCache::available(int group) const { return pools_[at(group)].free_count() + idle(group); }

void PageCache::hold(NodeId id, int group) {
  if (tree_[id].holders[at(group)]++ == 0) idle_[at(group)].remove(tree_, id);
}

void PageCache::let_go(NodeId id, int group) {
  if (--tree_[id].holders[at(group)] == 0) idle_[at(group)].push(tree_, id);
}

PageId PageCache::take(int group) {
  if (pools_[at(group)].free_count() > 0) return pools_[at(group)].take();
  ++evicted_;
  return evict(group);
}

PageId PageCache::evict(int group) {
  const NodeId id = idle_[at(group)].first();
  NIBBLE_CHECK(id != no_node, "who takes a page has asked whether there is one");
  PrefixNode& node = tree_[id];
  idle_[at(group)].remove(tree_, id);
  const PageId page = std::exchange(node.pages[at(group)], no_page);
  if (group == window_pages) return page;
  // A node lives as long as its full page does. Sequences let deeper pages go first, so what follows it is
  // gone already.
  if (node.pages[window_pages] != no_page) {
    idle_[window_pages].remove(tree_, id);
    pools_[window_pages].give_back(node.pages[window_pages]);
  }
  tree_.remove(id);
  return page;
}

int PageCache::adopt(SequencePages& sequence, const TokenPrefix& prefix, int most_tokens) {
  NIBBLE_CHECK(sequence.tables_[full_pages].empty(), "a sequence adopts before it grows");
  sequence.cache_ = this;
  if (!options_.keep_prefixes) return 0;
  const int most = std::min(most_tokens / page_size(), static_cast<int>(prefix.hashes.size()));
  const int in_window = pages_in_window();
  int usable = 0, window_run = 0;
  NodeId parent = no_node;
  for (int i = 0; i < most; ++i) {
    const auto tokens = prefix.tokens.subspan(at(i * page_size()), at(page_size()));
    const NodeId id = tree_.find(parent, prefix.hashes[at(i)], tokens, prefix.salt);
    if (id == no_node) break;
    sequence.nodes_.push_back(id);
    parent = id;
    window_run = tree_[id].pages[window_pages] != no_page ? window_run + 1 : 0;
    // The next token's query looks back over whole window pages, which must all be there.
    if (window_run >= std::min(i + 1, in_window)) usable = i + 1;
  }
  sequence.nodes_.resize(at(usable));
  sequence.window_begin_ = has_windows() ? std::max(0, usable - in_window) : 0;
  for (int i = 0; i < usable; ++i) {
    const NodeId id = sequence.nodes_[at(i)];
    hold(id, full_pages);
    sequence.tables_[full_pages].push_back(tree_[id].pages[full_pages]);
    if (!has_windows()) continue;
    const bool seen = i >= sequence.window_begin_;
    if (seen) hold(id, window_pages);
    sequence.tables_[window_pages].push_back(seen ? tree_[id].pages[window_pages] : no_page);
  }
  return usable * page_size();
}

int PageCache::missing(const SequencePages& sequence, int group, int tokens) const {
  if (group == window_pages && !has_windows()) return 0;
  return std::max(0, pages_for(tokens) - static_cast<int>(sequence.tables_[at(group)].size()));
}

bool PageCache::grow(SequencePages& sequence, int full, int windowed) {
  const std::array<int, page_groups> wanted{missing(sequence, full_pages, full),
                                            missing(sequence, window_pages, windowed)};
  for (int group = 0; group < page_groups; ++group) {
    if (wanted[at(group)] > available(group)) return false;
  }
  const bool wants_state = options_.states > 0 && sequence.state_ == no_page;
  if (wants_state && states_.free_count() == 0) return false;
  sequence.cache_ = this;
  if (wants_state) sequence.state_ = states_.take();
  for (int group = 0; group < page_groups; ++group) {
    for (int i = 0; i < wanted[at(group)]; ++i) sequence.tables_[at(group)].push_back(take(group));
  }
  return true;
}

void PageCache::store(SequencePages& sequence, const TokenPrefix& prefix, int count) {
  if (!options_.keep_prefixes) return;
  const int pages = std::min(count / page_size(), static_cast<int>(prefix.hashes.size()));
  for (int i = sequence.listed(); i < pages; ++i) {
    const auto tokens = prefix.tokens.subspan(at(i * page_size()), at(page_size()));
    const NodeId parent = i == 0 ? no_node : sequence.nodes_.back();
    NodeId id = tree_.find(parent, prefix.hashes[at(i)], tokens, prefix.salt);
    PageId& full = sequence.tables_[full_pages][at(i)];
    if (id == no_node) {
      id = tree_.add(parent, prefix.hashes[at(i)], tokens, prefix.salt);
      tree_[id].pages[full_pages] = full;
      tree_[id].holders[full_pages] = 1;
    } else {
      // Somebody stored the same tokens meanwhile: the same bits, so one of the two pages is enough.
      hold(id, full_pages);
      pools_[full_pages].give_back(std::exchange(full, tree_[id].pages[full_pages]));
    }
    sequence.nodes_.push_back(id);
    if (!has_windows() || i < sequence.window_begin_) continue;
    PageId& window = sequence.tables_[window_pages][at(i)];
    if (tree_[id].pages[window_pages] == no_page) {
      tree_[id].pages[window_pages] = window;
      tree_[id].holders[window_pages] = 1;
    } else {
      hold(id, window_pages);
      pools_[window_pages].give_back(std::exchange(window, tree_[id].pages[window_pages]));
    }
  }
}

// Those before page `end`, from the last to the first, so that the first of a prefix is the last to be
// evicted.
void PageCache::give_window_pages(SequencePages& sequence, int end) {
  std::vector<PageId>& table = sequence.tables_[window_pages];
  for (int i = std::min(end, static_cast<int>(table.size())) - 1; i >= sequence.window_begin_; --i) {
    const PageId page = std::exchange(table[at(i)], no_page);
    if (i < sequence.listed()) {
      let_go(sequence.nodes_[at(i)], window_pages);
    } else {
      pools_[window_pages].give_back(page);
    }
  }
  sequence.window_begin_ = std::max(sequence.window_begin_, end);
}

void PageCache::leave_window(SequencePages& sequence, int position) {
  if (!has_windows()) return;
  const int first_seen = std::max(0, position - options_.window + 1);
  const int end = first_seen / page_size();
  if (end > sequence.window_begin_) give_window_pages(sequence, end);
}

void PageCache::distrust(SequencePages& sequence) {
  for (const NodeId id : sequence.nodes_) tree_.unlist(id);
}

void PageCache::release(SequencePages& sequence) {
  give_window_pages(sequence, static_cast<int>(sequence.tables_[window_pages].size()));
  std::vector<PageId>& table = sequence.tables_[full_pages];
  for (int i = static_cast<int>(table.size()) - 1; i >= 0; --i) {
    if (i < sequence.listed()) {
      let_go(sequence.nodes_[at(i)], full_pages);
    } else {
      pools_[full_pages].give_back(table[at(i)]);
    }
  }
  for (std::vector<PageId>& each : sequence.tables_) each.clear();
  sequence.nodes_.clear();
  sequence.window_begin_ = 0;
  if (sequence.state_ != no_page) states_.give_back(std::exchange(sequence.state_, no_page));
}

void PageCache::check(std::span<const SequencePages* const> sequences) const {
  for (int group = 0; group < page_groups; ++group) {
    std::vector<int> holders(at(tree_.capacity())), owners(at(page_count(group)));
    for (const SequencePages* sequence : sequences) {
      const std::vector<PageId>& table = sequence->tables_[at(group)];
      NIBBLE_CHECK(sequence->nodes_.size() <= sequence->tables_[full_pages].size());
      for (int i = 0; i < static_cast<int>(table.size()); ++i) {
        const bool out = group == window_pages && i < sequence->window_begin_;
        NIBBLE_CHECK(out == (table[at(i)] == no_page), "a page is held until the window has passed it");
        if (out) continue;
        if (i >= sequence->listed()) {
          ++owners[at(table[at(i)])];
          continue;
        }
        const NodeId id = sequence->nodes_[at(i)];
        NIBBLE_CHECK(tree_[id].pages[at(group)] == table[at(i)], "a table shows its node's page");
        ++holders[at(id)];
      }
    }
    int idle_pages = 0;
    for (NodeId id = 0; id < tree_.capacity(); ++id) {
      const PrefixNode& node = tree_[id];
      NIBBLE_CHECK(node.holders[at(group)] == holders[at(id)], "holders are counted");
      if (node.pages[at(group)] == no_page) continue;
      ++owners[at(node.pages[at(group)])];
      NIBBLE_CHECK(node.idle[at(group)].linked == (holders[at(id)] == 0), "what nobody holds is idle");
      idle_pages += holders[at(id)] == 0 ? 1 : 0;
    }
    int taken = 0;
    for (const int count : owners) {
      NIBBLE_CHECK(count <= 1, "a page has one owner");
      taken += count;
    }
    NIBBLE_CHECK(idle_pages == idle(group), "idle pages are counted");
    NIBBLE_CHECK(taken + pools_[at(group)].free_count() == page_count(group), "no page is lost");
  }
}

}  // namespace nibble
