#include "plan/rules.h"

#include <algorithm>

#include "plan/budget.h"
#include "plan/gpu_fit.h"
#include "plan/kernel_formats.h"

namespace nibble {
namespace {

using S = Situation;
using C = Candidate;

std::string mebibytes(std::int64_t bytes) { return grouped(bytes >> 20) + " MiB"; }
std::string number(std::int64_t value) { return std::to_string(value); }

const ExpertKernel& kernel_of(const C& pair) { return *find_expert_kernel(pair.path.kernel); }
const KernelFacts& attention_of(const C& candidate) { return find_attention(candidate.value)->facts; }

DeviceKind device_of(const S& s) { return s.on_gpu() ? DeviceKind::cuda : DeviceKind::cpu; }

bool lacks_features(const S& s, const KernelFacts& kernel) {
  return kernel.device == DeviceKind::cpu && !missing_features(kernel, s.machine.cpu).empty();
}
std::string lacking(const S& s, const KernelFacts& kernel) {
  return "this CPU lacks what " + std::string(kernel.name) +
         " needs: " + missing_features(kernel, s.machine.cpu);
}
bool is_intel(const CpuFacts& cpu) { return cpu.vendor == "GenuineIntel"; }
bool is_amd(const CpuFacts& cpu, int family) { return cpu.vendor == "AuthenticAMD" && cpu.family == family; }
bool other_architecture(const S& s, const KernelFacts& kernel) {
  return s.on_gpu() && kernel.device == DeviceKind::cuda &&
         kernel.compute_capability != s.machine.gpu.compute_capability;
}
std::string made_for(const S& s, const KernelFacts& kernel) {
  return "it is for SM" + number(kernel.compute_capability) + "; this GPU is SM" +
         number(s.machine.gpu.compute_capability);
}
std::string other_device(const KernelFacts& kernel) {
  return "it runs on a " + std::string(kernel.device == DeviceKind::cpu ? "CPU" : "GPU");
}
// CPUs that the process may run on.
std::int64_t cpus_of(const S& s) {
  return s.machine.cpu.cpus > 0 ? s.machine.cpu.cpus : s.machine.cpu.threads;
}
std::string only_declared() { return "it is declared but not built into this program"; }

bool has_fp8_weights(const ModelTraits& model) {
  return is_fp8(model.dense_format) || (model.experts > 0 && is_fp8(model.expert_format));
}

std::int64_t rank_number(const C& candidate) { return std::max<std::int64_t>(candidate.number, 1); }

// The first gate that `field` with `value` needs and that is not open; null where all are.
const GateResult* closed_gate(const S& s, std::string_view field, std::string_view value) {
  for (const GateResult& result : s.gates) {
    if (!result.open() && needs_gate(*find_gate(result.name), field, value)) return &result;
  }
  return nullptr;
}
const GateResult* closed_gate_of_pair(const S& s, const C& pair) {
  const GateResult* runner = closed_gate(s, "moe_runner", pair.path.kernel);
  return runner != nullptr ? runner : closed_gate(s, "token_exchange", pair.path.exchange);
}

// For who asks for snapshots all the same.
bool lacks_snapshots(const S& s) {
  return s.model.linear_layers == 0 || s.at(Field::prefix_cache).value != "on";
}
std::string why_no_snapshots(const S& s) {
  return s.model.linear_layers == 0 ? "no layer of this model keeps a state"
                                    : "the prefix cache is off, and snapshots are its own";
}

bool is_tuned(const S& s, std::string_view field, const C& candidate) {
  const TuningEntry* const entry = tuned(s, field);
  return entry != nullptr && entry->value == candidate.value;
}

constexpr Rule rules[] = {
    {"device-gate", Field::device, Effect::remove,
     [](const S& s, const C& c) { return closed_gate(s, "device", c.value) != nullptr; },
     [](const S& s, const C& c) { return closed_gate(s, "device", c.value)->why; }},
    {"pair-gate", Field::experts, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && closed_gate_of_pair(s, c) != nullptr; },
     [](const S& s, const C& c) { return closed_gate_of_pair(s, c)->why; }},
    {"attention-gate", Field::attention, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && closed_gate(s, "attention", c.value) != nullptr; },
     [](const S& s, const C& c) { return closed_gate(s, "attention", c.value)->why; }},
    {"all-reduce-gate", Field::all_reduce, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && closed_gate(s, "all_reduce", c.value) != nullptr; },
     [](const S& s, const C& c) { return closed_gate(s, "all_reduce", c.value)->why; }},

    {"no-gpu", Field::device, Effect::remove,
     [](const S& s, const C& c) { return c.value == "cuda" && s.machine.gpu.count == 0; },
     [](const S& s, const C&) {
       if (s.machine.declared) return std::string("this machine has no GPU");
       if (!has_device_code())
         return std::string("no GPU was looked for: this nibble was built without CUDA");
       return "no GPU can be used: " + s.machine.gpu.problem;
     },
     true},
    {"gpu-kernels-not-built", Field::device, Effect::remove,
     [](const S& s, const C& c) {
       return c.value == "cuda" && s.machine.gpu.count > 0 && !s.machine.declared && !runs_on_this_gpu(s);
     },
     [](const S& s, const C&) {
       if (!has_device_code()) return std::string("this nibble was built without CUDA");
       return "no kernel in this nibble is for this GPU's SM" + number(s.machine.gpu.compute_capability) +
              " and this model's shapes and formats";
     },
     true},

    {"one-rank-a-gpu", Field::tensor_parallel, Effect::remove,
     [](const S& s, const C& c) {
       return s.on_gpu() && c.number > std::max(s.options.processes, 1) * s.machine.gpu.count;
     },
     [](const S& s, const C&) {
       return (s.machine.gpu.count == 1 ? std::string("there is one GPU")
                                        : "there are " + number(s.machine.gpu.count) + " GPUs") +
              (s.options.processes > 1 ? " for each of " + number(s.options.processes) + " processes" : "");
     }},
    {"gpus-reach-each-other", Field::tensor_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && c.number > 1 && !s.machine.gpu.peer_problem.empty(); },
     [](const S& s, const C&) { return s.machine.gpu.peer_problem; }},
    {"cpu-ranks-run-models", Field::tensor_parallel, Effect::remove,
     [](const S& s, const C& c) { return !s.on_gpu() && c.number > 1 && !s.model.runs; },
     [](const S& s, const C&) { return "ranks of a CPU are not built for " + s.model.architecture; }, true},
    {"ranks-join-in-halves", Field::tensor_parallel, Effect::remove,
     [](const S&, const C& c) { return c.number != 1 && c.number != 2 && c.number != 4 && c.number != 8; },
     [](const S&, const C&) { return std::string("ranks are 1, 2, 4 or 8"); }, true},
    {"ranks-for-experts", Field::tensor_parallel, Effect::prefer,
     [](const S& s, const C& c) {
       return s.options.expert_parallel > 1 && c.number == s.options.expert_parallel;
     },
     [](const S& s, const C&) {
       return "--ep " + number(s.options.expert_parallel) + " needs as many ranks";
     }},
    {"ranks-for-processes", Field::tensor_parallel, Effect::prefer,
     [](const S& s, const C& c) {
       return s.options.expert_parallel <= 1 && s.options.data_parallel <= 1 && s.options.processes > 1 &&
              c.number == s.options.processes;
     },
     [](const S& s, const C&) {
       return number(s.options.processes) + " processes have a rank each at least";
     }},
    {"ranks-for-sequences", Field::tensor_parallel, Effect::prefer,
     [](const S& s, const C& c) {
       return s.options.expert_parallel <= 1 && s.options.data_parallel > 1 &&
              c.number == s.options.data_parallel;
     },
     [](const S& s, const C&) { return "--dp " + number(s.options.data_parallel) + " needs as many ranks"; }},
    {"heads-divide", Field::tensor_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && !heads_divide(s, rank_number(c)); },
     [](const S& s, const C& c) {
       return number(s.model.heads) + " heads of queries and " + number(s.model.kv_heads) +
              " of keys do not divide among " + c.value + " ranks";
     }},
    {"states-divide", Field::tensor_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && !states_divide(s, rank_number(c)); },
     [](const S& s, const C& c) {
       return number(s.model.delta.key_heads) + " heads of keys of layers with a state do not divide among " +
              c.value + " ranks in whole blocks of " + number(gathered_columns) + " columns";
     }},
    {"dense-layers-divide", Field::tensor_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && !dense_layers_divide(s, rank_number(c)); },
     [](const S& s, const C& c) {
       return "dense layers of " + number(s.model.dense_width) + " columns do not divide among " + c.value +
              " ranks in whole blocks of " + number(gathered_columns);
     }},
    {"weights-fit", Field::tensor_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && least_bytes(s, rank_number(c)) > memory_budget(s); },
     [](const S& s, const C& c) {
       return "a rank needs " + mebibytes(least_bytes(s, rank_number(c))) + ", and " +
              mebibytes(memory_budget(s)) + " of a GPU may be taken";
     }},

    {"processes-divide-ranks", Field::processes, Effect::remove,
     [](const S& s, const C& c) { return s.number(Field::tensor_parallel) % rank_number(c) != 0; },
     [](const S& s, const C& c) {
       const bool halves = c.number == 2 || c.number == 4 || c.number == 8;
       return "processes share the ranks of --tp, which are " + s.at(Field::tensor_parallel).value +
              (halves ? " (--tp " + c.value + " would do)" : "");
     },
     true},

    {"gpu-ranks-have-whole-experts", Field::expert_parallel, Effect::remove,
     [](const S& s, const C& c) {
       return has_gpu_ranks(s) && rank_number(c) != s.number(Field::tensor_parallel);
     },
     [](const S& s, const C&) {
       return "GPUs that share a model have whole experts each, spread over the ranks of --tp, which are " +
              s.at(Field::tensor_parallel).value;
     },
     true},
    {"no-experts-to-spread", Field::expert_parallel, Effect::remove,
     [](const S& s, const C& c) { return !s.on_gpu() && c.number > 1 && s.model.experts == 0; },
     [](const S&, const C&) { return std::string("this model has no experts; --tp divides its layers"); }},
    {"cpu-experts-on-all-ranks", Field::expert_parallel, Effect::remove,
     [](const S& s, const C& c) {
       return !s.on_gpu() && c.number > 1 && c.number != s.number(Field::tensor_parallel);
     },
     [](const S& s, const C&) {
       return "a CPU's ranks have experts of their own all or none, and --tp is " +
              s.at(Field::tensor_parallel).value;
     },
     true},
    {"experts-divide", Field::expert_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && s.model.experts % rank_number(c) != 0; },
     [](const S& s, const C& c) {
       return number(s.model.experts) + " experts do not divide among " + c.value + " ranks";
     }},
    {"experts-within-ranks", Field::expert_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.number(Field::tensor_parallel) % rank_number(c) != 0; },
     [](const S& s, const C&) {
       return "experts are spread over the ranks of --tp, which are " + s.at(Field::tensor_parallel).value;
     }},

    {"sequences-need-whole-experts", Field::expert_parallel, Effect::prefer,
     [](const S& s, const C& c) {
       return (s.options.data_parallel > 1 || s.options.dp_attention) && s.model.experts > 0 &&
              c.number > 1 && c.number == s.number(Field::tensor_parallel);
     },
     [](const S&, const C&) {
       return std::string("tokens of ranks with sequences of their own meet at whole experts");
     }},

    {"owners-divide-ranks", Field::data_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.number(Field::tensor_parallel) % rank_number(c) != 0; },
     [](const S& s, const C&) {
       return "--tp counts all ranks, which are " + s.at(Field::tensor_parallel).value +
              ", and --dp divides them into groups of one size";
     },
     true},
    {"gpu-processes-share-sequences", Field::data_parallel, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && c.number > 1 && s.options.processes > 1; },
     [](const S&, const C&) {
       return std::string("GPUs with sequences of their own are one process's; leave --nnodes out");
     },
     true},
    {"owners-exchange-experts", Field::data_parallel, Effect::remove,
     [](const S& s, const C& c) { return c.number > 1 && s.number(Field::expert_parallel) == 1; },
     [](const S& s, const C&) {
       return std::string(
           s.model.experts == 0
               ? "this model has no experts at which tokens could meet; a server a replica does it"
               : "ranks with sequences of their own need whole experts, --ep as many as all ranks");
     }},

    {"gpu-bfloat16", Field::dtype, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && c.value != "bfloat16" && c.value != "fp8"; },
     [](const S&, const C&) { return std::string("the GPU's kernels take bfloat16"); }},
    {"fp8-inputs-meet-fp8-weights", Field::dtype, Effect::remove,
     [](const S& s, const C& c) { return c.value == "fp8" && !has_fp8_weights(s.model); },
     [](const S&, const C&) {
       return std::string("it rounds the inputs of weights in FP8, and this model has none");
     },
     true},

    {"gpu-converts-nothing", Field::quantization, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && c.value != "none"; },
     [](const S&, const C&) { return std::string("no GPU kernel takes converted weights"); }},
    {"bfloat16-converts", Field::quantization, Effect::remove,
     [](const S& s, const C& c) { return c.value != "none" && s.model.dense_format != StoredFormat::bf16; },
     [](const S& s, const C&) {
       return "attention and lm_head are stored as " + std::string(stored_format_name(s.model.dense_format)) +
              "; bf16 can be converted";
     }},
    {"whole-blocks-convert", Field::quantization, Effect::remove,
     [](const S& s, const C& c) { return c.value != "none" && !s.model.is_convertible(); },
     [](const S&, const C&) {
       return std::string("no dense matrix in bf16 has whole blocks of 32 columns");
     }},

    {"gpu-cache-is-narrow", Field::kv_cache_dtype, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && c.value == "float32"; },
     [](const S&, const C&) { return std::string("attention on a GPU reads bfloat16 or fp8"); }},

    {"runner-device", Field::experts, Effect::remove,
     [](const S& s, const C& c) { return kernel_of(c).facts.device != device_of(s); },
     [](const S&, const C& c) { return other_device(kernel_of(c).facts); }, true},
    {"runner-format", Field::experts, Effect::remove,
     [](const S& s, const C& c) { return !takes_format(kernel_of(c), s.model.expert_format); },
     [](const S& s, const C& c) {
       return "it takes experts in " + std::string(stored_format_name(kernel_of(c).format)) +
              "; this model's are in " + std::string(stored_format_name(s.model.expert_format));
     }},
    {"runner-features", Field::experts, Effect::remove,
     [](const S& s, const C& c) { return lacks_features(s, kernel_of(c).facts); },
     [](const S& s, const C& c) { return lacking(s, kernel_of(c).facts); }},
    {"runner-architecture", Field::experts, Effect::remove,
     [](const S& s, const C& c) { return other_architecture(s, kernel_of(c).facts); },
     [](const S& s, const C& c) { return made_for(s, kernel_of(c).facts); }, true},
    {"runner-not-built", Field::experts, Effect::remove,
     [](const S& s, const C& c) { return !kernel_of(c).facts.built && !s.machine.declared; },
     [](const S&, const C&) { return only_declared(); }},
    {"exchange-needs-ranks", Field::experts, Effect::remove,
     [](const S& s, const C& c) {
       return c.path.exchange != "none" && s.number(Field::expert_parallel) == 1;
     },
     [](const S&, const C& c) {
       return "an exchange (" + std::string(c.path.exchange) +
              ") needs experts on several ranks, --ep 2 or more";
     }},
    {"owners-exchange-tokens", Field::experts, Effect::remove,
     [](const S& s, const C& c) { return c.path.exchange == "none" && owners_of(s) > 1; },
     [](const S&, const C&) {
       return std::string("ranks have rows of their own, and an exchange alone takes them to their experts");
     }},
    {"runner-takes-dispatch", Field::experts, Effect::remove,
     [](const S&, const C& c) { return c.path.exchange != "none" && !kernel_of(c).exchanges; },
     [](const S&, const C& c) {
       return std::string(c.path.kernel) + " takes tokens in place, not " +
              std::string(dispatch_format_name(c.path.dispatch)) + " ones";
     },
     true},
    {"gpu-ranks-exchange-products", Field::experts, Effect::remove,
     [](const S& s, const C& c) {
       return s.on_gpu() && s.number(Field::tensor_parallel) > 1 && c.path.exchange != "none" &&
              owners_of(s) == 1;
     },
     [](const S&, const C&) {
       return std::string(
           "every GPU has all rows, and products travel to all; rows travel where GPUs have sequences of "
           "their own (--dp)");
     }},
    {"gpus-need-no-meeting-for-few-rows", Field::experts, Effect::prefer,
     [](const S& s, const C& c) {
       return s.on_gpu() && c.path.exchange == "low_latency" && owners_of(s) > 1;
     },
     [](const S&, const C&) {
       return "up to " + number(few_rows_of_a_gpu) +
              " rows of each GPU say themselves that they have come; of more GPUs tell each other, as with "
              "normal";
     }},
    {"intel-multiplies-singly", Field::experts, Effect::prefer,
     [](const S& s, const C& c) {
       return c.path.kernel == "cpu_avx512_vnni" && is_intel(s.machine.cpu) && !s.machine.cpu.has("amx_tile");
     },
     [](const S&, const C&) {
       return std::string("an Intel CPU starts four multiply-adds for one VDPBF16PS");
     }},
    {"spread-experts-exchange", Field::experts, Effect::prefer,
     [](const S& s, const C& c) {
       return !s.on_gpu() && c.path.exchange == "normal" && s.number(Field::expert_parallel) > 1;
     },
     [](const S&, const C&) {
       return std::string("a token travels once, to the ranks that hold its experts");
     }},

    {"lines-measured", Field::weight_lines, Effect::prefer,
     [](const S& s, const C& c) { return is_tuned(s, "weight_lines", c); },
     [](const S& s, const C&) { return measured_text(*tuned(s, "weight_lines")); }, true},
    {"zen4-reads-on", Field::weight_lines, Effect::prefer,
     [](const S& s, const C& c) {
       return c.value == name_of(WeightLines::led) && is_amd(s.machine.cpu, 25) &&
              s.machine.cpu.has("avx512f");
     },
     [](const S&, const C&) {
       return std::string(
           "on a Zen 4 one prefetch in eight steps starts the hardware prefetcher, and more would fill its "
           "miss buffers");
     }},
    {"reads-near", Field::weight_lines, Effect::prefer,
     [](const S& s, const C& c) {
       return c.value == name_of(WeightLines::each_near) && is_amd(s.machine.cpu, 26);
     },
     [](const S&, const C&) {
       return std::string("a Zen 5 is late with lines that are asked for into its second-level cache");
     }},
    {"reads-late", Field::weight_lines, Effect::prefer,
     [](const S& s, const C& c) {
       return c.value == name_of(WeightLines::each_late) && is_intel(s.machine.cpu) &&
              s.machine.cpu.has("avx512f");
     },
     [](const S&, const C&) {
       return std::string(
           "an Intel CPU with AVX-512 brings lines into its second-level cache itself, and is slower where "
           "they are asked for long before");
     }},

    {"experts-measured", Field::many_tokens_from, Effect::prefer,
     [](const S& s, const C& c) { return is_tuned(s, "many_tokens_from", c); },
     [](const S& s, const C&) { return measured_text(*tuned(s, "many_tokens_from")); }, true},
    {"table-given", Field::tuning, Effect::prefer,
     [](const S& s, const C& c) { return s.machine.tuning && c.value == s.machine.tuning->digest(); },
     [](const S& s, const C&) { return tuning_text(s); }},

    {"attention-device", Field::attention, Effect::remove,
     [](const S& s, const C& c) { return attention_of(c).device != device_of(s); },
     [](const S&, const C& c) { return other_device(attention_of(c)); }, true},
    {"attention-kind", Field::attention, Effect::remove,
     [](const S& s, const C& c) { return !find_attention(c.value)->takes(s.model.attention); },
     [](const S& s, const C&) {
       return std::string(s.model.attention == AttentionKind::latent
                              ? "this model's keys and values are one latent vector"
                              : "this model has keys and values by head");
     }},
    {"attention-features", Field::attention, Effect::remove,
     [](const S& s, const C& c) { return lacks_features(s, attention_of(c)); },
     [](const S& s, const C& c) { return lacking(s, attention_of(c)); }},
    {"attention-architecture", Field::attention, Effect::remove,
     [](const S& s, const C& c) { return other_architecture(s, attention_of(c)); },
     [](const S& s, const C& c) { return made_for(s, attention_of(c)); }, true},
    {"attention-not-built", Field::attention, Effect::remove,
     [](const S& s, const C& c) { return !attention_of(c).built && !s.machine.declared; },
     [](const S&, const C&) { return only_declared(); }},

    {"linear-attention-device", Field::linear_attention, Effect::remove,
     [](const S& s, const C& c) { return (c.number > 0) != s.on_gpu(); },
     [](const S&, const C& c) { return "it runs on a " + std::string(c.number > 0 ? "GPU" : "CPU"); }, true},
    {"linear-attention-architecture", Field::linear_attention, Effect::remove,
     [](const S& s, const C& c) {
       return s.on_gpu() && c.number > 0 && c.number != s.machine.gpu.compute_capability;
     },
     [](const S& s, const C& c) {
       return "it is for SM" + number(c.number) + "; this GPU is SM" +
              number(s.machine.gpu.compute_capability);
     },
     true},
    {"linear-attention-not-built", Field::linear_attention, Effect::remove,
     [](const S& s, const C& c) { return !s.machine.declared && c.number > 0 && c.number != 90; },
     [](const S&, const C&) { return only_declared(); }},

    {"copies-leave-room", Field::expert_copies, Effect::remove,
     [](const S& s, const C& c) { return is_expert_copies(c) && room_beside_copies(s) < 0; },
     [](const S& s, const C&) {
       return "copies of all experts would leave " + mebibytes(-room_beside_copies(s)) +
              " too little for keys and values of " + number(s.number(Field::max_num_seqs)) + " sequences";
     }},

    {"one-rank", Field::all_reduce, Effect::remove,
     [](const S& s, const C& c) {
       return c.value != "none" && s.number(Field::tensor_parallel) == owners_of(s);
     },
     [](const S& s, const C&) {
       return std::string(owners_of(s) > 1 ? "each rank has its sequences' sums whole" : "there is one rank");
     }},
    {"several-ranks", Field::all_reduce, Effect::remove,
     [](const S& s, const C& c) {
       return c.value == "none" && s.number(Field::tensor_parallel) > owners_of(s);
     },
     [](const S&, const C&) { return std::string("the ranks' parts must be summed"); }},
    {"ranks-gather", Field::all_reduce, Effect::remove,
     [](const S& s, const C& c) {
       return c.value != "none" && c.value != "gather" && c.value != "nccl" &&
              s.number(Field::tensor_parallel) > 1;
     },
     [](const S&, const C&) { return std::string("ranks have whole sums and gather them"); }},
    {"nccl-is-for-gpus", Field::all_reduce, Effect::remove,
     [](const S& s, const C& c) {
       return c.value == "nccl" && !s.on_gpu() && s.number(Field::tensor_parallel) > 1;
     },
     [](const S&, const C&) {
       return std::string("it joins GPUs, and a CPU's ranks have links of their own");
     }},
    {"nccl-exchanges-no-rows", Field::all_reduce, Effect::remove,
     [](const S& s, const C& c) { return c.value == "nccl" && owners_of(s) > 1; },
     [](const S&, const C&) {
       return std::string(
           "ranks with sequences of their own store rows into each other's memory; leave --dp out");
     }},

    {"a-snapshot-fits", Field::prefix_cache, Effect::remove,
     [](const S& s, const C& c) {
       return c.value == "on" && s.model.linear_layers > 0 && affordable_snapshots(s) == 0;
     },
     [](const S& s, const C&) {
       return "a prefix is gone on from a snapshot of the states, and one of " +
              grouped(s.model.snapshot_bytes) + " bytes does not fit in their part of the memory";
     }},
    {"no-state-to-keep", Field::snapshot_interval, Effect::remove,
     [](const S& s, const C&) { return lacks_snapshots(s); },
     [](const S& s, const C&) { return why_no_snapshots(s); }, true},
    {"snapshots-at-borders", Field::snapshot_interval, Effect::remove,
     [](const S&, const C& c) { return c.number % delta_chunk != 0; },
     [](const S&, const C&) {
       return "a state is kept at multiples of " + number(delta_chunk) + " positions";
     }},
    {"no-state-to-count", Field::state_snapshots, Effect::remove,
     [](const S& s, const C&) { return lacks_snapshots(s); },
     [](const S& s, const C&) { return why_no_snapshots(s); }, true},
    {"a-prefix-needs-a-snapshot", Field::state_snapshots, Effect::remove,
     [](const S& s, const C& c) { return c.number == 0 && !lacks_snapshots(s); },
     [](const S&, const C&) {
       return std::string("requests go on from this model's prefixes by snapshots of its states alone");
     }},
    {"snapshots-fit", Field::state_snapshots, Effect::remove,
     [](const S& s, const C& c) { return !lacks_snapshots(s) && c.number > affordable_snapshots(s); },
     [](const S& s, const C&) {
       return number(affordable_snapshots(s)) + " of " + grouped(s.model.snapshot_bytes) +
              " bytes fit in their part of the memory";
     }},
    {"no-drafts-to-count", Field::draft_tokens, Effect::remove,
     [](const S& s, const C&) { return s.at(Field::speculation).value == "none"; },
     [](const S&, const C&) { return std::string("the plan's row speculation is none"); }},
    {"drafts-within-a-chunk", Field::draft_tokens, Effect::remove,
     [](const S& s, const C& c) {
       return s.model.linear_layers > 0 && c.number + s.model.delta.taps > delta_chunk;
     },
     [](const S& s, const C&) {
       return "layers keep a state, which is brought forward once in " + number(delta_chunk) +
              " positions: a step checks at most " + number(delta_chunk - s.model.delta.taps);
     }},
    {"kernels-are-invariant", Field::batch_invariance, Effect::remove,
     [](const S&, const C& c) { return c.value == "off"; },
     [](const S&, const C&) {
       return std::string("no kernel adds by the batch, so there is nothing to switch");
     }},
    {"cpu-has-no-graphs", Field::cuda_graphs, Effect::remove,
     [](const S& s, const C& c) { return c.value == "on" && !s.on_gpu(); },
     [](const S&, const C&) { return std::string("a CPU runs steps as they are"); }},
    {"gpu-sequences", Field::max_num_seqs, Effect::remove,
     [](const S& s, const C& c) { return s.on_gpu() && c.number > 1024; },
     [](const S&, const C&) { return std::string("attention on a GPU takes at most 1,024 in a step"); }},
    {"context-of-the-model", Field::max_model_len, Effect::remove,
     [](const S& s, const C& c) { return c.number > s.model.max_positions; },
     [](const S& s, const C&) { return "the model holds " + number(s.model.max_positions) + " tokens"; }},
    {"context-fits", Field::max_model_len, Effect::remove,
     [](const S& s, const C& c) { return c.number > usable_tokens(s); },
     [](const S& s, const C& c) {
       const std::int64_t usable = usable_tokens(s);
       if (usable < affordable_tokens(s)) return "--kv-cache-tokens holds " + number(usable);
       const std::int64_t position = kv_position_bytes(s.model, kv_dtype_of(s), sharers_of(s));
       const std::string& dtype = s.at(Field::kv_cache_dtype).value;
       const std::string narrower = dtype == "float32" ? "bfloat16" : "fp8";
       return "its keys and values need " + mebibytes(c.number * position) + "; at most " + number(usable) +
              " fit here" + (dtype == "fp8" ? "" : ", and more with --kv-cache-dtype " + narrower);
     }},
    {"pages-fit", Field::kv_pages, Effect::remove,
     [](const S& s, const C& c) {
       return c.number > std::max<std::int64_t>(affordable_tokens(s) / page_size_of(s), 1);
     },
     [](const S& s, const C&) { return number(affordable_tokens(s)) + " positions fit"; }},
    {"more-threads-than-cpus", Field::pinning, Effect::remove,
     [](const S& s, const C& c) { return c.value != "none" && s.number(Field::threads) > cpus_of(s); },
     [](const S& s, const C&) {
       return "there are more threads than the " + number(cpus_of(s)) + " CPUs that this process may use";
     }},
    {"quota-shares-cpus", Field::pinning, Effect::remove,
     [](const S& s, const C& c) {
       return c.value != "none" && s.machine.cpu.cpu_quota > 0 &&
              s.machine.cpu.cpu_quota < static_cast<double>(cpus_of(s));
     },
     [](const S&, const C&) {
       return std::string("a container with a quota of CPU time shares its CPUs with others");
     }},
    // The calling thread is not pinned.
    {"cpus-are-claimed", Field::pinning, Effect::remove,
     [](const S& s, const C& c) {
       return c.value != "none" && s.machine.cpu.claimed_cpus > 0 &&
              s.number(Field::threads) - 1 > cpus_of(s) - s.machine.cpu.claimed_cpus;
     },
     [](const S& s, const C&) {
       return "others of nibble have pinned threads to " + number(s.machine.cpu.claimed_cpus) + " of the " +
              number(cpus_of(s)) + " CPUs";
     }},
};

}  // namespace

std::span<const Rule> plan_rules() { return rules; }

}  // namespace nibble
