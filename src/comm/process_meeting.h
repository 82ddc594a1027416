// How the processes of a world find each other: the first listens, the others tell it who they are, and it
// tells all where the others are. Whoever holds another key, or means another world, is refused with a
// sentence that both sides get.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "comm/handle_exchange.h"
#include "comm/link_key.h"
#include "comm/link_socket.h"
#include "comm/rank.h"

namespace nibble {

struct Meeting {
  ProcessPlace place;
  LinkAddress first;  // where process 0 listens
  LinkKey key;
  std::chrono::milliseconds patience{300'000};  // for the others to come
};

// What each process brings.
struct MeetingTerms {
  // What must be the same in all, by name: ("version", "0.2.0").
  std::vector<std::pair<std::string, std::string>> same;
  // Numbers of which the smallest of all counts.
  std::vector<std::int64_t> least;
  // Of processes with GPUs: the host that all must be on, empty where they may be anywhere, and the GPUs that
  // are this one's alone.
  std::string host;
  std::vector<std::string> devices;
};

struct MetProcesses {
  std::vector<LinkSocket> sockets;  // [processes]: to each; the own one is not open
  std::vector<std::int64_t> least;
  std::unique_ptr<HandleExchange> handles;  // between processes of one host, where the terms name it
};

Result<MetProcesses> meet(const Meeting& meeting, const MeetingTerms& terms);

}  // namespace nibble
