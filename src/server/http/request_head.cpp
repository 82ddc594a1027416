#include "server/http/request_head.h"

#include <algorithm>
#include <charconv>

#include "base/utf8.h"

namespace nibble::http {
namespace {

constexpr std::string_view line_end = "\r\n";

bool is_token_character(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_visible(char c) { return c > ' ' && c < 0x7f; }

// What a field's value may hold: visible characters, bytes beyond ASCII, spaces and tabs.
bool is_value_character(char c) {
  return c == '\t' || c == ' ' || is_visible(c) || static_cast<unsigned char>(c) >= 0x80;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// uri-host [":" port]: letters, digits and what addresses and names are written with.
bool is_host(std::string_view text) {
  if (text.empty()) return false;
  std::string_view name = text, port;
  if (text.front() == '[') {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return false;
    name = text.substr(1, close - 1);
    port = text.substr(close + 1);
    if (name.empty() || name.find_first_not_of("0123456789abcdefABCDEF:.") != std::string_view::npos)
      return false;
  } else {
    const std::size_t colon = text.find(':');
    name = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon);
    const auto fits = [](char c) {
      return (is_token_character(c) && c != '#' && c != '^' && c != '`' && c != '|') || c == '(' || c == ')';
    };
    if (name.empty() || !std::all_of(name.begin(), name.end(), fits)) return false;
  }
  if (port.empty()) return true;
  return port.front() == ':' && port.size() <= 6 &&
         port.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

Refusal bad_request(std::string message) { return {400, std::move(message)}; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char letter = lower(c);
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// Decodes every %XX once. What no name of ours could hold is refused here, so that routes and the log need
// not look again.
std::optional<Refusal> decode_path(std::string_view sent, RequestHead& head) {
  head.path.reserve(sent.size());
  for (std::size_t at = 0; at < sent.size(); ++at) {
    if (sent[at] != '%') {
      head.path += sent[at];
      continue;
    }
    const int high = at + 2 < sent.size() ? hex_digit(sent[at + 1]) : -1;
    const int low = high >= 0 ? hex_digit(sent[at + 2]) : -1;
    if (low < 0)
      return bad_request("the path has a % without two hexadecimal digits after it; write %25 for a %");
    const char decoded = static_cast<char>(high * 16 + low);
    if (static_cast<unsigned char>(decoded) < ' ' || decoded == 0x7f)
      return bad_request("the path has an escaped control character");
    if (decoded == '/') head.escaped_slash = std::min(head.escaped_slash, head.path.size());
    head.path += decoded;
    at += 2;
  }
  if (!is_valid_utf8(head.path)) return bad_request("the path's escapes are not UTF-8");
  return {};
}

// Reads the target into path, query and, for the absolute form, the host it names.
std::optional<Refusal> read_target(std::string_view target, RequestHead& head, std::string& authority) {
  if (!std::all_of(target.begin(), target.end(), is_visible))
    return bad_request("the request target has a character that must be percent-encoded");
  if (target == "*" && head.method == "OPTIONS") {
    head.path = "*";
    return {};
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() < scheme.size() || lowered(target.substr(0, scheme.size())) != scheme) continue;
    const std::string_view rest = target.substr(scheme.size());
    const std::size_t slash = rest.find_first_of("/?");
    authority = rest.substr(0, slash);
    if (!is_host(authority)) return bad_request("the request target names no host");
    target = slash == std::string_view::npos ? std::string_view("/") : rest.substr(slash);
    break;
  }
  if (target.find('#') != std::string_view::npos) return bad_request("the request target has a fragment");
  const std::size_t question = target.find('?');
  std::string_view path = target.substr(0, question);
  if (question != std::string_view::npos) head.query = target.substr(question + 1);
  if (path.empty() && !authority.empty()) path = "/";
  if (path.empty() || path.front() != '/')
    return bad_request("the request target is neither a path nor a URL");
  return decode_path(path, head);
}

std::optional<Refusal> read_request_line(std::string_view line, const HeadLimits& limits, RequestHead& head,
                                         std::string& authority) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    return bad_request("the request line is not: method, target, version");
  head.method = line.substr(0, first);
  if (!is_token(head.method) || head.method.size() > 32) return bad_request("the method is not a token");
  const std::string_view target = line.substr(first + 1, last - first - 1), version = line.substr(last + 1);
  if (target.find(' ') != std::string_view::npos || target.empty())
    return bad_request("the request line is not: method, target, version");
  if (target.size() > limits.target_bytes)
    return Refusal{414,
                   "the request target is longer than " + std::to_string(limits.target_bytes) + " bytes"};
  if (version.size() != 8 || version.substr(0, 5) != "HTTP/" || version[6] != '.' || version[5] < '0' ||
      version[5] > '9' || version[7] < '0' || version[7] > '9') {
    return bad_request("the version is not HTTP/1.1 or HTTP/1.0");
  }
  if (version[5] != '1') return Refusal{505, "this server speaks HTTP/1.1 and HTTP/1.0"};
  head.minor_version = version[7] == '0' ? 0 : 1;
  return read_target(target, head, authority);
}

std::optional<Refusal> read_field(std::string_view line, const HeadLimits& limits, RequestHead& head) {
  if (line.front() == ' ' || line.front() == '\t') return bad_request("a header line is folded");
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    return bad_request("a header line is not: name, colon, value");
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (value.size() > limits.value_bytes)
    return Refusal{431, "a header value is longer than " + std::to_string(limits.value_bytes) + " bytes"};
  if (!std::all_of(value.begin(), value.end(), is_value_character))
    return bad_request("a header value has a control character");
  if (head.fields.size() == limits.fields)
    return Refusal{431, "the request has more than " + std::to_string(limits.fields) + " header fields"};
  head.fields.push_back({lowered(line.substr(0, colon)), std::string(value)});
  return {};
}

std::optional<Refusal> read_host(RequestHead& head, const std::string& authority) {
  const int hosts = head.count("host");
  if (hosts > 1) return bad_request("the request has more than one Host");
  if (hosts == 0 && head.minor_version == 1) return bad_request("the request has no Host");
  if (hosts == 1) {
    head.host = *head.field("host");
    if (!is_host(head.host)) return bad_request("Host is not a host name or address with an optional port");
  }
  if (!authority.empty()) head.host = authority;  // the target's wins, as the protocol says
  return {};
}

std::optional<Refusal> read_framing(RequestHead& head) {
  const int lengths = head.count("content-length"), codings = head.count("transfer-encoding");
  if (lengths > 1) return bad_request("the request has more than one Content-Length");
  if (codings > 0 && lengths > 0)
    return bad_request("the request has both Content-Length and Transfer-Encoding");
  if (codings > 0 && head.minor_version == 0) return bad_request("HTTP/1.0 has no Transfer-Encoding");
  if (codings > 1) return bad_request("the request has more than one Transfer-Encoding");
  if (codings == 1) {
    const std::string coding = lowered(*head.field("transfer-encoding"));
    const std::size_t comma = coding.rfind(',');
    // Where another coding comes last, nobody can tell where the body ends.
    if (trimmed(std::string_view(coding).substr(comma == std::string::npos ? 0 : comma + 1)) != "chunked")
      return bad_request("the last Transfer-Encoding is not chunked");
    if (coding != "chunked") return Refusal{501, "the only Transfer-Encoding served is chunked"};
    head.framing = BodyFraming::chunked;
  }
  if (lengths == 1) {
    const std::string_view text = *head.field("content-length");
    if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos)
      return bad_request("Content-Length is not a whole number");
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), head.content_length);
    if (error != std::errc()) return Refusal{413, "the body is too large"};
    head.framing = head.content_length > 0 ? BodyFraming::length : BodyFraming::none;
  }
  return {};
}

