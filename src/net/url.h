// http and https addresses, as a client needs them.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace nibble {

struct Url {
  std::string scheme;  // "http" or "https"
  std::string host;    // in lower case; an IPv6 address without its brackets
  std::string port;    // always there
  std::string path;    // begins with '/', with its query; every byte fit for a request's first line

  bool secure() const { return scheme == "https"; }
  std::string authority() const;  // host, and the port where it is not the scheme's own
  std::string text() const;
  // Scheme, host and port alike: what may know each other's secrets.
  bool same_origin(const Url& other) const;
};

// Refuses what is no http or https address, and one with a user or password in it.
Result<Url> parse_url(std::string_view text);

// What a Location of an answer from `base` names: an address, or a path on the same host.
Result<Url> resolve_location(const Url& base, std::string_view location);

// One part of a path, with everything but letters, digits and -._~ as %XX.
std::string percent_encode(std::string_view part);
// %XX back to bytes; what is no %XX stays.
std::string percent_decode(std::string_view text);

}  // namespace nibble
