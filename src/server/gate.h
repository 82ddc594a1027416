// What every request passes before its path is looked at, and every answer on its way out: who may ask (Host,
// key, origin), the ids by which a request is known, and one line in the log.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "server/api/api_error.h"
#include "server/http/exchange.h"
#include "server/suspects.h"

namespace nibble {

struct GateOptions {
  std::string api_key;                       // empty: none is asked for
  std::vector<std::string> allowed_origins;  // of pages whose scripts may ask; "*": any
  std::vector<std::string> allowed_hosts;    // names beyond this machine's own
  bool check_host = true;                    // refuse names that only a page of a stranger's would use
};

class Gate {
 public:
  // All outlive the gate; `suspects` may be null.
  Gate(GateOptions options, http::Handler inner, Suspects* suspects, Log& log, const Clock& clock);

  http::Handler handler();
  // Requests that are not answered yet.
  int open() const { return open_; }
  // The process is about to die, and any of those that are being served may be why: what is noted of them
  // stays, whatever they are answered, and who comes now is not noted.
  void keep_notes() { keeps_notes_ = true; }

 private:
  class Passage;

  std::optional<http::Response> screen(const http::RequestHead& head);
  void pass(std::shared_ptr<http::Exchange> exchange);
  http::Response answer_for(const http::RequestHead& head, const api::ApiError& error);
  std::optional<api::ApiError> enter(const http::HttpRequest& request, int& slot);
  void leave(int slot, bool answered);
  bool allowed_host(std::string_view host) const;
  bool has_key(const http::RequestHead& head) const;
  // The origin to name in an answer; empty: none.
  std::string allowed_origin(const http::RequestHead& head) const;

  GateOptions options_;
  http::Handler inner_;
  Suspects* suspects_;
  Log& log_;
  const Clock& clock_;
  int open_ = 0;
  bool keeps_notes_ = false;
  // Slots of requests whose clients went: the engine may still be at them for a moment.
  std::deque<std::pair<int, std::chrono::nanoseconds>> leaving_;
};

// A name or address that reaches this machine only because it is meant: an address, a name without dots,
// localhost and what lies below it. A page of a stranger's that has its own name point here has another.
bool is_local_name(std::string_view host);

}  // namespace nibble
