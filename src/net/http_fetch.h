// GET over http and https for one thread: redirects, proxies, connections that are kept, and deadlines.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "net/connection.h"
#include "net/http_answer.h"
#include "net/proxy.h"
#include "net/tls.h"
#include "net/url.h"

namespace nibble {

// What all requests of a program share.
struct FetchSettings {
  ProxyEnvironment proxies;
  const TlsTrust* trust = nullptr;  // null: https is refused
  std::string user_agent = "nibble";
  // Without a byte for this long, and for three times as long a head that is not whole or a body that comes
  // in drips, a connection counts as dead.
  std::chrono::milliseconds patience{10000};
  std::function<bool()> cancelled;  // empty: never; any thread may ask it
};

struct FetchRequest {
  Url url;
  // Sent to the origin of `url` alone: a redirect to another one goes without it.
  std::string bearer = {};
  // The first and the last byte wanted.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> range = {};
};

struct FetchOutcome {
  NetFailure failure;  // status ok: the answer is whole, whatever its HTTP status
  HttpAnswer answer;   // its head
  Url url;             // where it came from, after redirects
};

class HttpFetcher {
 public:
  // Pieces of the body; not for redirects. A Status that is not ok ends the request, and no other try helps.
  using Sink = std::function<Status(const HttpAnswer& head, std::string_view bytes)>;

  // The settings outlive it.
  explicit HttpFetcher(const FetchSettings& settings) : settings_(settings) {}

  FetchOutcome get(const FetchRequest& request, const Sink& sink);

 private:
  FetchOutcome get_once(const FetchRequest& request, const Sink& sink);
  NetFailure exchange(Connection& connection, const std::string& bytes, FetchOutcome& outcome,
                      const Sink& sink, bool& heard);
  std::unique_ptr<Connection> take_kept(const Url& url);
  void keep(std::unique_ptr<Connection> connection);

  const FetchSettings& settings_;
  std::vector<std::unique_ptr<Connection>> kept_;  // the last used is the last
};

}  // namespace nibble