// The options of a comma-separated field, lower case.
bool has_option(const RequestHead& head, std::string_view name, std::string_view option) {
  for (const Field& field : head.fields) {
    if (field.name != name) continue;
    for (std::string_view rest = field.value; !rest.empty();) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      if (lowered(trimmed(rest.substr(0, comma))) == option) return true;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return false;
}

std::optional<Refusal> read_connection(RequestHead& head) {
  head.keep_alive = head.minor_version == 1 ? !has_option(head, "connection", "close")
                                            : has_option(head, "connection", "keep-alive");
  if (head.count("expect") == 0) return {};
  const std::optional<std::string_view> expected = head.field("expect");
  if (!expected || lowered(*expected) != "100-continue")
    return Refusal{417, "the only Expect served is 100-continue"};
  head.expects_continue = head.minor_version == 1 && head.framing != BodyFraming::none;
  return {};
}

}  // namespace

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_character);
}

bool is_field_line(std::string_view line) {
  const std::size_t colon = line.find(':');
  return colon != std::string_view::npos && is_token(line.substr(0, colon)) &&
         std::all_of(line.begin() + static_cast<std::ptrdiff_t>(colon), line.end(), is_value_character);
}

std::optional<std::string_view> RequestHead::field(std::string_view name) const {
  if (count(name) != 1) return {};
  return std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.name == name; })
      ->value;
}

int RequestHead::count(std::string_view name) const {
  return static_cast<int>(
      std::count_if(fields.begin(), fields.end(), [&](const Field& field) { return field.name == name; }));
}

std::variant<HeadExtent, Refusal, std::monostate> find_head(std::string_view bytes,
                                                            const HeadLimits& limits) {
  HeadExtent extent;
  while (bytes.substr(extent.begin, 2) == line_end) extent.begin += 2;
  if (extent.begin > limits.bytes) return bad_request("the request has no request line");
  // Line by line, so that a bare line feed is refused when it comes and not when the deadline does.
  for (std::size_t at = extent.begin;;) {
    const std::size_t feed = bytes.find('\n', at);
    const std::size_t known = feed == std::string_view::npos ? bytes.size() : feed + 1;
    if (known - extent.begin > limits.bytes)
      return Refusal{431, "the request's head is longer than " + std::to_string(limits.bytes) + " bytes"};
    if (feed == std::string_view::npos) return std::monostate();
    if (feed == at || bytes[feed - 1] != '\r') return bad_request("a line does not end in CR LF");
    if (feed - 1 == at) {
      extent.end = feed + 1;
      return extent;
    }
    at = feed + 1;
  }
}

std::variant<RequestHead, Refusal> parse_head(std::string_view bytes, const HeadLimits& limits) {
  RequestHead head;
  std::string authority;
  bool first = true;
  while (true) {
    const std::size_t end = bytes.find(line_end);
    if (end == std::string_view::npos) return bad_request("the request's head has no end");
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end + 2);
    if (line.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos)
      return bad_request("the head has a control character");
    if (first) {
      if (auto refusal = read_request_line(line, limits, head, authority)) return *refusal;
      first = false;
      continue;
    }
    if (line.empty()) break;
    if (auto refusal = read_field(line, limits, head)) return *refusal;
  }
  if (!bytes.empty()) return bad_request("the request's head goes on after its end");
  if (auto refusal = read_host(head, authority)) return *refusal;
  if (auto refusal = read_framing(head)) return *refusal;
  if (auto refusal = read_connection(head)) return *refusal;
  return head;
}

}  // namespace nibble::http
