#include "server/what_ran.h"

namespace nibble {

void write_ran(MetricsText& text, const RanTable& ran) {
  text.family("nibble:ran_total", "counter",
              "Kernels, collectives and exchanges that ran, by the plan's field and value.");
  for (const RanRow& row : ran.rows()) {
    text.sample("nibble:ran_total", {{"field", row.field}, {"value", row.value}, {"form", row.form}},
                static_cast<double>(row.times));
  }
}

std::vector<std::string> degraded_by(const Plan& plan, const RanTable& ran) {
  std::vector<std::string> names = plan.degraded_by();
  for (const RanRow& row : ran.rows()) {
    for (const Choice& choice : plan.choices) {
      if (choice.field == row.field && choice.value != row.value)
        names.push_back(choice.field + " " + choice.value + ": " + std::string(row.value) + " ran instead");
    }
  }
  return names;
}

}  // namespace nibble
