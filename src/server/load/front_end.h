// All of a server but its model: sockets, gate and routes before a fake engine, on threads of its own.
#pragma once

#include <memory>
#include <thread>

#include "base/log.h"
#include "server/api/service.h"
#include "server/gate.h"
#include "server/http/socket_server.h"
#include "server/load/fake_engine.h"

namespace nibble {

class FrontEnd {
 public:
  // On any free port of this machine. `tokenizer` is a folder; its threads are of the calling one's affinity.
  static Result<std::unique_ptr<FrontEnd>> start(const std::string& tokenizer, const FakePace& pace,
                                                 int most_waiting, TokenTimes* times);
  ~FrontEnd();

  int port() const { return server_->port(); }

 private:
  FrontEnd(std::unique_ptr<http::SocketServer> server, int most_waiting);

  const SystemClock clock_;
  Log log_;
  std::unique_ptr<http::SocketServer> server_;
  api::Service service_;
  Gate gate_;
  std::thread thread_;
};

}  // namespace nibble
