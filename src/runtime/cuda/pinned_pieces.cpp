#include "runtime/cuda/pinned_pieces.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tensor/cuda_check.h"

namespace nibble {

Result<std::unique_ptr<PinnedPieces>> PinnedPieces::make(int places) {
  std::unique_ptr<PinnedPieces> made(new PinnedPieces());
  made->places_.resize(static_cast<std::size_t>(places));
  for (Place& place : made->places_) {
    NIBBLE_ASSIGN(place.memory, PinnedBuffer::allocate(most_bytes));
  }
  return Result<std::unique_ptr<PinnedPieces>>(std::move(made));
}

int PinnedPieces::find(std::span<const std::byte> piece) const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.state != State::empty && place.piece.data() == piece.data() &&
        place.piece.size() == piece.size())
      return static_cast<int>(i);
  }
  return -1;
}

int PinnedPieces::oldest() const {
  int found = -1;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.users > 0 || place.state == State::being_read) continue;
    if (found < 0 || place.last_used < places_[static_cast<std::size_t>(found)].last_used)
      found = static_cast<int>(i);
  }
  return found;
}

Result<PinnedPieces::Held> PinnedPieces::hold(std::span<const std::byte> piece, const Read& read) {
  NIBBLE_CHECK(piece.size() <= most_bytes);
  std::unique_lock lock(mutex_);
  int index = -1;
  while (true) {
    index = find(piece);
    if (index >= 0 && places_[static_cast<std::size_t>(index)].state == State::there) {
      Place& place = places_[static_cast<std::size_t>(index)];
      ++place.users;
      place.last_used = ++uses_;
      return Held{index, place.memory.data()};
    }
    if (index < 0) index = oldest();
    if (index >= 0 && places_[static_cast<std::size_t>(index)].state != State::being_read) break;
    changed_.wait(lock);
  }
  Place& place = places_[static_cast<std::size_t>(index)];
  place.piece = piece;
  place.state = State::being_read;
  place.users = 1;
  place.last_used = ++uses_;
  const std::vector<cudaEvent_t> copies = std::exchange(place.copies, {});
  // With the lock, which forget() takes before these events go.
  for (const cudaEvent_t copied : copies) cuda_check(cudaEventSynchronize(copied));
  lock.unlock();
  Status status = read(place.memory.data());
  lock.lock();
  place.state = status.ok() ? State::there : State::empty;
  if (!status.ok()) place.users = 0;
  changed_.notify_all();
  if (!status.ok()) return status;
  return Held{index, place.memory.data()};
}

void PinnedPieces::let_go(const Held& held, cudaEvent_t copied) {
  const std::lock_guard lock(mutex_);
  Place& place = places_[static_cast<std::size_t>(held.place)];
  place.copies.push_back(copied);
  if (--place.users == 0) changed_.notify_all();
}

void PinnedPieces::forget(std::span<const cudaEvent_t> events) {
  for (const cudaEvent_t event : events) cuda_check(cudaEventSynchronize(event));
  const std::lock_guard lock(mutex_);
  for (Place& place : places_) {
    std::erase_if(place.copies,
                  [&](cudaEvent_t copied) { return std::ranges::find(events, copied) != events.end(); });
  }
}

}  // namespace nibble
