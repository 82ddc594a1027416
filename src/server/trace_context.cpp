#include "server/trace_context.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view digits = "0123456789abcdef";

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return digits.find(c) != std::string_view::npos; });
}

bool is_zero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

// version "-" trace id "-" parent id "-" flags. A later version may add more behind another dash.
std::optional<TraceContext> parse_traceparent(std::string_view value) {
  constexpr std::size_t size = 55;
  if (value.size() < size || value[2] != '-' || value[35] != '-' || value[52] != '-') return {};
  const std::string_view version = value.substr(0, 2), trace = value.substr(3, 32),
                         parent = value.substr(36, 16), flags = value.substr(53, 2);
  if (!is_hex(version) || !is_hex(trace) || !is_hex(parent) || !is_hex(flags)) return {};
  if (version == "ff" || is_zero(trace) || is_zero(parent)) return {};
  if (value.size() > size && (version == "00" || value[size] != '-')) return {};
  return TraceContext{.trace_id = std::string(trace),
                      .parent_id = std::string(parent),
                      .sampled = digits.find(flags[1]) % 2 == 1};
}

}  // namespace nibble
