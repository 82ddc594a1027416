// A plan as a screen: rows of value, origin and reason, what was refused folded under them, bytes, and the
// bound.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "plan/kernel_table.h"
#include "plan/plan.h"
#include "plan/rank_part.h"
#include "plan/text_layout.h"

namespace nibble {
namespace {

constexpr int name_width = 24;
constexpr int value_width = 18;

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string size(double bytes) {
  return bytes < 1e9 ? format("%.1f MB", bytes / 1e6) : format("%.2f GB", bytes / 1e9);
}

std::string row(const char* name, const std::string& text, int columns) {
  return wrapped(padded(name, 10), text, 10, columns);
}

std::string model_text(const ModelTraits& model, int columns) {
  std::string about = std::to_string(model.layers) + " layers of " + std::to_string(model.hidden);
  if (model.window_layers > 0)
    about +=
        " (" + std::to_string(model.window_layers) + " in a window of " + std::to_string(model.window) + ")";
  if (model.linear_layers > 0) about += " (" + std::to_string(model.linear_layers) + " with a state)";
  if (model.experts > 0) {
    about += ", " + std::to_string(model.experts) + " experts of " + std::to_string(model.expert_width) +
             " in " + std::string(stored_format_name(model.expert_format)) + ", " +
             std::to_string(model.experts_per_token) + " a token";
  } else {
    about += ", dense of " + std::to_string(model.dense_width);
  }
  about += "; " + grouped(model.weight_bytes()) + " bytes of weights";
  return row("model", model.name + " (" + model.architecture + ")", columns) + row("", about, columns);
}

std::string rate(double bytes_per_s) {
  return bytes_per_s > 0 ? grouped(static_cast<std::int64_t>(bytes_per_s / 1e9 + 0.5)) + " GB/s"
                         : std::string("unmeasured");
}
std::string arithmetic(double flops) {
  if (flops <= 0) return "unmeasured";
  return flops < 1e13 ? grouped(static_cast<std::int64_t>(flops / 1e9 + 0.5)) + " GFLOP/s"
                      : grouped(static_cast<std::int64_t>(flops / 1e12 + 0.5)) + " TFLOP/s";
}

std::string machine_text(const Plan& plan, int columns) {
  const Machine& machine = plan.machine;
  std::string text = row(
      "machine", machine.name + (machine.declared ? " (declared: nothing of it was probed)" : ""), columns);
  if (plan.device == DeviceKind::cuda) {
    const GpuFacts& gpu = machine.gpu;
    return text + row("",
                      std::to_string(gpu.count) + " x " + gpu.model + ", SM" +
                          std::to_string(gpu.compute_capability) + ": each " +
                          grouped(gpu.memory_bytes >> 20) + " MiB, reading " + rate(gpu.read_bandwidth) +
                          ", " + arithmetic(gpu.bf16_flops) + " in bfloat16",
                      columns);
  }
  const CpuFacts& cpu = machine.cpu;
  return text +
         row("",
             cpu.model + ", " + std::to_string(cpu.threads) + " threads: " + grouped(cpu.memory_bytes >> 20) +
                 " MiB, " + grouped(cpu.available_bytes >> 20) + " of them free" +
                 (cpu.memory_limit_from.empty() ? "" : " (by " + cpu.memory_limit_from + ")") + ", reading " +
                 rate(cpu.read_bandwidth) + ", " + arithmetic(cpu.bf16_flops) + " in bfloat16",
             columns);
}

// Refused values with one reason between them share a line.
std::string refused_text(const Choice& choice, int columns) {
  std::vector<std::pair<std::string, std::string>> groups;  // why, values
  for (const Rejected& rejected : choice.rejected) {
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == rejected.why; });
    if (same == groups.end()) {
      groups.emplace_back(rejected.why, rejected.value);
    } else {
      same->second += ", " + rejected.value;
    }
  }
  std::string text;
  for (const auto& [why, values] : groups) text += wrapped("    not ", values + ": " + why, 8, columns);
  if (!choice.alternatives.empty()) {
    std::string others;
    for (const std::string& value : choice.alternatives) others += (others.empty() ? "" : ", ") + value;
    text += wrapped("    or ", others, 8, columns);
  }
  return text;
}

std::string choices_text(const Plan& plan, int columns) {
  std::string text = padded("choice", name_width) + padded("value", value_width) + "from, and why\n";
  for (const Choice& choice : plan.choices) {
    const std::string head =
        padded(choice.field, name_width - 1) + " " + padded(choice.value, value_width - 1) + " ";
    text += wrapped(head, choice.from + ": " + choice.why, name_width + value_width, columns);
    text += refused_text(choice, columns);
  }
  return text;
}

