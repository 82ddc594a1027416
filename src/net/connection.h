// One connection of a client: TCP, through a proxy where there is one, and TLS where the address asks for it.
// Every call has a deadline, and asks every tenth of a second whether it is cancelled.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/proxy.h"
#include "net/tls.h"
#include "net/url.h"

struct addrinfo;
struct ssl_st;

namespace nibble {

using Deadline = std::chrono::steady_clock::time_point;

// What went wrong with a connection, and whether another try may go better.
struct NetFailure {
  Status status;
  bool may_pass = true;
};

struct ConnectionOptions {
  Url url;
  std::optional<Proxy> proxy;
  const TlsTrust* trust = nullptr;  // needed for https alone; outlives the connection
  std::chrono::milliseconds patience{10000};
  std::function<bool()> cancelled;  // empty: never
};

class Connection {
 public:
  // Null where it failed, which `failure` tells of.
  static std::unique_ptr<Connection> open(const ConnectionOptions& options, NetFailure& failure);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Status write(std::string_view bytes, Deadline deadline);
  // 0 at the end of what the server sends.
  Result<std::size_t> read(char* to, std::size_t size, Deadline deadline);
  // Whether a connection that waits for its next use is still silent and open.
  bool is_fresh() const;
  // A request for http goes to a proxy with its whole address.
  bool through_plain_proxy() const { return options_.proxy && !options_.url.secure(); }
  const ConnectionOptions& options() const { return options_; }

 private:
  explicit Connection(const ConnectionOptions& options);

  Status connect(Deadline deadline);
  Status connect_to(const addrinfo& address, Deadline deadline);
  NetFailure ask_proxy(Deadline deadline);
  NetFailure start_tls(Deadline deadline);
  Status wait(short events, Deadline deadline);
  Result<std::size_t> plain_read(char* to, std::size_t size, Deadline deadline);
  Status plain_write(std::string_view bytes, Deadline deadline);
  // Waits for what TLS asks for after a call that gave `result`; `end` is set at the end of the stream.
  Status wait_for_tls(int result, Deadline deadline, bool& end);

  ConnectionOptions options_;
  int fd_ = -1;
  ssl_st* tls_ = nullptr;
};

}  // namespace nibble
