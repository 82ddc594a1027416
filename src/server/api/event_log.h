// The events of a response that is made in the background. They are kept, so that a client may ask for them
// from any number on, also while more come. Lives on the I/O thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/request_memory.h"
#include "server/http/exchange.h"

namespace nibble::api {

class EventLog : public std::enable_shared_from_this<EventLog> {
 public:
  // The share grows with what is kept, until the end; from then on whoever keeps the log counts it.
  explicit EventLog(RequestMemory::Share share) : share_(std::move(share)) {}

  // Whole events.
  void add(std::string_view events);
  // There are no more.
  void end();
  // Streams the events from number `first` on to the listener, and those that come.
  void tell(const std::shared_ptr<http::Exchange>& listener, std::size_t first);

  std::size_t bytes() const { return events_.size() + ends_.size() * sizeof(std::size_t); }

 private:
  RequestMemory::Share share_;
  std::string events_;
  std::vector<std::size_t> ends_;  // in events_, of each
  bool ended_ = false;
  std::vector<std::shared_ptr<http::Exchange>> listeners_;
};

// The other end of an answer that nobody waits for. Its events go to the log, where there is one.
class BackgroundExchange final : public http::Exchange {
 public:
  explicit BackgroundExchange(std::shared_ptr<EventLog> log) : log_(std::move(log)) {}

  const http::HttpRequest& request() const override { return request_; }
  void answer(http::Response) override {}
  void begin_stream(http::Response) override {}
  void stream(std::string_view events) override {
    if (log_) log_->add(events);
  }
  void end_stream() override {
    if (log_) log_->end();
  }
  void break_stream() override { end_stream(); }
  void on_gone(std::function<void()>) override {}

 private:
  http::HttpRequest request_;
  std::shared_ptr<EventLog> log_;
};

}  // namespace nibble::api
