#include "base/options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/quote.h"

namespace nibble {
namespace {

constexpr std::string_view kPrefix = "NIBBLE_";

template <class T>
bool read_number(std::string_view text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

std::string number_text(float value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

std::string variable_name(std::string_view option) {
  std::string name(kPrefix);
  for (const char c : option.substr(std::min(option.find_first_not_of('-'), option.size()))) {
    name += c == '-' ? '_' : (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

std::string unknown_variable(std::string_view variable, std::span<const OptionSpec> known) {
  // A twin of an alias is not read, but whoever sets one means the option.
  std::vector<std::pair<std::string, std::string>> meant;  // spelling, the variable that works
  for (const OptionSpec& option : known) {
    meant.emplace_back(option.variable(), option.variable());
    for (const std::string_view alias : option.aliases) {
      if (alias.starts_with("--")) meant.emplace_back(variable_name(alias), option.variable());
    }
  }
  std::vector<std::string_view> spellings;
  for (const auto& entry : meant) spellings.push_back(entry.first);
  const std::string_view near = nearest_name(variable, spellings);
  const std::string what = "the environment variable " + quote(variable) + " is unknown and has no effect; ";
  for (const auto& entry : meant) {
    if (entry.first == near) return what + "the nearest known one is " + entry.second;
  }
  return what + "an option's variable is named after it (--seed: NIBBLE_SEED)";
}

// Takes `prefix` off the front of `text`, if it is there.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string OptionSpec::variable() const { return variable_name(name); }

OptionSetter text_value(std::function<Status(std::string_view text)> read) {
  return [read = std::move(read)](std::span<const std::string_view> values) {
    NIBBLE_CHECK(!values.empty());
    return read(values.back());
  };
}

OptionSetter int_value(int& target, int min, int max) {
  return text_value([&target, min, max](std::string_view text) -> Status {
    int value = 0;
    if (!read_number(text, value) || value < min || value > max) {
      return invalid_argument("not a whole number in range; give one from " + std::to_string(min) + " to " +
                              std::to_string(max));
    }
    target = value;
    return {};
  });
}

OptionSetter uint64_value(std::uint64_t& target) {
  return text_value([&target](std::string_view text) -> Status {
    std::uint64_t value = 0;
    if (!read_number(text, value)) {
      return invalid_argument("not a whole number in range; give one from 0 to 18446744073709551615");
    }
    target = value;
    return {};
  });
}

OptionSetter float_value(float& target, float min, float max) {
  return text_value([&target, min, max](std::string_view text) -> Status {
    float value = 0;
    if (!read_number(text, value) || !std::isfinite(value) || value < min || value > max) {
      return invalid_argument("not a number in range; give one from " + number_text(min) + " to " +
                              number_text(max));
    }
    target = value;
    return {};
  });
}

OptionSetter string_value(std::string& target) {
  return text_value([&target](std::string_view text) -> Status {
    target = text;
    return {};
  });
}

OptionSetter strings_value(std::vector<std::string>& target) {
  return [&target](std::span<const std::string_view> values) -> Status {
    target.assign(values.begin(), values.end());
    return {};
  };
}

OptionSetter switch_value(bool& target) {
  return choice_value(target, std::vector<std::pair<std::string_view, bool>>{
                                  {"true", true}, {"false", false}, {"1", true}, {"0", false}});
}

OptionSetter noting(bool& given, OptionSetter set) {
  return [&given, set = std::move(set)](std::span<const std::string_view> values) -> Status {
    NIBBLE_RETURN_IF_ERROR(set(values));
    given = true;
    return {};
  };
}

Result<std::size_t> choose(std::string_view text, std::span<const std::string_view> words) {
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == text) return i;
    list += i == 0 ? "" : i + 1 == words.size() ? " or " : ", ";
    list += words[i];
  }
  return invalid_argument("not one of its values; give " + list);
}

std::string_view nearest_name(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    // Levenshtein distance, a row of the table at a time; more than this many bytes are no name of ours.
    if (word.size() > 64) break;
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t swapped = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({swapped, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

bool is_service_variable(std::string_view variable, std::string_view value) {
  std::string_view name = variable;
  if (!take(name, kPrefix)) return false;
  if (name == "SERVICE_HOST" || name == "SERVICE_PORT" || name.starts_with("SERVICE_PORT_")) return true;
  if ((name == "PORT" || name.ends_with("_PORT")) &&
      (value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://")))
    return true;
  if (!take(name, "PORT_")) return false;
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  if (digits == 0) return false;
  name.remove_prefix(digits);
  if (!take(name, "_TCP") && !take(name, "_UDP") && !take(name, "_SCTP")) return false;
  return name.empty() || name == "_PROTO" || name == "_PORT" || name == "_ADDR";
}

Status apply_environment(const Environment& environment, std::span<const OptionSpec> options,
                         std::span<const OptionSpec> known, std::vector<std::string>& warnings) {
  for (const auto& [variable, value] : environment) {
    if (!variable.starts_with(kPrefix) || is_service_variable(variable, value)) continue;
    const auto is_named = [&name = variable](const OptionSpec& option) { return option.variable() == name; };
    if (const auto option = std::ranges::find_if(options, is_named); option != options.end()) {
      const std::string_view values[] = {value};
      NIBBLE_RETURN_IF_ERROR(option->set(values).with_context(variable + " " + quote(value)));
    } else if (std::ranges::none_of(known, is_named)) {
      warnings.push_back(unknown_variable(variable, known));
    }
  }
  return {};
}

std::vector<OptionSpec> engine_option_specs(EngineOptions& options) {
  EngineOptions::Given& given = options.given;
  const auto read_device = [&options](std::string_view text) -> Status {
    if (text.starts_with("cuda:")) {
      return invalid_argument("choosing among GPUs is not built yet; give auto, cpu or cuda");
    }
    constexpr std::string_view words[] = {"auto", "cpu", "cuda"};
    NIBBLE_ASSIGN(const std::size_t chosen, choose(text, words));
    options.device = static_cast<Device>(chosen);
    return {};
  };
  const std::vector<std::pair<std::string_view, FloatType>> float_types = {
      {"auto", FloatType::automatic}, {"float32", FloatType::float32}, {"bfloat16", FloatType::bfloat16}};
  std::vector<std::pair<std::string_view, FloatType>> activation_types = float_types, kv_types = float_types;
  activation_types.push_back({"int8", FloatType::int8});
  activation_types.push_back({"fp8", FloatType::fp8_e4m3});
  kv_types.push_back({"fp8", FloatType::fp8_e4m3});
  std::vector<OptionSpec> specs{
      {.name = "--device",
       .value = "NAME",
       .help = "where to run: auto, cpu or cuda",
       .default_text = "auto",
       .set = noting(given.device, text_value(read_device))},
      {.name = "--threads",
       .aliases = {"-t"},
       .value = "N",
       .help = "CPU threads; 0: all CPUs this process may use",
       .default_text = std::to_string(options.threads),
       .set = noting(given.threads, int_value(options.threads, 0, 1024))},
      {.name = "--max-model-len",
       .aliases = {"--context-length", "-c"},
       .value = "N",
       .help = "longest sequence; 0: the model's",
       .default_text = std::to_string(options.max_model_len),
       .set = noting(given.max_model_len, int_value(options.max_model_len, 0, 1 << 24))},
      {.name = "--max-num-seqs",
       .aliases = {"--max-running-requests", "-np"},
       .value = "N",
       .help = "sequences in one step",
       .default_text = std::to_string(options.max_num_seqs),
       .set = noting(given.max_num_seqs, int_value(options.max_num_seqs, 1, 4096))},
      {.name = "--max-num-batched-tokens",
       .aliases = {"--chunked-prefill-size"},
       .value = "N",
       .help = "tokens in one step",
       .default_text = std::to_string(options.max_num_batched_tokens),
       .set = noting(given.max_num_batched_tokens, int_value(options.max_num_batched_tokens, 1, 1 << 20))},
      {.name = "--dtype",
       .value = "TYPE",
       .help = "activations: auto (model's), float32, bfloat16, int8, fp8",
       .default_text = "auto",
       .set = noting(given.dtype, choice_value<FloatType>(options.dtype, activation_types))},
      {.name = "--kv-cache-dtype",
       .value = "TYPE",
       .help = "keys, values: auto (as --dtype), float32, bfloat16, fp8",
       .default_text = "auto",
       .set = noting(given.kv_cache_dtype, choice_value<FloatType>(options.kv_cache_dtype, kv_types))},
      {.name = "--quantization",
       .value = "NAME",
       .help = "dense weights, at load: none (as stored), q8, mxfp4",
       .default_text = "none",
       .set = noting(given.quantization,
                     choice_value<Quantization>(options.quantization, {{"none", Quantization::none},
                                                                       {"q8", Quantization::q8},
                                                                       {"mxfp4", Quantization::mxfp4}}))},
      {.name = "--moe-runner-backend",
       .aliases = {"--moe-runner"},
       .value = "NAME",
       .help = "kernels: auto, cpu_amx, cpu_avx512, ...",
       .default_text = options.moe_runner_backend,
       .set = noting(given.moe_runner_backend, string_value(options.moe_runner_backend))},
      {.name = "--attention-backend",
       .value = "NAME",
       .help = "of attention: auto, cpu_avx512, cpu_avx2, cpu_scalar",
       .default_text = options.attention_backend,
       .set = noting(given.attention_backend, string_value(options.attention_backend))},
      {.name = "--kv-cache-tokens",
       .aliases = {"--max-total-tokens"},
       .value = "N",
       .help = "size of the KV cache; 0: what fits",
       .default_text = std::to_string(options.kv_cache_tokens),
       .set = noting(given.kv_cache_tokens, int_value(options.kv_cache_tokens, 0, 1 << 30))},
      {.name = "--no-prefix-cache",
       .aliases = {"--no-enable-prefix-caching", "--disable-radix-cache"},
       .help = "no reuse",
       .set = noting(given.no_prefix_cache, switch_value(options.no_prefix_cache))},
      {.name = "--state-snapshots",
       .aliases = {"--max-mamba-cache-size"},
       .value = "N",
       .help = "kept states, where layers have one",
       .set = noting(given.state_snapshots, int_value(options.state_snapshots, 0, 1 << 20))},
      {.name = "--snapshot-interval",
       .aliases = {"--mamba-track-interval"},
       .value = "N",
       .help = "tokens between kept states",
       .default_text = std::to_string(options.snapshot_interval),
       .set = noting(given.snapshot_interval, int_value(options.snapshot_interval, 1, 1 << 24))},
      {.name = "--speculative-algorithm",
       .aliases = {"--spec-type"},
       .value = "NAME",
       .help = "drafts of next tokens: auto, none, forced, ngram",
       .default_text = options.speculative_algorithm,
       .set = noting(given.speculative_algorithm, string_value(options.speculative_algorithm))},
      {.name = "--speculative-num-draft-tokens",
       .aliases = {"--draft-max", "--draft"},
       .value = "N",
       .help = "of them that a step checks",
       .set = noting(given.draft_tokens, int_value(options.draft_tokens, 1, 64))},
      {.name = "--tp",
       .aliases = {"--tensor-parallel-size", "--tp-size"},
       .value = "N",
       .help = "ranks; 0: the fewest",
       .default_text = "0",
       .set = noting(given.tensor_parallel, int_value(options.tensor_parallel, 0, 1024))},
      {.name = "--ep",
       .aliases = {"--expert-parallel-size", "--ep-size"},
       .value = "N",
       .help = "ranks for experts",
       .default_text = "1",
       .set = noting(given.expert_parallel, int_value(options.expert_parallel, 0, 1024))},
      {.name = "--dp",
       .aliases = {"--data-parallel-size", "--dp-size"},
       .value = "N",
       .help = "owners of sequences",
       .default_text = "1",
       .set = noting(given.data_parallel, int_value(options.data_parallel, 0, 1024))},
      {.name = "--dp-attention",
       .aliases = {"--enable-dp-attention"},
       .help = "each rank has sequences of its own",
       .set = noting(given.dp_attention, switch_value(options.dp_attention))},
      {.name = "--moe-a2a-backend",
       .value = "NAME",
       .help = "token exchange of spread experts: none, normal, low_latency",
       .default_text = options.moe_a2a_backend,
       .set = noting(given.moe_a2a_backend, string_value(options.moe_a2a_backend))},
      {.name = "--all-reduce",
       .value = "NAME",
       .help = "how ranks get each other's sums: auto, gather, nccl",
       .default_text = options.all_reduce,
       .set = noting(given.all_reduce, string_value(options.all_reduce))},
      {.name = "--nnodes",
       .value = "N",
       .help = "processes that share the ranks; mpirun says it too",
       .default_text = "1",
       .set = noting(given.processes, int_value(options.processes, 1, 8))},
      {.name = "--node-rank",
       .value = "N",
       .help = "which of them this is; 0 has the requests",
       .default_text = "0",
       .set = noting(given.process, int_value(options.process, 0, 7))},
      {.name = "--dist-init-addr",
       .value = "HOST:PORT",
       .help = "where the first of them listens to the others",
       .set = noting(given.first_process, string_value(options.first_process))},
      {.name = "--dist-key-file",
       .value = "FILE",
       .help = "what they show each other, at least 16 bytes",
       .set = noting(given.process_key_file, string_value(options.process_key_file))},
      {.name = "--tuning-table",
       .value = "FILE",
       .help = "choices that nibble tune has measured on such a machine",
       .set = noting(given.tuning_table, string_value(options.tuning_table))},
      {.name = "--gpu-memory-utilization",
       .aliases = {"--mem-fraction-static"},
       .value = "SHARE",
       .help = "of the device's memory, to be taken",
       .set = noting(given.memory_utilization, float_value(options.memory_utilization, 0.01f, 1.0f))},
      {.name = "--enforce-eager",
       .aliases = {"--disable-cuda-graph"},
       .help = "no CUDA graphs",
       .set = noting(given.enforce_eager, switch_value(options.enforce_eager))},
      {.name = "--random-weights",
       .value = "SEED",
       .help = "on a GPU: weights out of a seed; MODEL needs a config.json alone",
       .set = noting(given.random_weights, uint64_value(options.random_weights))},
      {.name = "--override-gates",
       .value = "NAME,...",
       .help = "use libraries that a gate refuses; /health says degraded",
       .set = noting(given.override_gates, string_value(options.override_gates))},
      {.name = "--seed",
       .value = "N",
       .help = "of every random choice",
       .default_text = std::to_string(options.seed),
       .set = noting(given.seed, uint64_value(options.seed))},
  };
  constexpr std::string_view of_the_plan[] = {"--state-snapshots",
                                              "--snapshot-interval",
                                              "--tp",
                                              "--ep",
                                              "--dp",
                                              "--dp-attention",
                                              "--moe-a2a-backend",
                                              "--all-reduce",
                                              "--nnodes",
                                              "--node-rank",
                                              "--dist-init-addr",
                                              "--dist-key-file",
                                              "--tuning-table",
                                              "--gpu-memory-utilization",
                                              "--enforce-eager",
                                              "--override-gates"};
  for (OptionSpec& spec : specs) {
    spec.group = "Engine options";
    if (std::ranges::count(of_the_plan, spec.name) != 0) spec.explained_by = "plan";
    if (spec.name == "--random-weights" || spec.name.starts_with("--speculative-"))
      spec.explained_by = "bench";
  }
  return specs;
}

}  // namespace nibble
