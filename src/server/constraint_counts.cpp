#include "server/constraint_counts.h"

namespace nibble {

std::string_view constraint_kind_name(ConstraintKind kind) {
  switch (kind) {
    case ConstraintKind::json_object: return "json_object";
    case ConstraintKind::json_schema: return "json_schema";
    case ConstraintKind::regex: return "regex";
    case ConstraintKind::choice: return "choice";
    case ConstraintKind::grammar: return "grammar";
    case ConstraintKind::tool_calls: return "tool_calls";
  }
  return "";
}

void ConstraintCounts::write(MetricsText& text) const {
  constexpr std::string_view name = "nibble:constraints_total";
  text.family(name, "counter", "Formats and tools' schemas: compiled, found compiled, or refused.");
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const std::string_view kind = constraint_kind_name(static_cast<ConstraintKind>(i));
    const auto sample = [&](std::string_view result, std::uint64_t count) {
      text.sample(name, {{"kind", kind}, {"result", result}}, static_cast<double>(count));
    };
    sample("compiled", kinds[i].compiled);
    sample("found", kinds[i].found);
    sample("refused", kinds[i].refused);
  }
  text.histogram("nibble:constraint_compile_seconds",
                 "Histogram of the time to compile one, refused ones too.", compile_seconds);
  text.counter("nibble:constraint_masks_total", "Masks of the tokens that may come next.",
               static_cast<double>(masks));
  text.counter("nibble:constraint_mask_seconds_total", "Time spent in finding them.", mask_seconds);
}

}  // namespace nibble
