#include "cache/page_pool.h"

#include "base/check.h"

namespace nibble {

PagePool::PagePool(int page_count) {
  NIBBLE_CHECK(page_count >= 0);
  taken_.resize(static_cast<std::size_t>(page_count));
  free_.reserve(taken_.size());
  for (PageId page = page_count - 1; page >= 0; --page) free_.push_back(page);
}

PagePool::~PagePool() {
  NIBBLE_CHECK(free_count() == page_count(), "every page is back before its pool goes");
}

PageId PagePool::take() {
  NIBBLE_CHECK(!free_.empty());
  const PageId page = free_.back();
  free_.pop_back();
  taken_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagePool::give_back(PageId page) {
  std::uint8_t& taken = taken_.at(static_cast<std::size_t>(page));
  NIBBLE_CHECK(taken == 1, "a page is given back once");
  taken = 0;
  free_.push_back(page);
}

}  // namespace nibble
