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
#include "server/gate_hosts.h"
#include "server/gate_keys.h"
#include "server/gate_origins.h"
#include "server/http/exchange.h"
#include "server/suspects.h"

namespace nibble {

struct GateOptions {
  ApiKeys keys;
  std::vector<std::string> allowed_origins;  // AllowedOrigins
  std::vector<std::string> allowed_hosts;    // AllowedHosts
  bool check_host = true;                    // refuse other names in Host
};

class Gate {
 public:
  // All outlive the gate; `suspects` may be null.
  Gate(GateOptions options, http::Handler inner, Suspects* suspects, Log& log, const Clock& clock);

  http::Handler handler();
  // From now on. On the I/O thread.
  void set_keys(ApiKeys keys) { keys_ = std::move(keys); }
  // Requests that are not answered yet.
  int open() const { return open_; }
  // The process is about to die, and any of those that are being served may be why: what is noted of them
  // stays, whatever they are answered, and who comes now is not noted.
  void keep_notes() { keeps_notes_ = true; }

 private:
  class Caller;
  class Passage;

  std::optional<http::Response> screen(const http::RequestHead& head);
  std::optional<http::Response> judge(const http::RequestHead& head, std::string& why) const;
  http::Response refuse(const http::Refusal& refusal, const http::RequestHead& head);
  void pass(std::shared_ptr<http::Exchange> exchange);
  std::optional<api::ApiError> enter(const http::HttpRequest& request, int& slot);
  void leave(int slot, bool answered);
  // The name of the key that was given, empty if none is asked for; nothing: it is missing or wrong.
  std::optional<std::string_view> key_name(const http::RequestHead& head) const;

  ApiKeys keys_;
  const AllowedOrigins origins_;
  const AllowedHosts hosts_;
  const bool check_host_;
  http::Handler inner_;
  Suspects* suspects_;
  Log& log_;
  const Clock& clock_;
  int open_ = 0;
  bool keeps_notes_ = false;
  // Slots of requests whose clients went: the engine may still be at them for a moment.
  std::deque<std::pair<int, std::chrono::nanoseconds>> leaving_;
};

}  // namespace nibble
