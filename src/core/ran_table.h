// What really ran and how often, in the plan's words: a field of it, the value that ran, and in which form.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"

namespace nibble {

struct RanRow {
  std::string_view field, value, form;  // they outlive the table
  std::uint64_t times = 0;              // since the start, on all ranks together
};

class RanTable {
 public:
  // Joins the row of the same names. What never ran has none.
  void add(const RanRow& row) {
    if (row.times == 0) return;
    const auto end = rows_.begin() + static_cast<std::ptrdiff_t>(used_);
    const auto same = std::find_if(rows_.begin(), end, [&](const RanRow& each) {
      return each.field == row.field && each.value == row.value && each.form == row.form;
    });
    if (same != end) {
      same->times += row.times;
      return;
    }
    NIBBLE_CHECK(used_ < rows_.size(), "more names than rows");
    rows_[used_++] = row;
  }
  std::span<const RanRow> rows() const { return std::span(rows_).first(used_); }

 private:
  std::array<RanRow, 24> rows_;
  std::size_t used_ = 0;
};

}  // namespace nibble
