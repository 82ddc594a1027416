#include <algorithm>

#include "base/check.h"
#include "base/quote.h"
#include "plan/bound.h"
#include "plan/budget.h"
#include "plan/rank_part.h"
#include "plan/rules.h"

namespace nibble {
namespace {

struct Reason {
  std::string_view rule;
  std::string why;
  bool decisive = false;
  bool operator<(const Reason& other) const { return rule < other.rule; }
};

// A candidate with what the rules say of it, in the order of their ids.
struct Judged {
  Candidate candidate;
  std::vector<Reason> reasons;  // for which it falls away
  std::vector<Reason> preferences;

  bool remains() const { return reasons.empty(); }
  std::string why_not() const {
    std::string all;
    for (const Reason& reason : reasons) {
      if (reason.decisive) return reason.why;
      all += (all.empty() ? "" : "; ") + reason.why;
    }
    return all;
  }
};

std::vector<Judged> judge(std::span<const Rule> rules, const FieldSpec& spec, const Situation& situation) {
  std::vector<Judged> all;
  for (Candidate& candidate : spec.candidates(situation)) {
    Judged judged{.candidate = std::move(candidate), .reasons = {}, .preferences = {}};
    for (const Rule& rule : rules) {
      if (rule.field != spec.field || !rule.holds(situation, judged.candidate)) continue;
      auto& list = rule.effect == Effect::remove ? judged.reasons : judged.preferences;
      list.push_back({rule.id, rule.why(situation, judged.candidate), rule.decisive});
    }
    std::sort(judged.reasons.begin(), judged.reasons.end());
    std::sort(judged.preferences.begin(), judged.preferences.end());
    all.push_back(std::move(judged));
  }
  return all;
}

// How much the rules prefer it: one decisive rule outweighs all others.
std::size_t weight_of(const Judged& judged) {
  constexpr std::size_t decisive = 1000;
  return judged.preferences.size() +
         (std::ranges::any_of(judged.preferences, &Reason::decisive) ? decisive : 0);
}

// The remaining candidate that most rules prefer, of equals the first; null where none remains.
template <class Matches>
const Judged* best(const std::vector<Judged>& judged, const Matches& matches) {
  const Judged* found = nullptr;
  for (const Judged& each : judged) {
    if (!each.remains() || !matches(each.candidate)) continue;
    if (found == nullptr || weight_of(each) > weight_of(*found)) found = &each;
  }
  return found;
}

void append(std::string& list, std::string_view name, std::string_view separator = ", ") {
  if (!list.empty()) list += separator;
  list += name;
}

std::string remaining(const std::vector<Judged>& judged) {
  std::string list;
  for (const Judged& each : judged) {
    if (each.remains()) append(list, each.candidate.value);
  }
  return list;
}

// A length may be anything up to the longest that remains.
std::string what_works(const FieldSpec& spec, const std::vector<Judged>& judged) {
  const std::string all = remaining(judged);
  if (spec.field == Field::kv_pages && !all.empty()) return "at most that";
  if (spec.field == Field::state_snapshots && !all.empty())
    return "from 1 to what fits, or --no-prefix-cache";
  if (spec.field != Field::max_model_len || all.empty()) return all;
  std::int64_t most = 0;
  for (const Judged& each : judged) {
    if (each.remains()) most = std::max(most, each.candidate.number);
  }
  return "at most " + std::to_string(most);
}

// Where a choice came from, and why.
void explain(const std::vector<Judged>& judged, const Judged& chosen, const std::vector<Reason>& preferences,
             bool asked, Choice& choice) {
  choice.why = asked ? "asked for" : chosen.candidate.why;
  choice.from = asked ? "user" : "default";
  if (asked) return;
  if (!preferences.empty()) {
    const auto decisive = std::ranges::find_if(preferences, &Reason::decisive);
    const Reason& reason = decisive == preferences.end() ? preferences[0] : *decisive;
    choice.from = "rule:" + std::string(reason.rule);
    choice.why = reason.why;
  } else if (&chosen != judged.data()) {
    // The one before it, which would have been taken otherwise.
    const Judged& before = *(&chosen - 1);
    if (!before.remains()) choice.from = "rule:" + std::string(before.reasons[0].rule);
  }
}

void list_others(const std::vector<Judged>& judged, const Judged& chosen, Choice& choice) {
  for (const Judged& each : judged) {
    if (&each == &chosen) continue;
    if (!each.remains()) {
      choice.rejected.push_back({each.candidate.value, each.why_not()});
    } else {
      choice.alternatives.push_back(each.candidate.value);
    }
  }
}

// A name as the user gave it, in our words: itself, or what another engine's name means.
Result<std::string> own_name(std::string_view option, const std::string& asked,
                             std::span<const ForeignName> foreign, std::span<const std::string_view> known,
                             const std::string& works) {
  if (std::find(known.begin(), known.end(), asked) != known.end()) return asked;
  if (const ForeignName* name = find_foreign(foreign, asked)) {
    if (!name->ours.empty()) return std::string(name->ours);
    return invalid_argument(std::string(option) + " " + asked + " is a name of " + std::string(name->from) +
                            ": " + std::string(name->because) + "; give " +
                            (works.empty() ? std::string(name->instead) : "auto or one of " + works));
  }
  std::vector<std::string_view> names(known.begin(), known.end());
  for (const ForeignName& each : foreign) names.push_back(each.name);
  const std::string_view near = nearest_name(asked, names);
  return invalid_argument(std::string(option) + ": " + quote(asked) + " is not built in" +
                          (near.empty() ? std::string() : " (the nearest is " + std::string(near) + ")") +
                          "; give auto or one of " + works);
}

Status refuse(const FieldSpec& spec, const std::string& asked, const std::string& why,
              const std::string& works) {
  return invalid_argument(std::string(spec.option) + " " + asked + ": " + why +
                          (works.empty() ? "; nothing else would work here either" : "; give " + works));
}

Status nothing_remains(const FieldSpec& spec, const std::vector<Judged>& judged, const Situation& s) {
  std::string reasons;
  std::vector<std::string> seen;
  for (const Judged& each : judged) {
    // Of pairs, what every kernel could do at least.
    if (spec.field == Field::experts && each.candidate.path.exchange != "none") continue;
    const std::string name =
        spec.field == Field::experts ? std::string(each.candidate.path.kernel) : each.candidate.value;
    const std::string why = each.why_not();
    if (std::find(seen.begin(), seen.end(), why) != seen.end()) continue;
    seen.push_back(why);
    append(reasons, name + ": " + why, "; ");
  }
  return invalid_argument("no " + std::string(spec.name) + " remains for " + s.model.name + " on " +
                          (s.machine.name == "this" ? "this machine" : s.machine.name) + ": " + reasons);
}

// One field but the pair.
Status decide(std::span<const Rule> rules, const FieldSpec& spec, Situation& s, Plan& plan) {
  const std::vector<Judged> judged = judge(rules, spec, s);
  if (judged.empty()) return {};
  std::string asked = spec.asked == nullptr ? std::string() : spec.asked(s);
  if (!asked.empty() && spec.field == Field::attention) {
    std::vector<std::string_view> known;
    for (const AttentionKernel& kernel : attention_table()) known.push_back(kernel.facts.name);
    NIBBLE_ASSIGN(asked, own_name(spec.option, asked, foreign_attention(), known, remaining(judged)));
  }
  const auto matches = [&](const Candidate& candidate) { return asked.empty() || candidate.value == asked; };
  const Judged* chosen = best(judged, matches);
  if (chosen == nullptr) {
    const auto wanted = std::find_if(judged.begin(), judged.end(),
                                     [&](const Judged& each) { return each.candidate.value == asked; });
    if (asked.empty()) return nothing_remains(spec, judged, s);
    if (wanted != judged.end()) {
      // Pages were asked for as positions.
      if (spec.field == Field::kv_pages) asked = std::to_string(s.options.kv_cache_tokens);
      return refuse(spec, asked, wanted->why_not(), what_works(spec, judged));
    }
    std::vector<std::string_view> names;
    for (const Judged& each : judged) names.push_back(each.candidate.value);
    const std::string_view near = nearest_name(asked, names);
    return refuse(spec, asked,
                  "not one of its values" + (near.empty() ? "" : ", the nearest is " + std::string(near)),
                  remaining(judged));
  }
  Choice choice{.field = std::string(spec.name), .value = chosen->candidate.value};
  explain(judged, *chosen, chosen->preferences, !asked.empty(), choice);
  list_others(judged, *chosen, choice);
  s.decided[static_cast<std::size_t>(spec.field)] = chosen->candidate;
  plan.choices.push_back(std::move(choice));
  return {};
}

std::string working_pairs(const std::vector<Judged>& judged) {
  std::string list = remaining(judged);
  return list.empty() ? std::string("none") : list;
}

std::string working_runners(const std::vector<Judged>& judged) {
  std::string list;
  std::vector<std::string_view> seen;
  for (const Judged& each : judged) {
    if (!each.remains() || std::count(seen.begin(), seen.end(), each.candidate.path.kernel) != 0) continue;
    seen.push_back(each.candidate.path.kernel);
    append(list, each.candidate.path.kernel);
  }
  return list;
}

struct AskedPair {
  std::string runner, exchange;  // empty: whichever
  bool matches(const Candidate& candidate) const {
    return (runner.empty() || candidate.path.kernel == runner) &&
           (exchange.empty() || candidate.path.exchange == exchange);
  }
};

Result<AskedPair> asked_pair(const std::vector<Judged>& judged, const EngineOptions& options) {
  AskedPair asked;
  if (options.moe_runner_backend != "auto") {
    std::vector<std::string_view> known;
    for (const ExpertKernel& kernel : expert_kernels()) known.push_back(kernel.facts.name);
    NIBBLE_ASSIGN(asked.runner, own_name("--moe-runner-backend", options.moe_runner_backend,
                                         foreign_runners(), known, working_runners(judged)));
  }
  if (options.moe_a2a_backend != "auto") {
    std::vector<std::string_view> known;
    for (const Exchange& exchange : exchanges()) known.push_back(exchange.name);
    NIBBLE_ASSIGN(asked.exchange, own_name("--moe-a2a-backend", options.moe_a2a_backend, foreign_exchanges(),
                                           known, "none, normal, low_latency"));
  }
  return asked;
}

Status refuse_pair(const std::vector<Judged>& judged, const AskedPair& asked) {
  const auto first = std::find_if(judged.begin(), judged.end(),
                                  [&](const Judged& each) { return asked.matches(each.candidate); });
  NIBBLE_CHECK(first != judged.end());
  const std::string what = (asked.runner.empty() ? "" : "--moe-runner-backend " + asked.runner) +
                           (asked.runner.empty() || asked.exchange.empty() ? "" : " with ") +
                           (asked.exchange.empty() ? "" : "--moe-a2a-backend " + asked.exchange);
  const std::string works = asked.exchange.empty() ? "auto or one of " + working_runners(judged)
                                                   : "a pair that works here: " + working_pairs(judged);
  return invalid_argument(what + ": " + first->why_not() + "; give " + works);
}

// A pair's preferences by the row that they explain: its kernel's are those that it has with every exchange.
struct PairPreferences {
  std::vector<Reason> runner, exchange;
};
PairPreferences preferences_of(const std::vector<Judged>& judged, const Judged& chosen) {
  PairPreferences found;
  for (const Reason& preference : chosen.preferences) {
    const bool of_kernel = std::all_of(judged.begin(), judged.end(), [&](const Judged& each) {
      return each.candidate.path.kernel != chosen.candidate.path.kernel ||
             std::any_of(each.preferences.begin(), each.preferences.end(),
                         [&](const Reason& other) { return other.rule == preference.rule; });
    });
    (of_kernel ? found.runner : found.exchange).push_back(preference);
  }
  return found;
}

// Compute and exchange are one choice; the plan shows each in a row of its own.
Status decide_pair(std::span<const Rule> rules, const FieldSpec& spec, Situation& s, Plan& plan) {
  const std::vector<Judged> judged = judge(rules, spec, s);
  NIBBLE_ASSIGN(const AskedPair asked, asked_pair(judged, s.options));
  const Judged* chosen = best(judged, [&](const Candidate& candidate) { return asked.matches(candidate); });
  if (chosen == nullptr)
    return asked.runner.empty() && asked.exchange.empty() ? nothing_remains(spec, judged, s)
                                                          : refuse_pair(judged, asked);
  const ExpertPath& path = chosen->candidate.path;
  Choice runner{.field = "moe_runner", .value = std::string(path.kernel)};
  Choice exchange{.field = "token_exchange", .value = std::string(path.exchange)};
  const PairPreferences preferences = preferences_of(judged, *chosen);
  explain(judged, *chosen, preferences.runner, !asked.runner.empty(), runner);
  explain(judged, *chosen, preferences.exchange, !asked.exchange.empty(), exchange);
  if (asked.exchange.empty() && preferences.exchange.empty()) {
    exchange.why = "every rank has every token";
    exchange.from = "default";
  }
  if (asked.runner.empty() && preferences.runner.empty() && !preferences.exchange.empty()) {
    runner.why = chosen->candidate.why;
    runner.from = "default";
  }
  for (const Judged& each : judged) {
    const ExpertPath& other = each.candidate.path;
    if ((other.kernel == path.kernel) == (other.exchange == path.exchange)) continue;
    Choice& row = other.kernel == path.kernel ? exchange : runner;
    const std::string name(other.kernel == path.kernel ? other.exchange : other.kernel);
    if (each.remains()) {
      row.alternatives.push_back(name);
    } else {
      row.rejected.push_back({name, each.why_not()});
    }
  }
  s.decided[static_cast<std::size_t>(spec.field)] = chosen->candidate;
  plan.choices.push_back(std::move(runner));
  plan.choices.push_back(std::move(exchange));
  return {};
}

// The decided values in their types.
void fill(const Situation& s, Plan& plan) {
  const auto whole = [&](Field field) { return static_cast<int>(s.number(field)); };
  plan.device = s.on_gpu() ? DeviceKind::cuda : DeviceKind::cpu;
  plan.threads = whole(Field::threads);
  plan.pin_threads = s.at(Field::pinning).value == "one CPU a thread";
  plan.tensor_parallel = whole(Field::tensor_parallel);
  plan.first_gpu = whole(Field::gpus);
  plan.expert_parallel = whole(Field::expert_parallel);
  plan.data_parallel = owners_of(s);
  plan.experts_everywhere = has_expert_copies(s);
  plan.by_nccl = s.at(Field::all_reduce).value == "nccl";
  plan.dtype = s.at(Field::dtype).value == "float32" ? DType::f32 : DType::bf16;
  plan.int8_products = s.at(Field::dtype).value == "int8";
  plan.fp8_prompts = s.at(Field::dtype).value == "fp8";
  plan.quantization = quantization_of(s);
  plan.kv_dtype = kv_dtype_of(s);
  plan.experts = s.at(Field::experts).path;
  plan.many_tokens_from = static_cast<int>(s.number(Field::many_tokens_from));
  plan.weight_lines = find_weight_lines(s.at(Field::weight_lines).value).value_or(plan.weight_lines);
  plan.attention = find_attention(s.at(Field::attention).value)->facts.name;
  plan.max_num_batched_tokens = whole(Field::max_num_batched_tokens);
  plan.max_num_seqs = whole(Field::max_num_seqs);
  plan.max_logit_rows = static_cast<int>(step_limits(s, 0).logit_rows);
  plan.page_size = page_size_of(s);
  plan.max_model_len = whole(Field::max_model_len);
  plan.kv_pages = whole(Field::kv_pages);
  plan.kv_window_pages = whole(Field::kv_window_pages);
  plan.cuda_graphs = s.at(Field::cuda_graphs).value == "on";
  plan.prefix_cache = s.at(Field::prefix_cache).value == "on";
  plan.snapshot_interval = whole(Field::snapshot_interval);
  plan.state_snapshots = whole(Field::state_snapshots);
  plan.draft_tokens = whole(Field::draft_tokens);
  plan.tuning_model = tuning_model(s);
  plan.looks_up_drafts = s.at(Field::speculation).value == "ngram";
}

void list_not_built(const Situation& s, Plan& plan) {
  const auto note = [&](const KernelFacts& kernel) {
    if (!kernel.built) plan.not_built.emplace_back(kernel.name);
  };
  note(find_expert_kernel(plan.experts.kernel)->facts);
  note(find_attention(plan.attention)->facts);
  if (s.model.linear_layers > 0 && s.on_gpu()) {
    const Candidate& linear = s.at(Field::linear_attention);
    if (linear.number != 90 || !has_device_code()) plan.not_built.push_back(linear.value);
  }
  if (!is_built(*find_expert_kernel(plan.experts.kernel), *find_exchange(plan.experts.exchange)) &&
      plan.experts.exchange != "none")
    plan.not_built.push_back("exchange " + std::string(plan.experts.exchange));
  if (plan.cuda_graphs && !has_device_code()) plan.not_built.emplace_back("CUDA graphs");
}

}  // namespace

const Choice& Plan::choice(std::string_view field) const {
  for (const Choice& each : choices) {
    if (each.field == field) return each;
  }
  NIBBLE_CHECK(false, "no such field in the plan");
  return choices[0];
}

std::vector<std::string> Plan::degraded_by() const {
  std::vector<std::string> names;
  for (const GateResult& gate : gates) {
    if (gate.overridden) names.push_back(gate.name);
  }
  return names;
}

std::vector<RankPart> rank_parts(const Plan& plan) {
  std::vector<RankPart> parts;
  const int ranks = plan.tensor_parallel, expert_ranks = plan.expert_parallel;
  if (ranks == 1) return parts;
  if (plan.device == DeviceKind::cuda && ranks != expert_ranks) return parts;  // not built
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(plan.data_parallel > 1 ? owner_part(plan.model, ranks, plan.data_parallel, rank)
                                           : rank_part(plan.model, ranks, expert_ranks, rank));
  }
  return parts;
}

