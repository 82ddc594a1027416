// One request and the way back to whoever sent it. Lives on the I/O thread; other threads post to it.
#pragma once

#include <functional>
#include <memory>

#include "server/http/session.h"

namespace nibble::http {

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  // A whole answer, or a stream. Once the client has gone all of these do nothing.
  virtual void answer(Response response) = 0;
  virtual void begin_stream(Response head) = 0;
  virtual void stream(std::string_view data) = 0;
  virtual void end_stream() = 0;
  virtual void break_stream() = 0;
  // Called once if the client goes before its answer is whole; at once, if it has gone.
  virtual void on_gone(std::function<void()> gone) = 0;
};

// Either gets every request and every refusal (the framing was bad); answers each exactly once, now or later.
struct Handler {
  std::function<void(std::shared_ptr<Exchange>)> request;
  std::function<Response(const Refusal&)> refusal;
  // May be empty. Sees a request when its head is there and nothing of its body is kept yet; what it answers
  // is the answer, and the request goes no further.
  Screen screen;
};

}  // namespace nibble::http
