#include "server/load/front_end.h"

namespace nibble {

FrontEnd::FrontEnd(std::unique_ptr<http::SocketServer> server, int most_waiting)
    : log_({.write = [](std::string_view) {}}, clock_),  // lines are made, and go nowhere
      server_(std::move(server)),
      service_(*server_, {.served_name = "fake", .version = "0", .most_waiting = most_waiting}, clock_),
      gate_({}, service_.handler(), nullptr, log_, clock_) {}

Result<std::unique_ptr<FrontEnd>> FrontEnd::start(const std::string& tokenizer, const FakePace& pace,
                                                  int most_waiting, TokenTimes* times) {
  NIBBLE_ASSIGN(Tokenizer text, Tokenizer::load(tokenizer));
  const TokenId word = text.encode(" the").front();
  http::ServerLimits limits;
  limits.connections = 1 << 16;
  NIBBLE_ASSIGN(std::unique_ptr<http::SocketServer> server,
                http::SocketServer::listen("127.0.0.1", 0, limits));
  std::unique_ptr<FrontEnd> front(new FrontEnd(std::move(server), most_waiting));
  front->service_.begin(make_fake_engine(pace, word, times),
                        {.tokenizer = std::move(text), .chat = {}, .tokenizer_info = {}});
  front->thread_ = std::thread([self = front.get()] { self->server_->run(self->gate_.handler()); });
  return front;
}

FrontEnd::~FrontEnd() {
  if (!thread_.joinable()) return;
  server_->stop(std::chrono::milliseconds(0));
  thread_.join();
}

}  // namespace nibble
