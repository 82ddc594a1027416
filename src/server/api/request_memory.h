// How much memory all requests hold together, counted before it is taken. A request holds its body until that
// has been read, for the reading what the JSON's values take, and from then on what its answer needs: prompts
// as token ids, the answer so far. What would go beyond the limit is refused, to be asked again later.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

namespace nibble::api {

class RequestMemory {
 public:
  // Half of `most` is for requests as they wait and run; the other half is left for reading them, so that
  // those that wait can always be read and make room.
  explicit RequestMemory(std::size_t most) : total_(std::make_shared<Total>(most)) {}

 private:
  struct Total {
    explicit Total(std::size_t limit) : most(limit) {}
    const std::size_t most;
    std::atomic<std::size_t> held = 0;
  };

 public:
  // What one request holds; given back when it goes, which may be after the RequestMemory. From any thread,
  // one at a time.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept : total_(std::move(other.total_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(total_, other.total_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (total_) total_->held -= bytes_;
    }

    // From now on the request holds this much; false, and nothing changes, where that goes beyond the limit.
    [[nodiscard]] bool hold_to_read(std::size_t bytes) { return set(bytes, total_->most); }
    [[nodiscard]] bool hold_to_run(std::size_t bytes) { return set(bytes, total_->most / 2); }
    // An answer grows whether there is room or not; there will be less for those that come.
    void grow(std::size_t bytes) {
      bytes_ += bytes;
      if (total_) total_->held += bytes;
    }
    std::size_t bytes() const { return bytes_; }

   private:
    friend class RequestMemory;
    explicit Share(std::shared_ptr<Total> total) : total_(std::move(total)) {}
    bool set(std::size_t bytes, std::size_t limit);

    std::shared_ptr<Total> total_;
    std::size_t bytes_ = 0;
  };

  // For a request that comes with this much. Nothing: there is no room now.
  std::optional<Share> admit(std::size_t bytes);
  std::size_t held() const { return total_->held; }

 private:
  std::shared_ptr<Total> total_;
};

}  // namespace nibble::api
