// Between the processes of a world that are on one host: each gives all others handles of its ranks' memory.
// Each is connected to each, from the meeting on, so one that ends is found out by who waits for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/handle_socket.h"
#include "comm/rank.h"

namespace nibble {

class HandleExchange {
 public:
  // `world`: a name that all of them know and nobody else.
  static Result<std::unique_ptr<HandleExchange>> join(const ProcessPlace& place, const std::string& world,
                                                      HandleSocket::Clock::time_point until);

  const ProcessPlace& place() const { return place_; }
  // All call it, in one order. `own` are of memory of this process's ranks, of so many bytes each. Those of
  // each process, [processes]; none of this one's.
  Result<std::vector<std::vector<Descriptor>>> exchange(std::size_t bytes, std::span<const int> own);

 private:
  explicit HandleExchange(const ProcessPlace& place) : place_(place) {}

  const ProcessPlace place_;
  std::vector<HandleSocket> sockets_;  // [processes]; the own one is not open
};

// Which start of which host this is, as the system names it; empty where it does not say.
std::string boot_id();

}  // namespace nibble
