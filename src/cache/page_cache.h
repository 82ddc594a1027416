// Who holds which pages of the KV cache, and which are kept for requests that begin alike.
//
// Layers that look back equally far are a page group with its own pool and page tables: full attention needs
// every position of a sequence, sliding windows only the last ones, so a long sequence gives its older window
// pages back while it runs. Whole pages are listed in a prefix tree as soon as their keys and values are
// stored; a page that no sequence holds any more stays until its room is needed, the longest idle first.
//
//                 free  <----------------------------------------------------+
//                  | grow()                                                  | evicted, for grow()
//                  v                store()                 release          |
//   held by one sequence alone  -------------->  in the tree, held  ---->  in the tree, idle
//                  |                                by 1..n          <----
//                  +--> free, on release                            adopt()
//
// Of a model whose layers keep a state, pages alone do not let a sequence go on: it needs the state at that
// position as well. So the tree has snapshots of states at some of its nodes, in slots of their own beside
// those of sequences, and a prefix is adopted up to the deepest one. A snapshot goes with its node or alone,
// the longest idle first; a sequence holds one only until the step that copies it is planned.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "core/batch.h"

namespace nibble {

class PageCache;

// A sequence's pages, given back when it goes. Move-only: a page that is leaked, freed twice or used after
// its release does not compile. The cache must outlive it.
class SequencePages {
 public:
  SequencePages() = default;
  SequencePages(SequencePages&& other) noexcept;
  SequencePages& operator=(SequencePages&& other) noexcept;
  SequencePages(const SequencePages&) = delete;
  SequencePages& operator=(const SequencePages&) = delete;
  ~SequencePages() { release(); }

  PageTables tables() const { return {tables_[full_pages], tables_[window_pages]}; }
  // The slot of its state; -1: none.
  int state() const { return state_; }
  // The snapshot's slot that its first step copies its state from; -1: it has none, or that step is planned.
  int resumes() const { return resumes_; }
  // Adopting found pages up to here, but no snapshot: one here serves whoever begins alike. 0: it found none
  // such.
  int branch() const { return branch_; }
  // The first of its window pages that it still holds.
  int window_begin() const { return window_begin_; }
  // Pages from the start that are in the tree.
  int listed() const { return static_cast<int>(nodes_.size()); }
  // Takes the memory for the numbers of `count` pages a group, so that growing to it allocates nothing, and
  // of snapshots that planned steps take.
  void reserve(int count, int snapshots = 0);
  void release();

 private:
  friend class PageCache;
  void swap(SequencePages& other) noexcept;

  PageCache* cache_ = nullptr;
  std::array<std::vector<PageId>, page_groups> tables_;
  std::vector<NodeId> nodes_;  // of the first pages; what lies behind is this sequence's alone
  int window_begin_ = 0;
  PageId state_ = no_page;
  PageId resumes_ = no_page;  // of the last node, which is held for it
  int branch_ = 0;
  std::vector<StateSnapshot> taken_;  // by steps that are not stored yet, ascending; this sequence's alone
};

// A sequence's tokens as the cache knows them; views into the scheduler's memory.
struct TokenPrefix {
  std::span<const TokenId> tokens;
  std::span<const PageHash> hashes;  // one a whole page of `tokens`, or fewer
  const Salt& salt;
};

struct PageCacheOptions {
  int page_size = 16;
  std::array<int, page_groups> page_count{};  // of a model without windows the second is 0
  int window = 0;                             // positions that window layers see, the own one included
  int states = 0;                             // slots for states, one a sequence; 0: the model keeps none
  int snapshots = 0;       // slots for snapshots of states; of such a model prefixes are kept by them alone
  int snapshot_step = 64;  // positions where one may stand are multiples of it, whole pages
  bool keep_prefixes = true;  // false: nothing is shared or kept
  HashKey key{};
  int hash_bits = 128;  // fewer in tests that want collisions
};

class PageCache {
 public:
  explicit PageCache(const PageCacheOptions& options);
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;
  ~PageCache();

