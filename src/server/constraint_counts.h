// What answers that are held to a format or to their tools' schemas have cost, for /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "server/metrics_text.h"

namespace nibble {

enum class ConstraintKind : std::uint8_t { json_object, json_schema, regex, choice, grammar, tool_calls };
// As /metrics and the log name it.
std::string_view constraint_kind_name(ConstraintKind kind);

struct ConstraintCounts {
  struct Kind {
    std::uint64_t compiled = 0, found = 0, refused = 0;
  };
  std::array<Kind, 6> kinds{};  // [ConstraintKind]
  Histogram compile_seconds{{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1}};
  std::uint64_t masks = 0;
  double mask_seconds = 0;

  Kind& of(ConstraintKind kind) { return kinds[static_cast<std::size_t>(kind)]; }
  void write(MetricsText& text) const;
};

}  // namespace nibble
