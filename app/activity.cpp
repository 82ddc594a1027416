#include "app/activity.h"

#include <algorithm>
#include <cmath>

namespace nibble {

void Activity::report(const EngineCounts& counts, double seconds) {
  const EngineCounts last = std::exchange(last_, counts);
  const EngineLoad& load = counts.load;
  if (counts.steps == last.steps && load.running == 0 && load.queued == 0) return;
  const auto rate = [&](std::uint64_t now, std::uint64_t before) {
    return std::round(static_cast<double>(now - before) / seconds * 10) / 10;
  };
  const double usage = 100.0 * load.pages_used / std::max(load.pages, 1);
  log_.info("engine", {{"prompt_tokens_per_s", rate(counts.prompt_tokens, last.prompt_tokens)},
                       {"generation_tokens_per_s", rate(counts.generated_tokens, last.generated_tokens)},
                       {"running", load.running},
                       {"waiting", load.queued},
                       {"kv_usage_percent", std::round(usage * 10) / 10}});
}

}  // namespace nibble
