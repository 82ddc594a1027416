// Pieces of files in pinned memory, from where GPUs take them. Ranks that want the same piece share it: the
// first reads it, and the others find it, if they come while it is there. So what all ranks want is read from
// the host's memory about once, whatever their number.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

class PinnedPieces {
 public:
  static constexpr std::size_t most_bytes = std::size_t{32} << 20;  // of a piece
  static constexpr int places_of_rank = 4;  // with as many a rank's link stays busy while pieces are read

  static Result<std::unique_ptr<PinnedPieces>> make(int places);

  struct Held {
    int place;
    const std::byte* data;
  };
  // Reads a piece to where it will lie. Runs without a lock.
  using Read = std::function<Status(std::byte* to)>;

  // The piece, which stays until it is let go. Waits while another rank reads it, or for a place. Bytes that
  // lie at `piece` do not change.
  Result<Held> hold(std::span<const std::byte> piece, const Read& read);
  // copied: behind the last copy from it. Lives until forget().
  void let_go(const Held& held, cudaEvent_t copied);
  // Returns when all of these have come; nobody waits for them any more.
  void forget(std::span<const cudaEvent_t> events);

 private:
  enum class State { empty, being_read, there };
  struct Place {
    PinnedBuffer memory;
    std::span<const std::byte> piece;
    State state = State::empty;
    int users = 0;
    std::uint64_t last_used = 0;
    std::vector<cudaEvent_t> copies;  // that may still be under way
  };

  PinnedPieces() = default;
  // A place that has the piece or is about to; -1: none.
  int find(std::span<const std::byte> piece) const;
  // The place that was least recently used of those that nobody uses; -1: none.
  int oldest() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;
  std::uint64_t uses_ = 0;
};

}  // namespace nibble
