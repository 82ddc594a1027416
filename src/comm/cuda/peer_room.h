// A rank's end of what the GPUs of one process share: a room on each of them that all may write, laid out
// alike on all, so that what one rank has at some offset the others have there too.
//
// Ranks meet (comm/cuda/peer_meeting.cuh): each writes what the others shall have into their rooms, then says
// so there, and goes on when all have said so in its own. Meetings are numbered; all ranks come to the same
// ones in the same order, on one stream each. A rank comes to a meeting when all that it queued before has
// ended. So a place that one meeting fills may be filled again for the next but one, and not for the next:
// whoever reads it has ended by then.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/cuda/peer_group.h"
#include "comm/rank.h"

namespace nibble {

struct PeerRoom {
  int rank = 0, ranks = 1;
  std::byte* rooms[most_ranks] = {};  // of each rank, as this one's device addresses them
  std::uint32_t* meetings = nullptr;  // [2], in this device's memory: how many there were, and how many
                                      // blocks have sent for the next one
  std::uint32_t* given_up = nullptr;  // there too; not 0: no wait goes on any longer
  PeerFault* fault = nullptr;         // in the host's memory
  std::uint64_t deadline_ns = 0;
};

// Where the other ranks have what this one has at some place, for kernels that write there what they compute.
struct PeerPlaces {
  std::byte* at[most_ranks - 1] = {};
  int count = 0;
};
inline PeerPlaces places_of_others(const PeerRoom& room, const void* mine) {
  PeerPlaces places;
  const std::ptrdiff_t offset = static_cast<const std::byte*>(mine) - room.rooms[room.rank];
  for (int i = 1; i < room.ranks; ++i)
    places.at[places.count++] = room.rooms[(room.rank + i) % room.ranks] + offset;
  return places;
}

// Bytes at a room's begin: a word a rank, to which meeting it has come.
inline constexpr std::size_t peer_room_words = 256;

}  // namespace nibble
