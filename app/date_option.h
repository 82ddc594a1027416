// --date, which serve, chat and generate take.
#pragma once

#include <optional>

#include "base/options.h"
#include "text/day.h"

namespace nibble {

// The target outlives the row; it stays empty where the day is that of the clock.
OptionSpec date_option_spec(std::optional<Day>& target);

}  // namespace nibble
