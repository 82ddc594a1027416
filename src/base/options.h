// Options as data: a row an option, read alike from the command line (app/cli.h) and from its twin in the
// environment, NIBBLE_<NAME>. A malformed value is an error that names it. An unknown NIBBLE_ variable has no
// effect and is warned of; the variables that Kubernetes sets for a Service named nibble are passed over.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace nibble {

// Takes all values given for one option at one place, at least one; what was set before is replaced.
using OptionSetter = std::function<Status(std::span<const std::string_view> values)>;

// The views are literals; the setter's target outlives the row.
struct OptionSpec {
  std::string_view name;                  // "--max-model-len"
  std::vector<std::string_view> aliases;  // "--context-length", "-c"
  std::string_view value;                 // the value's name in the help; empty: a switch, which takes none
  std::string_view help;
  std::string default_text;  // empty: nothing worth showing
  OptionSetter set;
  std::string_view group = "Options";  // its heading in the help
  // The command whose help says what it does; that of the others has it by name alone. Empty: all say it.
  std::string_view explained_by;

  bool is_switch() const { return value.empty(); }
  std::string variable() const;  // "NIBBLE_MAX_MODEL_LEN"
};

// Setters. Of several values the last one counts, except for strings_value, which keeps them all.
OptionSetter int_value(int& target, int min, int max);
OptionSetter uint64_value(std::uint64_t& target);
OptionSetter float_value(float& target, float min, float max);
OptionSetter string_value(std::string& target);
OptionSetter strings_value(std::vector<std::string>& target);
OptionSetter switch_value(bool& target);
// `read` says what is wrong with a text and what would work: "not a colour; give red or blue".
OptionSetter text_value(std::function<Status(std::string_view text)> read);
// The setter, which also notes that a value was given.
OptionSetter noting(bool& given, OptionSetter set);

// Position of `text` in `words`, or an error that lists them.
Result<std::size_t> choose(std::string_view text, std::span<const std::string_view> words);

// One of the named values.
template <class T>
OptionSetter choice_value(T& target, std::vector<std::pair<std::string_view, T>> choices) {
  return text_value([&target, choices = std::move(choices)](std::string_view text) -> Status {
    std::vector<std::string_view> words;
    for (const auto& choice : choices) words.push_back(choice.first);
    NIBBLE_ASSIGN(const std::size_t chosen, choose(text, words));
    target = choices[chosen].second;
    return {};
  });
}

// The candidate with the fewest edits from `word`; empty when none is near.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> candidates);

using Environment = std::vector<std::pair<std::string, std::string>>;
Environment process_environment();

// Whether Kubernetes (or Docker, for a link) sets such a variable for a Service named nibble:
// NIBBLE_SERVICE_HOST, NIBBLE_SERVICE_PORT and NIBBLE_SERVICE_PORT_<NAME>, NIBBLE_PORT_<number>_TCP and what
// begins so, and NIBBLE_PORT (or any name that ends in _PORT) where its value begins with tcp://, udp:// or
// sctp://.
bool is_service_variable(std::string_view variable, std::string_view value);

// Sets the options that have a variable. `known` are the options of every command: what is set for one
// command means nothing to another. A service's variables are passed over; any other NIBBLE_ variable is
// unknown, and `warnings` gets a sentence about it.
Status apply_environment(const Environment& environment, std::span<const OptionSpec> options,
                         std::span<const OptionSpec> known, std::vector<std::string>& warnings);

enum class Device : std::uint8_t { automatic, cpu, cuda };
enum class Quantization : std::uint8_t { none, q8, mxfp4 };
enum class FloatType : std::uint8_t { automatic, float32, bfloat16, fp8_e4m3, int8 };

// What every command that loads a model lets its user choose. A value the user set is honoured or refused,
// never changed; `given` tells such a value from a default.
struct EngineOptions {
  std::string model;  // a directory, a name in the Hugging Face cache, or "demo"
  Device device = Device::automatic;
  int threads = 0;                         // 0: all CPUs this process may use
  int max_model_len = 0;                   // tokens of prompt and answer together; 0: what the model allows
  int max_num_seqs = 16;                   // sequences in one step
  int max_num_batched_tokens = 512;        // prompt and answer tokens in one step
  FloatType dtype = FloatType::automatic;  // of the activations that enter a matrix product
  FloatType kv_cache_dtype = FloatType::automatic;
  Quantization quantization = Quantization::none;  // of dense weights in bf16, done at load
  // Names of kernels; those that are built in and run here are known when a model is loaded.
  std::string moe_runner_backend = "auto";
  std::string attention_backend = "auto";
  int kv_cache_tokens = 0;       // of all sequences together that the KV cache holds; 0: as many as fit
  bool no_prefix_cache = false;  // keys and values serve their own request alone
  int state_snapshots = 0;  // of models whose layers keep a state: snapshots of it; 0: what the plan chooses
  int snapshot_interval = 4096;  // positions from one to the next, beside those where prompts end and branch
  std::string speculative_algorithm = "auto";
  int draft_tokens = 0;  // of next tokens, that a step checks at most; 0: what the plan chooses
  std::string moe_a2a_backend = "auto";
  std::string all_reduce = "auto";
  int tensor_parallel = 0;       // ranks a layer is split over; 0: what the plan chooses
  int expert_parallel = 0;       // ranks the experts are spread over; 0: likewise
  int data_parallel = 0;         // ranks, or groups of them, with sequences of their own; 0: likewise
  bool dp_attention = false;     // as many as there are ranks, where data_parallel does not say
  int processes = 0;             // that share the ranks; 0: as mpirun says, else one
  int process = 0;               // which of them this is; the first has the requests
  int processes_here = 1;        // of them on this machine, where mpirun says so
  std::string first_process;     // where the first one listens to the others: host:port
  std::string process_key_file;  // what they show each other
  std::string version;           // of the program, which has to be the same in all of them
  std::string tuning_table;      // a file of nibble tune's; empty: none
  float memory_utilization = 0;  // share of the device's memory that may be taken; 0: what the plan chooses
  bool enforce_eager = false;    // no CUDA graphs
  std::uint64_t random_weights = 0;  // a seed, if given: weights are made of it, and no file is read
  std::string override_gates;        // names between commas: what needs them runs although they are not open
  std::uint64_t seed = 0;

  struct Given {
    bool device = false;
    bool threads = false;
    bool max_model_len = false;
    bool max_num_seqs = false;
    bool max_num_batched_tokens = false;
    bool dtype = false;
    bool kv_cache_dtype = false;
    bool quantization = false;
    bool moe_runner_backend = false;
    bool attention_backend = false;
    bool kv_cache_tokens = false;
    bool no_prefix_cache = false;
    bool state_snapshots = false;
    bool snapshot_interval = false;
    bool speculative_algorithm = false;
    bool draft_tokens = false;
    bool moe_a2a_backend = false;
    bool all_reduce = false;
    bool tensor_parallel = false;
    bool expert_parallel = false;
    bool data_parallel = false;
    bool dp_attention = false;
    bool processes = false;
    bool process = false;
    bool first_process = false;
    bool process_key_file = false;
    bool tuning_table = false;
    bool memory_utilization = false;
    bool enforce_eager = false;
    bool random_weights = false;
    bool override_gates = false;
    bool seed = false;
  };
  Given given;
};

// The rows that set `options`, which outlives them.
std::vector<OptionSpec> engine_option_specs(EngineOptions& options);

}  // namespace nibble
