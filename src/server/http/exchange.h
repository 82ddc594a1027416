// One request and the way back to whoever sent it. Lives on the I/O thread; other threads post to it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/session.h"

namespace nibble::http {

// What the access log says of a generated answer beside its size. Whoever makes the answer keeps it up to
// date, because the client may go at any time.
struct AnswerFacts {
  std::string model;
  std::optional<int> prompt_tokens;
  std::optional<int> cached_tokens;  // of the prompt
  std::optional<int> completion_tokens;
  std::optional<std::chrono::nanoseconds> first_token;  // when it came, by the server's clock
  std::string format;         // what held the answer: kinds of constraints, parted by commas
  std::string finish_reason;  // of several choices the last one's
  int failed_status = 0;      // that a whole answer would have had
  std::string error;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  // The request's body, which is no longer counted as held by the server: its taker counts it, or lets it go.
  virtual std::string take_body() { return request().body; }
  // A whole answer, or a stream. Once the client has gone all of these do nothing.
  virtual void answer(Response response) = 0;
  virtual void begin_stream(Response head) = 0;
  virtual void stream(std::string_view data) = 0;
  virtual void end_stream() = 0;
  virtual void break_stream() = 0;
  // Called once if the client goes before its answer is whole; at once, if it has gone.
  virtual void on_gone(std::function<void()> gone) = 0;
  // Before the answer ends.
  virtual void describe(std::shared_ptr<const AnswerFacts>) {}
};

// Either gets every request and every refusal (the framing was bad); answers each exactly once, now or later.
struct Handler {
  std::function<void(std::shared_ptr<Exchange>)> request;
  // The head holds what is known: all of the request's head, or only who sent it.
  std::function<Response(const Refusal&, const RequestHead& head)> refusal;
  // May be empty. Sees a request when its head is there and nothing of its body is kept yet; what it answers
  // is the answer, and the request goes no further.
  Screen screen;
};

}  // namespace nibble::http
