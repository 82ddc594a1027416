#include "app/activity.h"

#include <cmath>
#include <utility>

namespace nibble {

void Activity::report(const EngineCounts& counts, double seconds) {
  const EngineCounts last = std::exchange(last_, counts);
  const EngineLoad& load = counts.load;
  if (counts.steps == last.steps && load.running == 0 && load.queued == 0) return;
  const auto rate = [&](std::uint64_t now, std::uint64_t before) {
    return std::round(static_cast<double>(now - before) / seconds * 10) / 10;
  };
  const auto percent = [](double part, double whole) {
    return whole > 0 ? std::round(1000 * part / whole) / 10 : 0.0;
  };
  const std::uint64_t asked = counts.totals.prefix_query_tokens - last.totals.prefix_query_tokens,
                      found = counts.totals.prefix_hit_tokens - last.totals.prefix_hit_tokens;
  log_.info("engine",
            {{"prompt_tokens_per_s", rate(counts.prompt_tokens, last.prompt_tokens)},
             {"generation_tokens_per_s", rate(counts.generated_tokens, last.generated_tokens)},
             {"running", load.running},
             {"waiting", load.queued},
             {"kv_usage_percent", percent(load.used_share, 1)},
             {"prefix_hit_percent", percent(static_cast<double>(found), static_cast<double>(asked))}});
}

}  // namespace nibble