std::string experts_text(const Plan& plan, int columns) {
  const ExpertPath& path = plan.experts;
  return wrapped(padded("experts", name_width),
                 std::string(path.kernel) + " with exchange " + std::string(path.exchange) + ": tokens " +
                     std::string(dispatch_format_name(path.dispatch)) + ", weights in layout " +
                     std::string(weight_layout_name(path.layout)) + ", results " +
                     std::string(combine_format_name(path.combine)),
                 name_width, columns);
}

// What --quantization changes, and what it leaves.
std::string conversion_text(const Plan& plan, int columns) {
  if (plan.quantization == Quantization::none) return {};
  std::string converted, stored;
  for (const WeightGroup& group : plan.model.weights) {
    if (group.convertible.empty()) continue;
    converted += (converted.empty() ? "" : ", ") +
                 std::string(group.use == WeightUse::last_token ? "lm_head" : group.name);
  }
  for (const StoredMatrices& each : plan.model.as_stored)
    stored += (stored.empty() ? "" : "; ") + std::string(each.name) + ": " + std::string(each.why);
  const std::string name = "in " + plan.choice("quantization").value;
  return wrapped(padded(name, name_width), converted, name_width, columns) +
         (stored.empty() ? "" : wrapped(padded("as stored", name_width), stored, name_width, columns));
}

std::string range(const Cuts& cuts, int rank) {
  if (cuts.count(rank) == 0) return "none";
  return std::to_string(cuts.begin(rank)) + " to " + std::to_string(cuts.end(rank) - 1);
}

// A rank's part of what is divided among the ranks that have the same sequences.
std::string shared_part_text(const Plan& plan, const RankPart& part) {
  const int place = part.place;
  const bool on_gpu = plan.device == DeviceKind::cuda;
  std::string parts = "heads " + range(part.heads, place);
  if (part.kv_heads.count > 0 && plan.model.attention == AttentionKind::grouped) {
    parts += " with keys of " + std::to_string(part.kv_heads.begin) + " to " +
             std::to_string(part.kv_heads.begin + part.kv_heads.count - 1);
  }
  if (plan.model.linear_layers > 0) parts += "; states of " + range(part.state_heads, place);
  if (plan.model.dense_width > 0) parts += "; of dense layers columns " + range(part.dense_width, place);
  if (!on_gpu && plan.model.shared_width > 0)
    parts += "; of the shared expert columns " + range(part.shared_width, place);
  if (plan.model.experts > 0) {
    parts += part.whole_experts ? "; experts " + range(part.experts, part.rank)
                                : "; of each expert rows " + range(part.width, place);
  }
  if (!on_gpu) parts += "; columns of sums " + range(part.hidden, place);
  return parts + "; tokens of the vocabulary " + range(part.vocabulary, place);
}

// What each owner of sequences may have in a step.
std::string owner_text(const Plan& plan) {
  return "at most " + std::to_string(plan.of_owner(plan.max_num_seqs)) + " sequences and " +
         std::to_string(plan.of_owner(plan.max_num_batched_tokens)) + " tokens in a step";
}

// Which heads, experts and rows each rank has.
std::string ranks_text(const Plan& plan, int columns) {
  std::string text;
  if (plan.data_parallel > 1)
    text += wrapped(padded("owners", name_width), std::string(owner_rule), name_width, columns);
  for (const RankPart& part : rank_parts(plan)) {
    std::string of_rank;
    if (part.sharers == 1) {
      of_rank = "experts " + range(part.experts, part.rank) + "; of sequences of its own everything else, " +
                owner_text(plan);
    } else {
      of_rank = shared_part_text(plan, part);
      if (plan.data_parallel > 1)
        of_rank += "; of the sequences of group " + std::to_string(part.owner()) + ", " + owner_text(plan);
    }
    text += wrapped(padded("rank " + std::to_string(part.rank), name_width), of_rank, name_width, columns);
  }
  return text;
}

std::string memory_text(const Plan& plan) {
  const MemoryPlan& memory = plan.memory;
  const auto line = [](const char* name, std::int64_t bytes, const std::string& note) {
    return padded(std::string("  ") + name, 14) + right(grouped(bytes), 20) +
           (note.empty() ? "" : "  " + note) + "\n";
  };
  std::string text = plan.tensor_parallel > 1 ? "memory, bytes on each rank\n" : "memory, bytes\n";
  text += line("weights", memory.weights, "");
  text += line("kv", memory.kv,
               grouped(memory.kv_tokens) + " positions: " + format("%.1f", memory.max_concurrency) +
                   " sequences of " + grouped(plan.max_model_len));
  if (memory.snapshots > 0) {
    text += line("  snapshots", memory.snapshots,
                 "of them: " + grouped(plan.state_snapshots) + " of " +
                     grouped(memory.snapshots / std::max(plan.state_snapshots, 1)));
  }
  text += line("workspace", memory.workspace, "");
  text += line("graphs", memory.graphs, memory.graphs > 0 ? "estimated" : "");
  text += line("total", memory.total, "");
  text += line("may take", memory.budget, "of " + grouped(memory.capacity));
  return text;
}

