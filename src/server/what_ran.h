// What really runs beside what the plan says: counted for /metrics, and compared for /health.
#pragma once

#include <string>
#include <vector>

#include "core/ran_table.h"
#include "plan/plan.h"
#include "server/metrics_text.h"

namespace nibble {

void write_ran(MetricsText& text, const RanTable& ran);

// What was asked for and is not on: gates that are overridden, and fields of the plan of which something else
// ran than it says. Empty where all is as planned.
std::vector<std::string> degraded_by(const Plan& plan, const RanTable& ran);

}  // namespace nibble
