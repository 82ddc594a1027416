#include "cache/page_pool.h"

#include <utility>

#include "base/check.h"

namespace nibble {

PageLease::PageLease(PageLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), pages_(std::exchange(other.pages_, {})) {}

PageLease& PageLease::operator=(PageLease&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    pages_ = std::exchange(other.pages_, {});
  }
  return *this;
}

void PageLease::release() {
  if (pool_ == nullptr) return;
  for (auto page = pages_.rbegin(); page != pages_.rend(); ++page) pool_->free_.push_back(*page);
  pages_.clear();
  pool_ = nullptr;
}

PagePool::PagePool(int page_count, int page_size) : page_count_(page_count), page_size_(page_size) {
  NIBBLE_CHECK(page_count >= 0 && page_size > 0);
  free_.reserve(static_cast<std::size_t>(page_count));
  for (PageId page = page_count - 1; page >= 0; --page) free_.push_back(page);
}

PagePool::~PagePool() { NIBBLE_CHECK(free_count() == page_count_, "every lease is gone before its pool"); }

bool PagePool::grow(PageLease& lease, int count) {
  NIBBLE_CHECK(lease.pool_ == nullptr || lease.pool_ == this, "a lease belongs to one pool");
  const int missing = count - static_cast<int>(lease.pages_.size());
  if (missing > free_count()) return false;
  lease.pool_ = this;
  for (int i = 0; i < missing; ++i) {
    lease.pages_.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

}  // namespace nibble
