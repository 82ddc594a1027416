// Words in windows (peer_gather_cuda.h), which say themselves that they have come.
#pragma once

#include "comm/cuda/peer_meeting.cuh"
#include "ops/cuda/absent.h"

namespace nibble {

__device__ __forceinline__ bool has_absent(const uint4& words) {
  return words.x == absent_bits || words.y == absent_bits || words.z == absent_bits || words.w == absent_bits;
}
// As it may be sent: another NaN in place of the one that means that nothing is there.
__device__ __forceinline__ std::uint32_t but_absent(std::uint32_t word) {
  return word == absent_bits ? 0x7fff7fffu : word;
}
__device__ __forceinline__ uint4 but_absent(const uint4& words) {
  return make_uint4(but_absent(words.x), but_absent(words.y), but_absent(words.z), but_absent(words.w));
}

// What `peer` sends to a place of this rank's window, which is absent again then.
__device__ __forceinline__ uint4 take(const PeerRoom& room, uint4* place, int peer, std::uint32_t step) {
  uint4 words = ptx::load_peer(place);
  RankWait wait(room);
  while (has_absent(words) && !wait.is_over(peer, step)) words = ptx::load_peer(place);
  *place = make_uint4(absent_bits, absent_bits, absent_bits, absent_bits);
  return words;
}

}  // namespace nibble
