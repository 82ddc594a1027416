// What kernels do with places in windows (comm/cuda/peer_group.h).
#pragma once

#include "comm/cuda/peer_group.h"
#include "comm/ptx/peer.cuh"

namespace nibble {

// Four columns from `column` on, in the window of `holder`.
__device__ __forceinline__ uint4* part_slot(const PeerGroup& group, int holder, std::uint32_t step,
                                            int source, int row, int column) {
  const PeerLayout& layout = group.layout;
  const std::size_t block = static_cast<std::size_t>(step & 1) * static_cast<std::size_t>(layout.members) +
                            static_cast<std::size_t>(source);
  const std::size_t at =
      (block * static_cast<std::size_t>(layout.most_rows) + static_cast<std::size_t>(row)) *
          static_cast<std::size_t>(layout.hidden) +
      static_cast<std::size_t>(column);
  return reinterpret_cast<uint4*>(group.windows[holder] + at * sizeof(float));
}
__device__ __forceinline__ uint4* sum_slot(const PeerGroup& group, int holder, int row, int column) {
  const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(group.layout.hidden) +
                         static_cast<std::size_t>(column);
  return reinterpret_cast<uint4*>(group.windows[holder] + group.layout.sums_begin() + at * sizeof(float));
}
// Eight columns.
__device__ __forceinline__ uint4* row_slot(const PeerGroup& group, int holder, int row, int column) {
  const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(group.layout.hidden) +
                         static_cast<std::size_t>(column);
  return reinterpret_cast<uint4*>(group.windows[holder] + group.layout.rows_begin() + at * 2);
}

__device__ __forceinline__ uint4 words_of(const float4& value) {
  return make_uint4(__float_as_uint(value.x), __float_as_uint(value.y), __float_as_uint(value.z),
                    __float_as_uint(value.w));
}
__device__ __forceinline__ float4 floats_of(const uint4& words) {
  return make_float4(__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                     __uint_as_float(words.w));
}
__device__ __forceinline__ bool holds(const uint4& words, std::uint32_t armed) {
  return words.x == armed || words.y == armed || words.z == armed || words.w == armed;
}
__device__ __forceinline__ bool holds(const uint2& words, std::uint32_t armed) {
  return words.x == armed || words.y == armed;
}
__device__ __forceinline__ bool holds(std::uint32_t word, std::uint32_t armed) { return word == armed; }
__device__ __forceinline__ uint4 four_times(std::uint32_t word) { return make_uint4(word, word, word, word); }

// A part of this member's, with -0.0f as +0.0f, which no sum can tell apart.
__device__ __forceinline__ void push_part(const PeerGroup& group, int holder, std::uint32_t step, int row,
                                          int column, const float4& part) {
  const float4 value = make_float4(__fadd_rn(part.x, 0.0f), __fadd_rn(part.y, 0.0f), __fadd_rn(part.z, 0.0f),
                                   __fadd_rn(part.w, 0.0f));
  ptx::store_peer(part_slot(group, holder, step, group.member, row, column), words_of(value));
}

// One thread's patience over all waits of a kernel. Whoever's ends writes down whom it waited for and leaves
// with what is there, so that graphs drain; all other waits of this device end with it.
class PeerWait {
 public:
  // Waits for an owner are longer than an owner's for parts, so that it is the missing member that is named.
  enum class For { parts, owner };
  __device__ PeerWait(const PeerGroup& group, For what)
      : group_(group), deadline_ns_(what == For::parts ? group.deadline_ns : group.deadline_ns / 4 * 5) {}

  __device__ __forceinline__ bool is_over(std::uint32_t step, int row, int peer) {
    if (++turns_ % 64 != 0) return false;
    begin_ = look(group_, deadline_ns_, begin_, step, row, peer);
    return begin_ == over;
  }

 private:
  static constexpr std::uint64_t over = ~std::uint64_t{0};

  // When the wait began, or that it is over; 0: it has not begun.
  __device__ __noinline__ static std::uint64_t look(const PeerGroup& group, std::uint64_t deadline_ns,
                                                    std::uint64_t begin, std::uint32_t step, int row,
                                                    int peer) {
    if (ptx::load_peer(group.given_up) != 0) return over;
    const std::uint64_t now = ptx::nanoseconds();
    if (begin == 0) return now;
    if (now - begin < deadline_ns) return begin;
    if (atomicAdd(group.given_up, 1u) == 0) {
      group.fault->member = static_cast<std::uint32_t>(group.member);
      group.fault->peer = static_cast<std::uint32_t>(peer);
      group.fault->row = static_cast<std::uint32_t>(row);
      group.fault->step = step;
      ptx::fence_system();
      *const_cast<volatile std::uint32_t*>(&group.fault->state) = 1;
    }
    return over;
  }

  const PeerGroup& group_;
  const std::uint64_t deadline_ns_;
  std::uint32_t turns_ = 0;
  std::uint64_t begin_ = 0;
};

// Fetches `places` vectors at once and again those that have not come. slot(i) is null where nothing is
// wanted; peer(i) is who sends it.
template <int places, class Words, class Slot, class Peer>
__device__ __forceinline__ void await(Words (&words)[places], std::uint32_t armed, const Slot& slot,
                                      const Peer& peer, PeerWait& wait, std::uint32_t step, int row) {
#pragma unroll
  for (int i = 0; i < places; ++i) {
    words[i] = {};
    if (slot(i) != nullptr) words[i] = ptx::load_peer(slot(i));
  }
  while (true) {
    int missing = -1;
#pragma unroll
    for (int i = 0; i < places; ++i) {
      if (!holds(words[i], armed)) continue;
      words[i] = ptx::load_peer(slot(i));
      missing = i;
    }
    if (missing < 0 || wait.is_over(step, row, peer(missing))) return;
  }
}

}  // namespace nibble
