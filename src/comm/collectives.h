// Collectives on a CPU, a file an algorithm. Sums are float32 and follow the balanced tree over members of
// comm/leaves.h, so one-shot and two-shot give the same bits on every member, for any size and any chunking.
// NaN, Inf and -0.0f are data. What exceeds a slot goes in pieces. Zero elements are legal and still a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "comm/communicator.h"

namespace nibble {

// The balanced tree over all members' parts of one piece.
void sum_parts(const Communicator::Shares& parts, int members, std::size_t first, std::span<float> out);

// values = the sum of all members' values; all give as many. One-shot: every member adds everything.
Status all_reduce_one_shot(Communicator& communicator, std::span<float> values);
// Two-shot: member i adds the i-th part of each piece and gives it to all.
Status all_reduce_two_shot(Communicator& communicator, std::span<float> values);

// out = the sum over members of the part of `values` that belongs to this one: values hold a part of
// out.size() elements for each member, in their order.
Status reduce_scatter(Communicator& communicator, std::span<const float> values, std::span<float> out);

// all = every member's bytes, in their order; each gives as many.
Status all_gather(Communicator& communicator, std::span<const std::byte> mine, std::span<std::byte> all);

// Columns of a matrix, of which member m has [begins[m], begins[m + 1]), maybe none. `mine` holds this
// member's columns, row after row. `all` gets everybody's side by side; null: this member only gives its own.
struct ColumnParts {
  int rows = 0;
  std::span<const std::int64_t> begins;  // [members + 1]
  const float* mine = nullptr;           // [rows, its columns]
  float* all = nullptr;                  // [rows, begins[members]]
};
Status gather_columns(Communicator& communicator, const ColumnParts& parts);

// Rows of a matrix that every member has room for: owners[i] says which member has row i; of another number
// nobody has it, and it is left as it is. Each row travels once.
struct RowParts {
  std::span<const std::uint8_t> owners;  // [rows]
  std::int64_t width = 0;
  float* rows = nullptr;  // [rows, width]
};
Status gather_rows(Communicator& communicator, const RowParts& parts);

}  // namespace nibble