Result<Plan> resolve_by(std::span<const Rule> rules, const EngineOptions& options, const Machine& machine,
                        const ModelTraits& model) {
  NIBBLE_RETURN_IF_ERROR(check_overrides(options.override_gates));
  Plan plan{.model = model, .machine = machine};
  plan.gates = check_gates(machine, options.override_gates);
  Situation situation{options, machine, model, plan.gates};
  for (const FieldSpec& spec : field_specs()) {
    const auto decide_field = spec.field == Field::experts ? decide_pair : decide;
    NIBBLE_RETURN_IF_ERROR(decide_field(rules, spec, situation, plan));
  }
  fill(situation, plan);
  list_not_built(situation, plan);
  plan.memory = plan_memory(situation);
  plan.bound = plan_bound(plan);
  return plan;
}

Result<std::vector<JudgedPair>> judge_pairs(const EngineOptions& options, const Machine& machine,
                                            const ModelTraits& model) {
  Plan plan;
  plan.gates = check_gates(machine, options.override_gates);
  Situation situation{options, machine, model, plan.gates};
  for (const FieldSpec& spec : field_specs()) {
    if (spec.field != Field::experts) {
      NIBBLE_RETURN_IF_ERROR(decide(plan_rules(), spec, situation, plan));
      continue;
    }
    // GPUs that share a model have whole experts.
    const std::int64_t ranks = situation.number(Field::tensor_parallel);
    const bool ranks_are_built =
        ranks == 1 || !situation.on_gpu() || ranks == situation.number(Field::expert_parallel);
    std::vector<JudgedPair> pairs;
    for (const Judged& each : judge(plan_rules(), spec, situation)) {
      JudgedPair pair{.path = each.candidate.path,
                      .rules = {},
                      .why = each.why_not(),
                      .built = is_built(*find_expert_kernel(each.candidate.path.kernel),
                                        *find_exchange(each.candidate.path.exchange)) &&
                               ranks_are_built};
      for (const Reason& reason : each.reasons) pair.rules.emplace_back(reason.rule);
      pairs.push_back(std::move(pair));
    }
    return pairs;
  }
  return internal_error("no field of pairs");
}

Result<Plan> resolve(const EngineOptions& options, const Machine& machine, const ModelTraits& model) {
  return resolve_by(plan_rules(), options, machine, model);
}

}  // namespace nibble
