// W3C Trace Context: the ids by which a request is followed through systems, in the header `traceparent`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nibble {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16
  bool sampled = false;
};

// Nothing for a value that is no traceparent; then the trace is to be ignored, not the request.
std::optional<TraceContext> parse_traceparent(std::string_view value);

}  // namespace nibble
