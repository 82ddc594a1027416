// The KV cache's pages as numbers: who holds which. The bytes themselves live in runtime/kv_store.h.
#pragma once

#include <span>
#include <vector>

#include "core/batch.h"

namespace nibble {

class PagePool;

// Pages held by one sequence, given back when the lease goes. Move-only: a page that is leaked, freed
// twice or used after its release does not compile. The pool must outlive its leases.
class PageLease {
 public:
  PageLease() = default;
  PageLease(PageLease&& other) noexcept;
  PageLease& operator=(PageLease&& other) noexcept;
  PageLease(const PageLease&) = delete;
  PageLease& operator=(const PageLease&) = delete;
  ~PageLease() { release(); }

  std::span<const PageId> pages() const { return pages_; }
  // Takes the memory for the numbers of `count` pages, so that growing to it allocates nothing.
  void reserve(int count) { pages_.reserve(static_cast<std::size_t>(count)); }
  void release();

 private:
  friend class PagePool;
  PagePool* pool_ = nullptr;
  std::vector<PageId> pages_;
};

class PagePool {
 public:
  PagePool(int page_count, int page_size);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  int page_size() const { return page_size_; }
  int page_count() const { return page_count_; }
  int free_count() const { return static_cast<int>(free_.size()); }
  int pages_for(int tokens) const { return (tokens + page_size_ - 1) / page_size_; }

  // Adds pages to `lease` until it holds `count`; takes nothing and returns false when too few are free.
  bool grow(PageLease& lease, int count);

 private:
  friend class PageLease;
  int page_count_;
  int page_size_;
  std::vector<PageId> free_;  // used from the back, so that freed pages are reused while warm
};

}  // namespace nibble
