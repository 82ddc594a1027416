// Pages of one group as numbers: which are free. The bytes themselves live in runtime/kv_store.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/batch.h"

namespace nibble {

// Who took a page is SequencePages' and PrefixTree's to know (cache/page_cache.h).
class PagePool {
 public:
  explicit PagePool(int page_count);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  int page_count() const { return static_cast<int>(taken_.size()); }
  int free_count() const { return static_cast<int>(free_.size()); }

  PageId take();  // one must be free
  void give_back(PageId page);

 private:
  std::vector<PageId> free_;         // used from the back, so that freed pages are reused while warm
  std::vector<std::uint8_t> taken_;  // [page_count]
};

}  // namespace nibble
