// What a tuning table says of a plan that is being made.
#include <algorithm>
#include <cstdio>

#include "plan/rules.h"

namespace nibble {
namespace {

std::string rate_text(double tokens_per_s) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", tokens_per_s);
  return text;
}

}  // namespace

std::string tuning_model(const Situation& s) {
  const ModelTraits& model = s.model;
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  std::string text = model.architecture + ", " + number(model.hidden) + " wide";
  if (model.experts > 0) {
    text += ", " + number(model.experts) + " experts of " + number(model.expert_width) + " in " +
            std::string(stored_format_name(model.expert_format)) + ", " + number(model.experts_per_token) +
            " a token";
  }
  text += ", dense weights in ";
  text += s.at(Field::quantization).value == "none" ? std::string(stored_format_name(model.dense_format))
                                                    : s.at(Field::quantization).value;
  text += ", " + s.at(Field::dtype).value + " by " + std::string(s.at(Field::experts).path.kernel);
  return text + ", ranks " + number(std::max<std::int64_t>(s.number(Field::tensor_parallel), 1));
}

const TuningEntry* tuned(const Situation& s, std::string_view field) {
  return s.machine.tuning ? s.machine.tuning->find(tuning_model(s), field) : nullptr;
}

std::string measured_text(const TuningEntry& entry) {
  std::string text = "measured by nibble tune, tokens a second: ";
  for (const auto& [value, rate] : entry.measured)
    text += (text.ends_with(": ") ? "" : ", ") + value + " " + rate_text(rate);
  return text;
}

std::string tuning_text(const Situation& s) {
  std::string fields;
  for (const TunedField& each : tuned_fields())
    if (tuned(s, each.name) != nullptr) fields += (fields.empty() ? "" : ", ") + std::string(each.name);
  return "made " + s.machine.tuning->made + "; for this model's shapes and choices it has " +
         (fields.empty() ? "nothing, so rules decide" : fields);
}

}  // namespace nibble
