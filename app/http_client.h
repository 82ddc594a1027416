// Many HTTP requests at once to one server, on the thread that calls run(). Connections are kept and used
// again.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace nibble {

// http://host:port/prefix, its "/v1" at the end taken off.
struct HttpTarget {
  std::string host;
  std::string port = "80";
  std::string prefix;   // "" or "/path"
  std::string api_key;  // sent as a bearer's token, unless empty
};
Result<HttpTarget> read_url(std::string_view url);

struct HttpRequestText {
  std::string method = "GET";
  std::string path;  // after the prefix
  std::string body;  // JSON, if any
};

class HttpClient {
 public:
  struct Handlers {
    // Pieces of the body of an answer with this HTTP status.
    std::function<void(int status, std::string_view bytes)> body;
    // Once, at the end: the HTTP status, 0 if there was none, and what went wrong with the connection.
    std::function<void(int status, const Status& outcome)> done;
  };
  using Time = std::chrono::steady_clock::time_point;

  // Looks the host up.
  static Result<std::unique_ptr<HttpClient>> make(HttpTarget target);
  virtual ~HttpClient() = default;

  // Handlers run inside run(), never inside this call.
  virtual void send(HttpRequestText request, Handlers handlers) = 0;
  virtual void at(Time time, std::function<void()> work) = 0;
  // Until nothing is under way, or stop().
  virtual void run() = 0;
  virtual void stop() = 0;
};

}  // namespace nibble
