// Calls that a model made in its last answer and whose results the user has yet to give, one a line.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "app/cli.h"
#include "base/json.h"
#include "base/status.h"
#include "text/conversation.h"

namespace nibble {

// A file with OpenAI's array of {"type":"function","function":{...}}; errors name the place in it.
Result<JsonDocument> read_tools(const std::string& path, Console& console);

class ToolTurn {
 public:
  // Gives an id to each call that has none.
  void begin(std::vector<ToolCall>& calls);
  bool waits() const { return !waiting_.empty(); }
  // What the line of the next result begins with.
  std::string prompt() const { return waiting_.front().name + " returns> "; }
  // The next call's result as a message.
  Message take(std::string result);
  void clear() { waiting_.clear(); }

 private:
  std::deque<ToolCall> waiting_;
  int made_ = 0;  // ids of ours
};

}  // namespace nibble
