// What a request to /v1/responses asks beside what every endpoint's requests ask.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/conversation.h"

namespace nibble::api {

struct ResponseOptions {
  bool store = true;
  bool background = false;
  bool summary = false;              // reasoning is told as a summary
  bool encrypted_reasoning = false;  // and as text that the client brings back
  std::string previous;              // the response that this one goes on from; empty: none
  // Told back as they came: JSON.
  std::string metadata = "{}";
  std::string tools = "[]";
  std::string tool_choice = R"("auto")";
  std::string text = R"({"format":{"type":"text"}})";
  std::string summary_kind = "null";
  bool truncate = false;                 // the oldest turns fall away where there is no room
  std::vector<std::string> input_items;  // as /input_items tells them
  // With store: the whole conversation but for the instructions.
  std::shared_ptr<const std::vector<Message>> conversation;
};

}  // namespace nibble::api