  int page_size() const { return options_.page_size; }
  int pages_for(int tokens) const { return (tokens + page_size() - 1) / page_size(); }
  bool keeps_prefixes() const { return options_.keep_prefixes; }
  bool has_windows() const { return options_.page_count[window_pages] > 0; }
  // Window pages that a query right behind a page boundary looks back to.
  int pages_in_window() const { return has_windows() ? pages_for(options_.window - 1) : 0; }

  // The name of page `index` of the tokens, given those before it.
  PageHash hash(std::span<const TokenId> tokens, int index, const PageHash& parent) const;
  PageHash root_hash(const Salt& salt) const;

  bool keeps_snapshots() const { return options_.keep_prefixes && options_.snapshots > 0; }
  int snapshot_step() const { return options_.snapshot_step; }
  // The last position where a snapshot may stand in so many tokens.
  int last_border(int tokens) const { return tokens / options_.snapshot_step * options_.snapshot_step; }

  // Of the longest stored prefix of at most `most_tokens` tokens, what adopt() would take.
  int stored_prefix(const TokenPrefix& prefix, int most_tokens) const;
  // Takes the longest stored prefix of at most `most_tokens` tokens; returns its tokens, whole pages of them.
  // `sequence` holds nothing before.
  int adopt(SequencePages& sequence, const TokenPrefix& prefix, int most_tokens);
  // Pages of the group that growing to `tokens` tokens takes.
  int missing(const SequencePages& sequence, int group, int tokens) const;
  // Room for `full` tokens in full layers and for tokens up to `windowed` in windows, and for a state; evicts
  // idle pages for it. Takes nothing and returns false when that is not enough.
  bool grow(SequencePages& sequence, int full, int windowed);
  // The step that copies the snapshot is planned: no later step writes to its slot before that.
  void resumed(SequencePages& sequence);
  // A slot for the state behind the first `position` tokens, a border, which a step that is being planned
  // computes; evicts an idle one for it. -1: all are in use.
  int take_snapshot(SequencePages& sequence, int position);
  // The first `count` tokens' keys and values are stored now, and the snapshots taken up to there: whole
  // pages of them serve others.
  void store(SequencePages& sequence, const TokenPrefix& prefix, int count);
  // No query of the sequence before `position` will come any more.
  void leave_window(SequencePages& sequence, int position);
  // What is stored in the sequence's pages shall serve nobody else.
  void distrust(SequencePages& sequence);

  // Of a page group or of snapshots: free, or held by nobody.
  int available(int room) const;
  int idle(int room) const { return idle_[static_cast<std::size_t>(room)].count(); }
  int page_count(int room) const { return pools_[static_cast<std::size_t>(room)].page_count(); }
  int used(int room) const { return page_count(room) - available(room); }
  std::uint64_t evicted() const { return evicted_[full_pages] + evicted_[window_pages]; }
  std::uint64_t evicted_snapshots() const { return evicted_[snapshot_room]; }

  // CHECKs that these are all sequences there are and every page is accounted for. For tests: slow.
  void check(std::span<const SequencePages* const> sequences) const;

 private:
  friend class SequencePages;
  struct StoredPages {
    int usable = 0;  // to go on behind
    int stored = 0;
  };
  // visit(node) for each page of the prefix that is listed, in order.
  template <class Visit>
  StoredPages walk(const TokenPrefix& prefix, int most_tokens, Visit&& visit) const;
  PageId take(int room);
  PageId evict(int room);  // the longest idle
  void evict_with(NodeId id, int room);
  void hold(NodeId id, int room);
  void let_go(NodeId id, int room);
  void give_snapshots(SequencePages& sequence, int count);
  void release(SequencePages& sequence);
  void give_window_pages(SequencePages& sequence, int end);

  void check(std::span<const SequencePages* const> sequences, int room) const;

  PageCacheOptions options_;
  std::array<PagePool, node_rooms> pools_;
  PagePool states_;
  PrefixTree tree_;
  std::array<IdleList, node_rooms> idle_{IdleList(full_pages), IdleList(window_pages),
                                         IdleList(snapshot_room)};
  std::array<std::uint64_t, node_rooms> evicted_{};
};

}  // namespace nibble
