// What forwards have queued, counted on the host by kind: which of an op's kernels, and how ranks gather. The
// launches of a captured graph are counted once a replay.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nibble {

enum class LaunchKind : std::uint8_t {
  attention_one_row,  // a row a sequence
  attention_rows,
  latent_one_row,
  latent_rows,
  delta_one_row,
  delta_rows,
  experts_few,  // tokens
  experts_many,
  gather_sums,      // of chunks, by the product that makes them
  gather_tokens,    // few rows' columns, through windows
  gather_columns,   // many rows', into the ranks' rooms
  gather_products,  // of experts, by a launch of its own
  send_products,    // of experts, by the kernel that makes them
  dispatch_rows,    // to the experts that they chose, of ranks with sequences of their own
  dispatch_few,     // through windows
  combine_few,      // their products, likewise
  merge_columns,    // by NCCL
  merge_products,   // likewise
};

class LaunchCounts {
 public:
  static constexpr std::size_t kinds = 18;

  void add(LaunchKind kind) { ++counts_[static_cast<std::size_t>(kind)]; }
  std::uint64_t of(LaunchKind kind) const { return counts_[static_cast<std::size_t>(kind)]; }
  void add(const LaunchCounts& others) {
    for (std::size_t i = 0; i < kinds; ++i) counts_[i] += others.counts_[i];
  }

 private:
  std::array<std::uint64_t, kinds> counts_{};
};

}  // namespace nibble
