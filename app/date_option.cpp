#include "app/date_option.h"

namespace nibble {

OptionSpec date_option_spec(std::optional<Day>& target) {
  return {.name = "--date",
          .value = "YYYY-MM-DD",
          .help = "the day that chat templates show to the model",
          .default_text = "today",
          .set = text_value([&target](std::string_view text) -> Status {
            NIBBLE_ASSIGN(target, parse_day(text));
            return {};
          })};
}

}  // namespace nibble
