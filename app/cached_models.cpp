#include "app/cached_models.h"

#include <algorithm>

#include "app/amount.h"
#include "checkpoint/inspect.h"
#include "models/model_traits.h"
#include "plan/plan.h"

namespace nibble {
namespace {

// The first problem is enough; how many there are says whether mending it is.
std::string first_of(const Problems& problems) {
  const std::string first = problems.first().message();
  if (problems.count() == 1) return first;
  return std::to_string(problems.count()) + " problems, the first: " + first;
}

}  // namespace

ModelVerdict judge_model(const std::filesystem::path& folder, const std::string& name,
                         const Machine& machine) {
  ModelVerdict verdict;
  const Result<ModelConfig> config = read_model_config(folder);
  if (!config.ok()) {
    verdict.why_not = config.status().message();
    return verdict;
  }
  verdict.architecture = config->architecture;
  const Inspection inspection = inspect_model(folder);
  if (!inspection.problems.empty()) {
    verdict.why_not = first_of(inspection.problems);
    return verdict;
  }
  const Result<ModelTraits> traits = traits_of(*config, name);
  if (!traits.ok()) {
    verdict.why_not = traits.status().message();
    return verdict;
  }
  EngineOptions options;
  options.model = name;
  options.max_num_seqs = 1;
  options.max_model_len =
      static_cast<int>(std::min<std::int64_t>(config->max_position_embeddings, kConversationTokens));
  options.given.max_num_seqs = options.given.max_model_len = true;
  const Result<Plan> plan = resolve(options, machine, *traits);
  if (!plan.ok()) {
    const bool weights_fit = machine.gpu.count > 0 || traits->weight_bytes() <= machine.cpu.memory_bytes;
    verdict.why_not = weights_fit
                          ? plan.status().message()
                          : "its weights are " + scaled_bytes(traits->weight_bytes()) + ", and there are " +
                                scaled_bytes(machine.cpu.memory_bytes) + " of memory";
    return verdict;
  }
  verdict.conversation_tokens = options.max_model_len;
  verdict.memory_bytes = plan->memory.total;
  verdict.device = plan->device == DeviceKind::cpu ? "cpu" : "cuda";
  // A CPU maps its weights, so the plan allows more of them than there is memory for; each token would then
  // read them from the disk.
  verdict.runs = plan->memory.total <= plan->memory.capacity;
  if (!verdict.runs)
    verdict.why_not = "it needs " + scaled_bytes(plan->memory.total) + " of memory, and there are " +
                      scaled_bytes(plan->memory.capacity);
  return verdict;
}

}  // namespace nibble