std::string seconds(double value) {
  return value < 1 ? format("%.1f ms", value * 1e3) : format("%.1f s", value);
}
std::string tokens(double value) {
  return value < 100 ? format("%.1f", value) : grouped(static_cast<std::int64_t>(value + 0.5));
}

std::string bound_text(const Plan& plan, int columns) {
  const BoundPlan& bound = plan.bound;
  std::string text = wrapped("bound, of bytes and products alone", "", 0, columns);
  text += "  a token reads " + size(bound.bytes_per_token) + " of weights and multiplies " +
          format("%.2f", bound.flops_per_token / 1e9) + " GFLOP\n";
  if (bound.decode_tokens_per_s[0] <= 0)
    return text + "  tokens a second: the machine's rates are unmeasured\n";
  std::string head = padded("  sequences", 22), rates = padded("  decode, tokens/s", 22);
  for (std::size_t i = 0; i < std::size(BoundPlan::batches); ++i) {
    head += right(std::to_string(BoundPlan::batches[i]), 10);
    rates += right(tokens(bound.decode_tokens_per_s[i]), 10);
  }
  text += head + "   after " + grouped(BoundPlan::context) + " positions\n" + rates + "\n";
  head = padded("  prompt, tokens", 22), rates = padded("  first token", 22);
  for (std::size_t i = 0; i < std::size(BoundPlan::prompts); ++i) {
    if (bound.first_token_s[i] <= 0) continue;
    head += right(grouped(BoundPlan::prompts[i]), 10);
    rates += right(seconds(bound.first_token_s[i]), 10);
  }
  return text + head + "\n" + rates + "\n" + padded("  prefill, tokens/s", 22) +
         right(tokens(bound.prefill_tokens_per_s), 10) + "\n";
}

std::string not_built_text(const Plan& plan, int columns) {
  if (plan.not_built.empty()) return {};
  std::string names;
  for (const std::string& name : plan.not_built) names += (names.empty() ? "" : ", ") + name;
  const bool blackwell = plan.device == DeviceKind::cuda && plan.machine.gpu.compute_capability >= 100;
  return wrapped(
             "not built ",
             names + (blackwell            ? ": nibble has no kernels for SM100 yet"
                      : !has_device_code() ? ": this program was built without CUDA"
                                           : ": declared, so that this can be planned; this program would "
                                             "refuse to run it"),
             10, columns) +
         "\n";
}

std::string gates_text(const Plan& plan, int columns) {
  const auto unprobed = [](const GateResult& gate) { return gate.status == GateStatus::unprobed; };
  const auto count = std::count_if(plan.gates.begin(), plan.gates.end(), unprobed);
  std::string text = "gates\n";
  for (const GateResult& result : plan.gates) {
    if (unprobed(result)) continue;
    const std::string found = result.found == "0" ? "" : result.found;
    text += wrapped("  " + padded(result.name, 20) +
                        padded(std::string(gate_status_name(result.status)), 14) + padded(found, 10) + " ",
                    result.why + (result.overridden ? " (overridden)" : ""), 47, columns);
  }
  if (count > 0)
    text += "  " + std::to_string(count) + " more of GPUs and their libraries, which were not looked for\n";
  return text;
}

}  // namespace

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t sign = number < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string startup_text(const Plan& plan, int columns) {
  std::string text;
  for (const Choice& choice : plan.choices)
    text += wrapped(padded(choice.field, name_width - 1) + " ",
                    choice.value + " (" + choice.from + ": " + choice.why + ")", name_width, columns);
  const MemoryPlan& memory = plan.memory;
  return text + ranks_text(plan, columns) +
         wrapped(padded("memory", name_width),
                 (plan.tensor_parallel > 1 ? "on each rank " : "") + grouped(memory.total) +
                     " bytes: weights " + grouped(memory.weights) + ", kv " + grouped(memory.kv) +
                     ", workspace " + grouped(memory.workspace),
                 name_width, columns);
}

std::string plan_text(const Plan& plan, int columns) {
  return model_text(plan.model, columns) + machine_text(plan, columns) + "\n" +
         not_built_text(plan, columns) + choices_text(plan, columns) + experts_text(plan, columns) +
         conversion_text(plan, columns) + ranks_text(plan, columns) + "\n" + memory_text(plan) + "\n" +
         bound_text(plan, columns) + "\n" + gates_text(plan, columns);
}

}  // namespace nibble
