// Where the time goes, by name: a table that its owner hands down, and a scope that adds to it. Handing down
// null costs a comparison.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"

namespace nibble {

class TimeTable {
 public:
  struct Row {
    std::string_view name;
    double seconds = 0;
    std::int64_t calls = 0;
  };

  // The name is a literal. Rows stay in the order in which their names came first.
  void add(std::string_view name, double seconds, std::int64_t calls = 1) {
    std::size_t at = 0;
    while (at < used_ && rows_[at].name != name) ++at;
    NIBBLE_CHECK(at < rows_.size(), "more names than rows");
    if (at == used_) rows_[used_++].name = name;
    rows_[at].seconds += seconds;
    rows_[at].calls += calls;
  }
  void add(const TimeTable& other) {
    for (const Row& row : other.rows()) add(row.name, row.seconds, row.calls);
  }
  void clear() {
    rows_ = {};
    used_ = 0;
  }
  std::span<const Row> rows() const { return std::span(rows_).first(used_); }

 private:
  std::array<Row, 24> rows_;
  std::size_t used_ = 0;
};

// Adds its own lifetime to a row.
class TimedScope {
 public:
  TimedScope(TimeTable* table, std::string_view name) : table_(table), name_(name) {
    if (table_ != nullptr) begin_ = std::chrono::steady_clock::now();
  }
  TimedScope(const TimedScope&) = delete;
  TimedScope& operator=(const TimedScope&) = delete;
  ~TimedScope() {
    if (table_ == nullptr) return;
    table_->add(name_, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count());
  }

 private:
  TimeTable* table_;
  std::string_view name_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace nibble
