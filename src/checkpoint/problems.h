// What is wrong with a checkpoint: every problem counted, the first hundred kept, so that a hostile file
// cannot make the list itself the problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"

namespace nibble {

class Problems {
 public:
  static constexpr std::size_t max_kept = 100;

  void add(Status problem) {
    NIBBLE_CHECK(!problem.ok());
    ++count_;
    if (kept_.size() < max_kept) kept_.push_back(std::move(problem));
  }

  bool empty() const { return count_ == 0; }
  std::int64_t count() const { return count_; }
  std::span<const Status> kept() const { return kept_; }
  // Ok when there is none.
  Status first() const { return kept_.empty() ? Status() : kept_.front(); }

 private:
  std::vector<Status> kept_;
  std::int64_t count_ = 0;
};

}  // namespace nibble
