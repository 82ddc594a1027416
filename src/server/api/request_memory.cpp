#include "server/api/request_memory.h"

namespace nibble::api {

// A request that is alone is served whatever it holds: its size has limits of its own.
bool RequestMemory::Share::set(std::size_t bytes, std::size_t limit) {
  std::size_t held = total_->held;
  std::size_t wanted = 0;
  do {
    const std::size_t others = held - bytes_;
    wanted = others + bytes;
    if (bytes > bytes_ && others > 0 && wanted > limit) return false;
  } while (!total_->held.compare_exchange_weak(held, wanted));
  bytes_ = bytes;
  return true;
}

std::optional<RequestMemory::Share> RequestMemory::admit(std::size_t bytes) {
  Share share(total_);
  if (!share.hold_to_run(bytes)) return {};
  return share;
}

}  // namespace nibble::api
