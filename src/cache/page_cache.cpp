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

SequencePages::SequencePages(SequencePages&& other) noexcept { swap(other); }

SequencePages& SequencePages::operator=(SequencePages&& other) noexcept {
  if (this != &other) {
    release();
    swap(other);
  }
  return *this;
}

void SequencePages::swap(SequencePages& other) noexcept {
  std::swap(cache_, other.cache_);
  std::swap(tables_, other.tables_);
  std::swap(nodes_, other.nodes_);
  std::swap(window_begin_, other.window_begin_);
  std::swap(state_, other.state_);
  std::swap(resumes_, other.resumes_);
  std::swap(branch_, other.branch_);
  std::swap(taken_, other.taken_);
}

void SequencePages::reserve(int count, int snapshots) {
  for (std::vector<PageId>& table : tables_) table.reserve(at(count));
  nodes_.reserve(at(count));
  taken_.reserve(at(snapshots));
}

void SequencePages::release() {
  if (cache_ != nullptr) cache_->release(*this);
  cache_ = nullptr;
}

PageCache::PageCache(const PageCacheOptions& options)
    : options_(options),
      pools_{PagePool(options.page_count[full_pages]), PagePool(options.page_count[window_pages]),
             PagePool(options.snapshots)},
      states_(options.states),
      tree_(options.keep_prefixes ? options.page_count[full_pages] : 0, options.page_size) {
  NIBBLE_CHECK(options.page_size > 0 && options.page_count[full_pages] > 0);
  NIBBLE_CHECK(!has_windows() || options.window > 0);
  NIBBLE_CHECK(options.states == 0 || !options.keep_prefixes || options.snapshots > 0,
               "a prefix needs a state to go on from");
  NIBBLE_CHECK(options.snapshots == 0 || options.states > 0, "a snapshot is one of a state");
  NIBBLE_CHECK(options.snapshots == 0 || options.snapshot_step % options.page_size == 0,
               "a snapshot stands where a page ends");
}

PageCache::~PageCache() {
  NIBBLE_CHECK(states_.free_count() == states_.page_count(), "every sequence gives its state back likewise");
  for (int room = 0; room < node_rooms; ++room)
    NIBBLE_CHECK(used(room) == 0, "every sequence gives its pages back before the cache goes");
  while (idle(full_pages) > 0) pools_[full_pages].give_back(evict(full_pages));
}

PageHash PageCache::root_hash(const Salt& salt) const {
  return cut(keyed_hash(options_.key, salt ? std::string_view(*salt) : std::string_view()),
             options_.hash_bits);
}

PageHash PageCache::hash(std::span<const TokenId> tokens, int index, const PageHash& parent) const {
  const auto page = tokens.subspan(at(index * page_size()), at(page_size()));
  return cut(page_hash(options_.key, parent, page), options_.hash_bits);
}

int PageCache::available(int room) const { return pools_[at(room)].free_count() + idle(room); }

void PageCache::hold(NodeId id, int room) {
  if (tree_[id].holders[at(room)]++ == 0) idle_[at(room)].remove(tree_, id);
}

void PageCache::let_go(NodeId id, int room) {
  if (--tree_[id].holders[at(room)] == 0) idle_[at(room)].push(tree_, id);
}

PageId PageCache::take(int room) {
  if (pools_[at(room)].free_count() > 0) return pools_[at(room)].take();
  ++evicted_[at(room)];
  return evict(room);
}

PageId PageCache::evict(int room) {
  const NodeId id = idle_[at(room)].first();
  NIBBLE_CHECK(id != no_node, "who takes a page has asked whether there is one");
  PrefixNode& node = tree_[id];
  idle_[at(room)].remove(tree_, id);
  const PageId page = std::exchange(node.pages[at(room)], no_page);
  if (room != full_pages) return page;
  // A node lives as long as its full page does. Sequences let deeper pages go first, so what follows it is
  // gone already.
  evict_with(id, window_pages);
  evict_with(id, snapshot_room);
  tree_.remove(id);
  return page;
}

// Nobody holds what else the node owns: who does holds its full page too.
void PageCache::evict_with(NodeId id, int room) {
  const PageId page = tree_[id].pages[at(room)];
  if (page == no_page) return;
  idle_[at(room)].remove(tree_, id);
  pools_[at(room)].give_back(page);
  if (room == snapshot_room) ++evicted_[snapshot_room];
}

template <class Visit>
PageCache::StoredPages PageCache::walk(const TokenPrefix& prefix, int most_tokens, Visit&& visit) const {
  const int most = std::min(most_tokens / page_size(), static_cast<int>(prefix.hashes.size()));
  const int in_window = pages_in_window();
  StoredPages found;
  int window_run = 0;
  NodeId parent = no_node;
  for (int i = 0; i < most; ++i) {
    const auto tokens = prefix.tokens.subspan(at(i * page_size()), at(page_size()));
    const NodeId id = tree_.find(parent, prefix.hashes[at(i)], tokens, prefix.salt);
    if (id == no_node) break;
    visit(id);
    parent = id;
    window_run = tree_[id].pages[window_pages] != no_page ? window_run + 1 : 0;
    // The next token's query looks back over whole window pages, which must all be there.
    if (window_run < std::min(i + 1, in_window)) continue;
    found.stored = i + 1;
    if (!keeps_snapshots() || tree_[id].pages[snapshot_room] != no_page) found.usable = found.stored;
  }
  return found;
}

