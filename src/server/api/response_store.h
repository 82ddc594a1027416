// Responses that were asked to be stored, for as long as there is room and they are young. Lives on the I/O
// thread. What it holds is counted with what requests hold; the oldest go first.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/request.h"
#include "server/api/event_log.h"
#include "server/api/request_memory.h"
#include "text/conversation.h"

namespace nibble::api {

// What a conversation holds.
std::size_t bytes_of(const std::vector<Message>& messages);

struct StoredResponse {
  std::string json;
  std::vector<std::string> input_items;  // JSON each, in the order they were sent
  // What a later response goes on from; nothing: this one has not ended, or failed.
  std::shared_ptr<const std::vector<Message>> conversation;
  // While it is made in the background: the engine's first request, and what is left if it is cancelled.
  std::optional<RequestId> running;
  std::string if_cancelled;
  bool background = false;
  std::shared_ptr<EventLog> events;  // of one that is made in the background and streamed

  std::size_t bytes() const;
};

class ResponseStore {
 public:
  static constexpr std::chrono::seconds kept_for{3600};

  // Both outlive the store. `most_bytes`: that it may hold, beside the limit of all requests.
  ResponseStore(RequestMemory& memory, std::size_t most_bytes, const Clock& clock)
      : memory_(memory), most_bytes_(most_bytes), clock_(clock) {}

  // In place of what has the id, if anything has. What is too large is not kept: false.
  bool put(const std::string& id, StoredResponse response);
  // Valid until the store is next asked for anything.
  const StoredResponse* find(const std::string& id);
  bool erase(const std::string& id);

 private:
  struct Entry {
    std::string id;
    StoredResponse response;
    std::chrono::nanoseconds until;
    RequestMemory::Share share;
  };

  void drop_old();
  void drop(std::list<Entry>::iterator entry);

  RequestMemory& memory_;
  const std::size_t most_bytes_;
  const Clock& clock_;
  std::list<Entry> entries_;  // the oldest first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
  std::size_t bytes_ = 0;
};

}  // namespace nibble::api
