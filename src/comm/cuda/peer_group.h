// A member's end of a group of GPUs, as kernels take it: where everybody's window lies and how far each row
// has come. A window is a member's receive memory, which all members can write.
//
// Protocol. Data is its own flag: a place in a window holds bits that no sender stores until data comes, and
// its reader restores those bits (arms it) once it has read. There are no barriers and no other flags, and
// four-byte words may arrive in any order.
// - parts: for each source and row, float32, in two buffers that take turns; armed by -0.0f, which no sum
// from
//   +0.0f on is (comm/leaves.h). Which buffer follows from the row's step, a count in device memory, so that
//   a captured graph replays. Each row has a step of its own, so calls of changing size follow each other.
// - sums and rows: for each row what its owner gives to all, float32, or bfloat16 or codes with their scales;
//   one buffer. Armed by -0.0f and by bits that rounding to bfloat16 never gives, nor words of codes.
// Why two buffers do: a member writes a row's parts of step n + 2 into the places of step n only after its
// kernel of step n + 1 has ended. That needed every member's parts of n + 1, which each sent after its own
// kernel of step n, with its arming, had ended. An owner writes a row of step n + 1 only after it has that
// row's part from the receiver, sent after the receiver's kernel of step n had ended.
// So all members must launch the same collectives in the same order on one stream each, with nothing of the
// group's pushed before the kernel's dependency wait.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/rank.h"

namespace nibble {

inline constexpr std::uint32_t armed_sum = 0x80000000u;  // -0.0f
inline constexpr std::uint32_t armed_row = 0xffffffffu;  // two bfloat16, NaNs that rounding does not give

// Sizes of a window's parts, in bytes; each begins at a multiple of 16.
struct PeerLayout {
  int members = 1, most_rows = 0, hidden = 0;

  constexpr std::size_t row_elements() const {
    return static_cast<std::size_t>(most_rows) * static_cast<std::size_t>(hidden);
  }
  constexpr std::size_t sums_begin() const {
    return 2 * static_cast<std::size_t>(members) * row_elements() * sizeof(float);
  }
  constexpr std::size_t rows_begin() const { return sums_begin() + row_elements() * sizeof(float); }
  constexpr std::size_t bytes() const { return rows_begin() + row_elements() * 2; }
};

// In the host's memory: the first wait of a member that outlasted its deadline.
struct PeerFault {
  std::uint32_t state = 0;  // 1: the rest is written
  std::uint32_t member = 0, peer = 0, row = 0, step = 0;
};

struct PeerGroup {
  PeerLayout layout;
  int member = 0;
  std::byte* windows[most_ranks] = {};  // of each member, as this one's device addresses them
  std::uint32_t* steps = nullptr;       // [most_rows], in this device's memory
  std::uint32_t* given_up = nullptr;    // there too; not 0: no wait goes on any longer
  PeerFault* fault = nullptr;
  std::uint64_t deadline_ns = 0;
};

}  // namespace nibble