int PageCache::stored_prefix(const TokenPrefix& prefix, int most_tokens) const {
  if (!options_.keep_prefixes) return 0;
  return walk(prefix, most_tokens, [](NodeId) {}).usable * page_size();
}

int PageCache::adopt(SequencePages& sequence, const TokenPrefix& prefix, int most_tokens) {
  NIBBLE_CHECK(sequence.tables_[full_pages].empty(), "a sequence adopts before it grows");
  sequence.cache_ = this;
  if (!options_.keep_prefixes) return 0;
  const auto [usable, stored] = walk(prefix, most_tokens, [&](NodeId id) { sequence.nodes_.push_back(id); });
  const int in_window = pages_in_window();
  sequence.nodes_.resize(at(usable));
  if (keeps_snapshots()) {
    const int border = last_border(stored * page_size());
    sequence.branch_ = border > usable * page_size() ? border : 0;
    if (usable > 0) {
      hold(sequence.nodes_.back(), snapshot_room);
      sequence.resumes_ = tree_[sequence.nodes_.back()].pages[snapshot_room];
    }
  }
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

void PageCache::resumed(SequencePages& sequence) {
  if (sequence.resumes_ == no_page) return;
  let_go(sequence.nodes_.back(), snapshot_room);
  sequence.resumes_ = no_page;
}

int PageCache::take_snapshot(SequencePages& sequence, int position) {
  NIBBLE_CHECK(keeps_snapshots() && position > 0 && position == last_border(position));
  if (available(snapshot_room) == 0) return no_page;
  sequence.cache_ = this;
  sequence.taken_.push_back({.position = position, .slot = take(snapshot_room)});
  return sequence.taken_.back().slot;
}

// Those of the first `count` tokens go to the tree's nodes.
void PageCache::give_snapshots(SequencePages& sequence, int count) {
  std::vector<StateSnapshot>& taken = sequence.taken_;
  const auto end = std::find_if(taken.begin(), taken.end(),
                                [&](const StateSnapshot& each) { return each.position > count; });
  for (auto each = taken.begin(); each != end; ++each) {
    const NodeId id = sequence.nodes_[at(each->position / page_size() - 1)];
    PageId& kept = tree_[id].pages[snapshot_room];
    if (kept == no_page) {
      kept = each->slot;
      idle_[snapshot_room].push(tree_, id);
    } else {
      pools_[snapshot_room].give_back(each->slot);  // somebody took it meanwhile: the same bits
    }
  }
  taken.erase(taken.begin(), end);
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
  give_snapshots(sequence, pages * page_size());
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
  resumed(sequence);
  for (const StateSnapshot& each : sequence.taken_) pools_[snapshot_room].give_back(each.slot);
  sequence.taken_.clear();
  sequence.branch_ = 0;
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
  for (int room = 0; room < node_rooms; ++room) check(sequences, room);
  int states = 0;
  for (const SequencePages* sequence : sequences) states += sequence->state_ != no_page ? 1 : 0;
  NIBBLE_CHECK(states + states_.free_count() == states_.page_count(), "no state is lost");
}

void PageCache::check(std::span<const SequencePages* const> sequences, int room) const {
  std::vector<int> holders(at(tree_.capacity())), owners(at(page_count(room)));
  for (const SequencePages* sequence : sequences) {
    if (room == snapshot_room) {
      for (const StateSnapshot& each : sequence->taken_) ++owners[at(each.slot)];
      if (sequence->resumes_ == no_page) continue;
      const NodeId id = sequence->nodes_.back();
      NIBBLE_CHECK(tree_[id].pages[snapshot_room] == sequence->resumes_, "a snapshot stays while it is held");
      ++holders[at(id)];
      continue;
    }
    const std::vector<PageId>& table = sequence->tables_[at(room)];
    NIBBLE_CHECK(sequence->nodes_.size() <= sequence->tables_[full_pages].size());
    for (int i = 0; i < static_cast<int>(table.size()); ++i) {
      const bool out = room == window_pages && i < sequence->window_begin_;
      NIBBLE_CHECK(out == (table[at(i)] == no_page), "a page is held until the window has passed it");
      if (out) continue;
      if (i >= sequence->listed()) {
        ++owners[at(table[at(i)])];
        continue;
      }
      const NodeId id = sequence->nodes_[at(i)];
      NIBBLE_CHECK(tree_[id].pages[at(room)] == table[at(i)], "a table shows its node's page");
      ++holders[at(id)];
    }
  }
  int idle_pages = 0;
  for (NodeId id = 0; id < tree_.capacity(); ++id) {
    const PrefixNode& node = tree_[id];
    NIBBLE_CHECK(node.holders[at(room)] == holders[at(id)], "holders are counted");
    if (node.pages[at(room)] == no_page) continue;
    NIBBLE_CHECK(node.pages[full_pages] != no_page, "a node lives as long as its full page");
    ++owners[at(node.pages[at(room)])];
    NIBBLE_CHECK(node.idle[at(room)].linked == (holders[at(id)] == 0), "what nobody holds is idle");
    idle_pages += holders[at(id)] == 0 ? 1 : 0;
  }
  int taken = 0;
  for (const int count : owners) {
    NIBBLE_CHECK(count <= 1, "a page has one owner");
    taken += count;
  }
  NIBBLE_CHECK(idle_pages == idle(room), "idle pages are counted");
  NIBBLE_CHECK(taken + pools_[at(room)].free_count() == page_count(room), "no page is lost");
}

}  // namespace nibble
