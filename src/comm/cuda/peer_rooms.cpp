#include "comm/cuda/peer_rooms.h"

#include <atomic>
#include <new>
#include <string>
#include <utility>

#include "comm/cuda/on_device.h"
#include "tensor/cuda_check.h"

namespace nibble {

Result<std::unique_ptr<PeerRooms>> PeerRooms::make(const PeerDevices& devices, std::size_t bytes,
                                                   std::chrono::milliseconds deadline, int first_rank) {
  const int ranks = devices.ranks();
  if (ranks != 2 && ranks != 4 && ranks != 8)
    return invalid_argument("2, 4 or 8 GPUs run a model together, not " + std::to_string(ranks));
  std::unique_ptr<PeerRooms> rooms(new PeerRooms);
  rooms->deadline_ = deadline;
  rooms->first_rank_ = first_rank;
  rooms->first_here_ = devices.first;
  NIBBLE_ASSIGN(rooms->memory_, map_peer_memory(devices, peer_room_words + bytes));
  for (int i = devices.first; i < devices.first + devices.here_count(); ++i) {
    Rank rank{.device = devices.here[static_cast<std::size_t>(i - devices.first)]};
    const OnDevice on(rank.device);
    NIBBLE_ASSIGN(rank.words, DeviceBuffer::allocate(3 * sizeof(std::uint32_t)));
    NIBBLE_ASSIGN(rank.fault, PinnedBuffer::allocate(sizeof(PeerFault)));
    rank.words.fill(0);
    rank.room = {.rank = i,
                 .ranks = ranks,
                 .meetings = rank.words.as<std::uint32_t>(),
                 .given_up = rank.words.as<std::uint32_t>() + 2,
                 .fault = new (rank.fault.data()) PeerFault,
                 .deadline_ns = static_cast<std::uint64_t>(
                     std::chrono::duration_cast<std::chrono::nanoseconds>(deadline).count())};
    for (int peer = 0; peer < ranks; ++peer) rank.room.rooms[peer] = rooms->memory_->window(peer);
    cuda_check(cudaMemset(rank.room.rooms[i], 0, peer_room_words + bytes));
    cuda_check(cudaDeviceSynchronize());
    rooms->ranks_.push_back(std::move(rank));
  }
  return Result<std::unique_ptr<PeerRooms>>(std::move(rooms));
}

PeerRooms::~PeerRooms() {
  for (Rank& rank : ranks_) {
    const OnDevice on(rank.device);
    rank.words = {};
    rank.fault = {};
  }
}

void PeerRooms::end_waits_with(const PeerRooms& all) {
  for (Rank& rank : ranks_) rank.room.given_up = all.of(first_rank_ + rank.room.rank).given_up;
}

std::optional<int> PeerRooms::missed_by(int rank) const {
  PeerFault& fault = *of(rank).fault;
  if (std::atomic_ref(fault.state).load(std::memory_order_acquire) == 0) return {};
  return first_rank_ + static_cast<int>(fault.peer);
}

Status PeerRooms::failure(int rank) const {
  const std::optional<int> missed = missed_by(rank);
  if (!missed) return {};
  return internal_error("rank " + std::to_string(first_rank_ + rank) + " waited " +
                        std::to_string(deadline_.count()) + " ms for rank " + std::to_string(*missed) +
                        ", which did not come; what it computed since is void");
}

}  // namespace nibble
