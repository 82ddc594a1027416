// Rules as data: which candidates of a field fall away, and which are preferred, when.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace nibble {

// One possible value of a field.
struct Candidate {
  std::string value;        // as a user gives it
  std::int64_t number = 0;  // where the value is one
  std::string why;          // when it is taken and no rule led to it
  ExpertPath path;          // of Field::experts
};

// All that a rule may look at: the three inputs and the fields that are decided before its own.
struct Situation {
  const EngineOptions& options;
  const Machine& machine;
  const ModelTraits& model;
  std::span<const GateResult> gates;
  std::array<Candidate, static_cast<std::size_t>(Field::count)> decided{};

  const Candidate& at(Field field) const { return decided[static_cast<std::size_t>(field)]; }
  std::int64_t number(Field field) const { return at(field).number; }
  bool on_gpu() const { return at(Field::device).value == "cuda"; }
};

// What the user gave for --max-num-batched-tokens and --max-num-seqs, an explicit default included; 0:
// nothing. A caller without a command line only sets the value, which then counts where it is not the
// default.
int asked_step_tokens(const EngineOptions& options);
int asked_step_sequences(const EngineOptions& options);

// Whether several GPUs have ranks.
bool has_gpu_ranks(const Situation& situation);
// Whether each of them has all experts: as decided, and as a candidate says.
bool has_expert_copies(const Situation& situation);
bool is_expert_copies(const Candidate& candidate);

// The shapes of a model and what its choices so far make of them: what a measured choice holds for.
std::string tuning_model(const Situation& situation);
// What the machine's tuning table says of a field for this model; null: nothing.
const TuningEntry* tuned(const Situation& situation, std::string_view field);
// Why a plan takes it, and what of a table a plan takes.
std::string measured_text(const TuningEntry& entry);
std::string tuning_text(const Situation& situation);

enum class Effect : std::uint8_t { remove, prefer };

struct Rule {
  std::string_view id;
  Field field;
  Effect effect;
  bool (*holds)(const Situation& situation, const Candidate& candidate);
  // Why, of this candidate: "the device is cpu".
  std::string (*why)(const Situation& situation, const Candidate& candidate);
  bool decisive = false;  // no other rule's reason is worth a word beside it
};

std::span<const Rule> plan_rules();

// resolve() with other rules, or the same in another order.
Result<Plan> resolve_by(std::span<const Rule> rules, const EngineOptions& options, const Machine& machine,
                        const ModelTraits& model);

// A field: its name in a plan, its option, what it may be, and what the user gave.
struct FieldSpec {
  Field field;
  std::string_view name;    // "max_model_len"
  std::string_view option;  // "--max-model-len"; empty: none
  // In order of preference; empty: the field means nothing here and the plan has no row of it.
  std::vector<Candidate> (*candidates)(const Situation& situation);
  std::string (*asked)(const Situation& situation);  // empty: nothing; null: there is no option
};
std::span<const FieldSpec> field_specs();

// A pair of ours under these options but for the two that name pairs: the rules that remove it, none where it
// would run.
struct JudgedPair {
  ExpertPath path;
  std::vector<std::string> rules;
  std::string why;
  bool built = false;  // kernel, exchange and as many ranks
};
Result<std::vector<JudgedPair>> judge_pairs(const EngineOptions& options, const Machine& machine,
                                            const ModelTraits& model);

}  // namespace nibble
