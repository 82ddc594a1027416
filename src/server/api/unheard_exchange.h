// The other end of an answer that nobody waits for: a response that is made in the background.
#pragma once

#include "server/http/exchange.h"

namespace nibble::api {

class UnheardExchange final : public http::Exchange {
 public:
  const http::HttpRequest& request() const override { return request_; }
  void answer(http::Response) override {}
  void begin_stream(http::Response) override {}
  void stream(std::string_view) override {}
  void end_stream() override {}
  void break_stream() override {}
  void on_gone(std::function<void()>) override {}

 private:
  http::HttpRequest request_;
};

}  // namespace nibble::api
