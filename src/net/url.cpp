#include "net/url.h"

#include <algorithm>

#include "base/quote.h"

namespace nibble {
namespace {

constexpr std::size_t kMostBytes = 16 << 10;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_alphanumeric(char c) { return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'z'); }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  const char letter = lower(c);
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

Status bad_url(std::string_view text) {
  return invalid_argument(quote(text) +
                          " is no http or https address; give for example https://huggingface.co");
}

bool is_host(std::string_view host, bool bracketed) {
  if (host.empty() || host.size() > 253) return false;
  return std::all_of(host.begin(), host.end(), [bracketed](char c) {
    return bracketed ? hex_digit(c) >= 0 || c == ':' || c == '.'
                     : is_alphanumeric(c) || c == '-' || c == '.' || c == '_';
  });
}

bool is_port(std::string_view port) {
  if (port.empty() || port.size() > 5 || !std::all_of(port.begin(), port.end(), is_digit)) return false;
  int number = 0;
  for (const char c : port) number = number * 10 + (c - '0');
  return number > 0 && number < 65536;
}

bool is_path(std::string_view path) {
  return std::all_of(path.begin(), path.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string Url::authority() const {
  const std::string shown = host.find(':') == host.npos ? host : "[" + host + "]";
  return port == (secure() ? "443" : "80") ? shown : shown + ":" + port;
}

std::string Url::text() const { return scheme + "://" + authority() + path; }

bool Url::same_origin(const Url& other) const {
  return scheme == other.scheme && host == other.host && port == other.port;
}

Result<Url> parse_url(std::string_view text) {
  if (text.size() > kMostBytes) return bad_url(text);
  Url url;
  std::string_view rest = text;
  const std::size_t colon = rest.find("://");
  if (colon == rest.npos) return bad_url(text);
  url.scheme = rest.substr(0, colon);
  std::transform(url.scheme.begin(), url.scheme.end(), url.scheme.begin(), lower);
  if (url.scheme != "http" && url.scheme != "https") return bad_url(text);
  rest.remove_prefix(colon + 3);
  const std::size_t end = std::min(rest.find_first_of("/?#"), rest.size());
  std::string_view authority = rest.substr(0, end);
  std::string_view path = rest.substr(end);
  path = path.substr(0, path.find('#'));

  const bool bracketed = authority.starts_with('[');
  const std::size_t host_end =
      bracketed ? authority.find(']') : std::min(authority.find(':'), authority.size());
  if (host_end == authority.npos) return bad_url(text);
  url.host = authority.substr(bracketed ? 1 : 0, host_end - (bracketed ? 1 : 0));
  std::transform(url.host.begin(), url.host.end(), url.host.begin(), lower);
  authority.remove_prefix(host_end + (bracketed ? 1 : 0));
  url.port = url.secure() ? "443" : "80";
  if (!authority.empty()) {
    if (authority.front() != ':') return bad_url(text);
    url.port = authority.substr(1);
  }
  url.path = path.starts_with('/') ? std::string(path) : "/" + std::string(path);
  if (!is_host(url.host, bracketed) || !is_port(url.port) || !is_path(url.path)) return bad_url(text);
  return url;
}

Result<Url> resolve_location(const Url& base, std::string_view location) {
  if (location.starts_with("//")) return parse_url(base.scheme + ":" + std::string(location));
  const std::size_t colon = location.find("://");
  if (colon != location.npos && location.find_first_of("/?#") > colon) return parse_url(location);
  if (!location.starts_with('/')) {
    // A path beside the one that was asked for.
    const std::string_view folder(base.path.data(), base.path.substr(0, base.path.find('?')).rfind('/') + 1);
    return resolve_location(base, std::string(folder) + std::string(location));
  }
  Url url = base;
  url.path = location.substr(0, location.find('#'));
  if (url.path.size() > kMostBytes || !is_path(url.path)) return bad_url(location);
  return url;
}

std::string percent_encode(std::string_view part) {
  static constexpr char digits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : part) {
    if (is_alphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~') {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += '%';
      encoded += digits[byte >> 4];
      encoded += digits[byte & 15];
    }
  }
  return encoded;
}

std::string percent_decode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      decoded += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace nibble
