// A server's answers and addresses: whatever the bytes and however they arrive, nothing crashes, and the same
// bytes in other pieces are the same answer.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "net/http_answer.h"
#include "net/proxy.h"
#include "net/url.h"

namespace {

struct Read {
  std::string body;
  bool ok = true;
  bool complete = false;
};

Read read(std::string_view bytes, std::size_t piece) {
  nibble::HttpAnswer answer;
  Read result;
  while (!bytes.empty() && result.ok && !answer.complete()) {
    const std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    result.ok = answer.take(part, [&result](std::string_view body) { result.body += body; }).ok();
  }
  result.complete = answer.complete();
  static_cast<void>(answer.header("content-range"));
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nibble;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Read bytewise = read(text, 1);
  const Read whole = read(text, size + 1);
  // Bytes behind a complete answer are seen only where they come with it.
  if (bytewise.ok && whole.ok)
    NIBBLE_CHECK(bytewise.body == whole.body && bytewise.complete == whole.complete);
  const Result<Url> url = parse_url(text);
  if (url.ok()) {
    const Result<Url> again = parse_url(url->text());
    NIBBLE_CHECK(again.ok() && again->text() == url->text());
    static_cast<void>(resolve_location(*url, text).ok());
    static_cast<void>(bypasses_proxy(text, *url));
    ProxyEnvironment proxies;
    proxies.all_proxy = std::string(text);
    static_cast<void>(choose_proxy(proxies, *url).ok());
  }
  const Url base{.scheme = "https", .host = "a", .port = "443", .path = "/b?c"};
  const Result<Url> location = resolve_location(base, text);
  if (location.ok()) NIBBLE_CHECK(location->path.find_first_of(" \r\n") == std::string::npos);
  return 0;
}
