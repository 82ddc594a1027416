#include "server/api/response_store.h"

namespace nibble::api {
namespace {

constexpr std::size_t of_an_entry = 512, of_a_message = sizeof(Message) + 64;

}  // namespace

std::size_t bytes_of(const std::vector<Message>& messages) {
  std::size_t bytes = 0;
  for (const Message& message : messages) {
    bytes += of_a_message + message.content.value_or("").size() + message.reasoning.size() +
             message.name.size() + message.tool_call_id.size();
    for (const ToolCall& call : message.tool_calls)
      bytes += sizeof(ToolCall) + call.id.size() + call.name.size() + call.arguments.size();
  }
  return bytes;
}

std::size_t StoredResponse::bytes() const {
  std::size_t bytes = of_an_entry + json.size() + if_cancelled.size();
  for (const std::string& item : input_items) bytes += sizeof(std::string) + item.size();
  // Its last event, which may still be to come, has the response once more.
  if (events) bytes += events->bytes() + json.size();
  return bytes + (conversation ? bytes_of(*conversation) : 0);
}

bool ResponseStore::put(const std::string& id, StoredResponse response) {
  erase(id);
  drop_old();
  const std::size_t bytes = response.bytes();
  if (bytes > most_bytes_) return false;
  while (bytes_ + bytes > most_bytes_) drop(entries_.begin());
  std::optional<RequestMemory::Share> share = memory_.admit(bytes);
  while (!share && !entries_.empty()) {
    drop(entries_.begin());
    share = memory_.admit(bytes);
  }
  if (!share) return false;
  entries_.push_back({.id = id,
                      .response = std::move(response),
                      .until = clock_.now() + kept_for,
                      .share = *std::move(share)});
  by_id_[id] = std::prev(entries_.end());
  bytes_ += bytes;
  return true;
}

const StoredResponse* ResponseStore::find(const std::string& id) {
  drop_old();
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second->response;
}

bool ResponseStore::erase(const std::string& id) {
  drop_old();
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  drop(found->second);
  return true;
}

void ResponseStore::drop_old() {
  while (!entries_.empty() && entries_.front().until <= clock_.now()) drop(entries_.begin());
}

void ResponseStore::drop(std::list<Entry>::iterator entry) {
  bytes_ -= entry->share.bytes();
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace nibble::api
