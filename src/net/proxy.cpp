#include "net/proxy.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "base/quote.h"

namespace nibble {
namespace {

std::optional<std::string> first_set(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return std::nullopt;
}

std::string base64(std::string_view bytes) {
  static constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t left = std::min<std::size_t>(bytes.size() - at, 3);
    unsigned group = 0;
    for (std::size_t i = 0; i < 3; ++i)
      group = group << 8 | (i < left ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i) text += i <= left ? digits[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

// An address as bytes: 4 or 16 of them; none where it is a name.
struct Address {
  std::array<unsigned char, 16> bytes{};
  int size = 0;
};

Address read_address(const std::string& text) {
  Address address;
  if (inet_pton(AF_INET, text.c_str(), address.bytes.data()) == 1) {
    address.size = 4;
  } else if (inet_pton(AF_INET6, text.c_str(), address.bytes.data()) == 1) {
    address.size = 16;
  }
  return address;
}

// "10.0.0.0/8" and the like.
bool is_in_network(std::string_view network, const std::string& host) {
  const std::size_t slash = network.find('/');
  const Address base = read_address(std::string(network.substr(0, slash)));
  const Address address = read_address(host);
  if (address.size == 0 || base.size != address.size) return false;
  int bits = 0;
  const std::string_view digits = network.substr(slash + 1);
  if (digits.empty() || digits.size() > 3) return false;
  for (const char c : digits) {
    if (c < '0' || c > '9') return false;
    bits = bits * 10 + (c - '0');
  }
  if (bits > base.size * 8) return false;
  for (int i = 0; i < bits; ++i) {
    const auto at = static_cast<std::size_t>(i / 8);
    if (((base.bytes[at] ^ address.bytes[at]) >> (7 - i % 8) & 1) != 0) return false;
  }
  return true;
}

// The port of "host:port"; an address of IPv6 has colons of its own.
std::string_view take_port(std::string_view& entry) {
  const bool bracketed = entry.starts_with('[');
  const std::size_t colon = bracketed ? entry.find("]:") : entry.find(':');
  std::string_view port;
  if (colon != entry.npos && (bracketed || entry.find(':', colon + 1) == entry.npos)) {
    port = entry.substr(colon + (bracketed ? 2 : 1));
    entry = entry.substr(0, colon + (bracketed ? 1 : 0));
  }
  if (bracketed && entry.ends_with(']')) entry = entry.substr(1, entry.size() - 2);
  return port;
}

bool matches(std::string_view entry, const Url& url) {
  if (entry == "*") return true;
  if (entry.find('/') != entry.npos) return is_in_network(entry, url.host);
  const std::string_view port = take_port(entry);
  if (!port.empty() && port != url.port) return false;
  std::string name(entry);
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  if (name.starts_with("*.")) name.erase(0, 1);
  if (name.starts_with('.')) name.erase(0, 1);
  if (name.empty()) return false;
  if (url.host == name) return true;
  // An address has no domains.
  return read_address(url.host).size == 0 && url.host.ends_with("." + name);
}

}  // namespace

ProxyEnvironment ProxyEnvironment::of_this_process() {
  return {.http_proxy = first_set({"http_proxy"}),
          .https_proxy = first_set({"https_proxy", "HTTPS_PROXY"}),
          .all_proxy = first_set({"all_proxy", "ALL_PROXY"}),
          .no_proxy = first_set({"no_proxy", "NO_PROXY"})};
}

bool bypasses_proxy(std::string_view no_proxy, const Url& url) {
  while (!no_proxy.empty()) {
    const std::size_t end = std::min(no_proxy.find_first_of(", \t"), no_proxy.size());
    if (end > 0 && matches(no_proxy.substr(0, end), url)) return true;
    no_proxy.remove_prefix(std::min(end + 1, no_proxy.size()));
  }
  return false;
}

Result<std::optional<Proxy>> choose_proxy(const ProxyEnvironment& environment, const Url& url) {
  const std::optional<std::string>& own = url.secure() ? environment.https_proxy : environment.http_proxy;
  const std::optional<std::string>& address = own ? own : environment.all_proxy;
  if (!address || bypasses_proxy(environment.no_proxy.value_or(""), url)) return std::optional<Proxy>();
  const std::string name = own ? (url.secure() ? "https_proxy" : "http_proxy") : "all_proxy";
  std::string rest = *address;
  if (rest.find("://") == rest.npos) rest = "http://" + rest;
  // What it says may hold a password, so it is not shown.
  const Status unusable = invalid_argument(
      "the variable " + name +
      " holds no proxy that can be used; give http://host:port or http://user:password@host:port");
  if (!rest.starts_with("http://")) return unusable;
  const std::size_t begin = std::string_view("http://").size();
  const std::size_t at = rest.rfind('@', std::min(rest.find('/', begin), rest.size()));
  std::string user;
  if (at != rest.npos && at >= begin) {
    user = percent_decode(rest.substr(begin, at - begin));
    rest.erase(begin, at + 1 - begin);
  }
  const Result<Url> parsed = parse_url(rest);
  if (!parsed.ok()) return unusable;
  return std::optional<Proxy>({.host = parsed->host,
                               .port = parsed->port,
                               .authorization = user.empty() ? "" : "Basic " + base64(user)});
}

}  // namespace nibble
