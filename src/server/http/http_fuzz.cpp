// Any bytes as a connection's: requests are read or refused, and how the bytes were cut in pieces changes
// nothing of what was read.
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "server/http/body_reader.h"

using namespace nibble::http;

namespace {

constexpr std::uint64_t most_body = 4096;
const HeadLimits limits{.bytes = 2048, .target_bytes = 256, .value_bytes = 512, .fields = 16};

struct Read {
  std::vector<std::string> bodies;
  int refusal = 0;  // the status, and the end of what was read
  bool operator==(const Read&) const = default;
};

// The first request at the front of `bytes`: how many bytes it
// took, or 0 where it is incomplete or refused.
std::size_t read_request(std::string_view bytes, std::size_t piece, Read& read) {
  const auto found = find_head(bytes, limits);
  if (const auto* refusal = std::get_if<Refusal>(&found)) return read.refusal = refusal->status, 0;
  const auto* extent = std::get_if<HeadExtent>(&found);
  if (extent == nullptr) return 0;
  const auto parsed = parse_head(bytes.substr(extent->begin, extent->end - extent->begin), limits);
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) return read.refusal = refusal->status, 0;
  const RequestHead& head = std::get<RequestHead>(parsed);
  NIBBLE_CHECK(head.path == "*" || head.path.front() == '/');
  NIBBLE_CHECK(!head.host.empty() || head.minor_version == 0);
  auto started = BodyReader::start(head, most_body);
  if (const auto* refusal = std::get_if<Refusal>(&started)) return read.refusal = refusal->status, 0;
  BodyReader body = std::get<BodyReader>(std::move(started));
  std::size_t at = extent->end;
  for (std::size_t arrived = at; !body.complete() && arrived < bytes.size();) {
    arrived = std::min(arrived + piece, bytes.size());
    const auto taken = body.take(bytes.substr(at, arrived - at));
    if (const auto* refusal = std::get_if<Refusal>(&taken)) return read.refusal = refusal->status, 0;
    at += std::get<std::size_t>(taken);
  }
  if (!body.complete()) return 0;
  NIBBLE_CHECK(body.body().size() <= most_body);
  read.bodies.push_back(body.release());
  return at;
}

Read read_all(std::string_view bytes, std::size_t piece) {
  Read read;
  while (const std::size_t taken = read_request(bytes, piece, read)) bytes.remove_prefix(taken);
  return read;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Read whole = read_all(bytes, bytes.size() + 1);
  const Read pieces = read_all(bytes, 1 + data[0] % 16);
  NIBBLE_CHECK(whole == pieces);
  return 0;
}
