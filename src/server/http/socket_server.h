// Sessions over sockets, on one I/O thread.
//
// A client that neither reads nor sends is dropped: a request has its time (SessionLimits), and so has every
// write. When connections run out, clients that have not sent a whole request go first (places.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/http/exchange.h"
#include "server/http/listening_socket.h"

namespace nibble::http {

struct ServerLimits {
  SessionLimits session;
  int connections = 4096;
  std::chrono::seconds write_time{30};   // without one byte taken by the client
  std::size_t unsent_bytes = 256 << 10;  // of one stream; a client that far behind is dropped
  std::size_t held_bytes = 256 << 20;    // of all requests that arrive; more get 503
  std::chrono::seconds linger_time{2};   // reading on after the last answer, so that it is not lost
  // A stream of server-sent events that says nothing for so long gets a comment; 0: never.
  std::chrono::milliseconds keep_alive_comment{15'000};
};

// PEM files; both empty: no TLS.
struct TlsFiles {
  std::string certificate;
  std::string key;
};

class SocketServer {
 public:
  // Listens at once; port 0 takes any free one. A port in use is a Status that says so.
  static Result<std::unique_ptr<SocketServer>> listen(const std::string& host, int port,
                                                      const ServerLimits& limits);
  // Accepts from a socket that listens already.
  static Result<std::unique_ptr<SocketServer>> over(ListeningSocket socket, const ServerLimits& limits,
                                                    const TlsFiles& tls);
  virtual ~SocketServer() = default;

  virtual int port() const = 0;
  // Serves until stop(); the handler and everything posted run on the calling thread.
  virtual void run(Handler handler) = 0;
  // From any thread: runs `work` on the I/O thread, at once or after a while.
  virtual void post(std::function<void()> work) = 0;
  virtual void after(std::chrono::milliseconds delay, std::function<void()> work) = 0;
  // From any thread: accepts no more; returns from run() when the last exchange is answered or at the
  // deadline. Called again, the newer deadline counts.
  virtual void stop(std::chrono::milliseconds deadline) = 0;
  virtual int connections() const = 0;
  // On the I/O thread: connections from now on get this certificate. On an error the old one stays.
  virtual Status replace_certificate(const TlsFiles& tls) = 0;
  // Connections that were closed so far because others needed their places.
  virtual std::uint64_t displaced() const = 0;
};

}  // namespace nibble::http
