// Which proxy a request goes through, by the variables that other programs read too. Choosing is pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/url.h"

namespace nibble {

struct Proxy {
  std::string host;
  std::string port;
  std::string authorization;  // the value of Proxy-Authorization; empty: none
};

// The lower-case name wins over the upper-case one. HTTP_PROXY is read in lower case alone: a CGI server sets
// the other from a client's header.
struct ProxyEnvironment {
  std::optional<std::string> http_proxy;
  std::optional<std::string> https_proxy;
  std::optional<std::string> all_proxy;
  std::optional<std::string> no_proxy;

  static ProxyEnvironment of_this_process();
};

// Nothing: the server is asked directly. An address that cannot be used is an error that names the variable.
Result<std::optional<Proxy>> choose_proxy(const ProxyEnvironment& environment, const Url& url);

// Whether no_proxy names the host: "*", "host", ".domain" and "domain" (with all below it), each with an
// optional
// ":port", an address, or a network such as 10.0.0.0/8.
bool bypasses_proxy(std::string_view no_proxy, const Url& url);

}  // namespace nibble
