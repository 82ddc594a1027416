#include "quantize/module_choice.h"

#include <algorithm>

#include "base/quote.h"

namespace nibble {
namespace {

bool has_component(std::string_view module, std::string_view component) {
  const std::string padded = "." + std::string(module) + ".";
  return padded.find("." + std::string(component) + ".") != padded.npos;
}

std::string_view last_component(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == module.npos ? module : module.substr(dot + 1);
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

Status check_patterns(const std::vector<std::string>& patterns, const std::vector<std::string>& modules,
                      std::string_view option) {
  for (const std::string& pattern : patterns) {
    const bool found = std::any_of(modules.begin(), modules.end(),
                                   [&](const std::string& module) { return matches(pattern, module); });
    if (found) continue;
    return invalid_argument(std::string(option) + " " + quote(pattern) +
                            " matches no module that has weights in two dimensions, such as " +
                            (modules.empty() ? "none" : quote(modules.front())));
  }
  return {};
}

}  // namespace

ModuleKind module_kind(std::string_view module) {
  const std::string_view last = last_component(module);
  if (has_component(module, "experts")) return ModuleKind::expert;
  if (last == "lm_head") return ModuleKind::lm_head;
  if (last.find("embed") != last.npos || last == "wte") return ModuleKind::embedding;
  if (last == "router" || last == "gate" || last == "shared_expert_gate") return ModuleKind::router;
  if (last == "in_proj_ba" || last == "in_proj_b" || last == "in_proj_a") return ModuleKind::state_gate;
  return ModuleKind::linear;
}

Result<std::vector<bool>> choose_modules(const std::vector<std::string>& modules,
                                         const ModuleChoice& choice) {
  NIBBLE_RETURN_IF_ERROR(check_patterns(choice.include, modules, "--include"));
  NIBBLE_RETURN_IF_ERROR(check_patterns(choice.exclude, modules, "--exclude"));
  const bool any_experts = std::any_of(modules.begin(), modules.end(), [](const std::string& module) {
    return module_kind(module) == ModuleKind::expert;
  });
  if (choice.set == ModuleSet::experts && !any_experts)
    return invalid_argument("--modules experts: the model has no experts; give --modules linear");
  const bool linear = choice.set == ModuleSet::linear || (choice.set == ModuleSet::automatic && !any_experts);
  std::vector<bool> chosen(modules.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const ModuleKind kind = module_kind(modules[i]);
    const bool included = matches_any(choice.include, modules[i]);
    if (matches_any(choice.exclude, modules[i])) continue;
    if (included && kind == ModuleKind::embedding) {
      return invalid_argument(
          "--include asks for " + quote(modules[i]) +
          ", an embedding: its rows are looked up, not multiplied, and no format here holds "
          "one; narrow the pattern");
    }
    chosen[i] = included || kind == ModuleKind::expert || (linear && kind == ModuleKind::linear);
  }
  if (std::find(chosen.begin(), chosen.end(), true) == chosen.end())
    return invalid_argument("the choice of modules leaves nothing to quantize; drop an --exclude");
  return chosen;
}

}  // namespace nibble
