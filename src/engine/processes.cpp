#include "engine/processes.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/sip_hash.h"
#include "runtime/gpu.h"

namespace nibble {
namespace {

std::optional<int> number_in(const Variables& variables, const char* name) {
  const char* const text = variables(name);
  if (text == nullptr) return {};
  int number = 0;
  const char* const end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, number);
  if (error != std::errc() || at != end) return {};
  return number;
}

// Open MPI's names, and those of launchers that follow MPICH.
struct Launched {
  int count = 1, index = 0, here = 1;
};
std::optional<Launched> launched_by(const Variables& variables) {
  constexpr const char* names[][3] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"}};
  for (const auto& [size, rank, local] : names) {
    const std::optional<int> count = number_in(variables, size), index = number_in(variables, rank);
    if (!count || !index || *count < 2) continue;
    return Launched{
        .count = *count, .index = *index, .here = std::max(number_in(variables, local).value_or(1), 1)};
  }
  return {};
}

// Of the checkpoint as it lies in the folder: its config, and the sizes of its weights.
Result<std::string> checkpoint_text(const std::filesystem::path& folder) {
  constexpr std::size_t most = std::size_t{16} << 20;
  NIBBLE_ASSIGN(std::string text, read_file(folder / "config.json", most));
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    files.push_back(entry.path().filename().string() + " " +
                    std::to_string(std::filesystem::file_size(entry.path(), error)));
  }
  std::ranges::sort(files);
  for (const std::string& each : files) text += "\n" + each;
  SipHash hash(HashKey{});  // nobody here makes texts of the same code on purpose
  hash.add_text(text);
  const KeyedHash code = hash.finish();
  return std::to_string(code.high ^ code.low);
}

Result<MeetingTerms> terms_of(const EngineOptions& options, const std::filesystem::path& folder,
                              const EngineChoices& choices) {
  NIBBLE_ASSIGN(const std::string checkpoint, checkpoint_text(folder));
  MeetingTerms terms;
  terms.same.emplace_back("nibble's version", options.version);
  terms.same.emplace_back("the checkpoint", checkpoint);
  const bool on_gpu = choices.plan.device == DeviceKind::cuda;
  for (const Choice& each : choices.plan.choices) {
    // GPUs wait for each other's launches, which therefore have to be the same.
    constexpr std::string_view of_gpus[] = {"cuda_graphs",  "expert_copies",  "moe_runner",
                                            "attention",    "token_exchange", "linear_attention",
                                            "draft_tokens", "all_reduce",     "many_tokens_from"};
    if (on_gpu && std::ranges::count(of_gpus, each.field) != 0)
      terms.same.emplace_back(each.field, each.value);
    constexpr std::string_view compared[] = {"tp",
                                             "ep",
                                             "dp",
                                             "dtype",
                                             "quantization",
                                             "kv_cache_dtype",
                                             "max_num_batched_tokens",
                                             "max_num_seqs",
                                             "snapshot_interval",
                                             "tuning_table"};
    if (std::ranges::count(compared, each.field) != 0) terms.same.emplace_back(each.field, each.value);
  }
  const WorkerLimits& worker = choices.worker;
  terms.same.emplace_back("tokens a page", std::to_string(worker.page_size));
  terms.same.emplace_back("the exchange", std::to_string(static_cast<int>(worker.exchange)));
  if (on_gpu) {
    terms.same.emplace_back("random weights", std::to_string(options.random_weights));
    const std::string host = boot_id();
    if (host.empty())
      return io_error(
          "processes with GPUs have to know their host, and /proc/sys/kernel/random/boot_id says "
          "nothing; run one process");
    terms.devices = gpu_addresses(worker.device, choices.plan.tensor_parallel / options.processes);
    if (worker.by_nccl) {
      for (const GateResult& gate : choices.plan.gates) {
        if (gate.name == "nccl") terms.same.emplace_back("NCCL", gate.found);
      }
      for (std::string& each : terms.devices) each += " of host " + host;
    } else {
      terms.host = host;
    }
  }
  terms.least = {worker.max_positions, worker.max_logit_rows, worker.page_counts[full_pages],
                 worker.page_counts[window_pages], worker.max_snapshots};
  return terms;
}

void take_least(const std::vector<std::int64_t>& least, EngineChoices& choices) {
  WorkerLimits& worker = choices.worker;
  worker.max_positions = choices.scheduler.max_model_len = static_cast<int>(least[0]);
  worker.max_logit_rows = choices.scheduler.max_logit_rows = static_cast<int>(least[1]);
  worker.page_counts = {static_cast<int>(least[2]), static_cast<int>(least[3])};
  choices.cache.page_count = worker.page_counts;
  worker.max_snapshots = choices.cache.snapshots = static_cast<int>(least[4]);
}

}  // namespace

Result<EngineOptions> with_processes(EngineOptions options, const Variables& variables) {
  const std::optional<Launched> launched = launched_by(variables);
  if (launched) {
    if ((options.given.processes && options.processes != launched->count) ||
        (options.given.process && options.process != launched->index))
      return invalid_argument("mpirun started this as process " + std::to_string(launched->index) + " of " +
                              std::to_string(launched->count) +
                              "; leave out --nnodes and --node-rank, or start it without mpirun");
    options.processes = launched->count;
    options.process = launched->index;
    options.processes_here = std::min(launched->here, launched->count);
  }
  options.processes = std::max(options.processes, 1);
  if (options.processes == 1) {
    for (const auto& [given, name] : {std::pair(options.given.process && options.process > 0, "--node-rank"),
                                      std::pair(options.given.first_process, "--dist-init-addr"),
                                      std::pair(options.given.process_key_file, "--dist-key-file")}) {
      if (given) return invalid_argument(std::string(name) + " is for several processes; give --nnodes too");
    }
    return options;
  }
  if (options.process >= options.processes)
    return invalid_argument("--node-rank " + std::to_string(options.process) + " is none of " +
                            std::to_string(options.processes) + " processes; it goes from 0 to " +
                            std::to_string(options.processes - 1));
  if (options.first_process.empty())
    return invalid_argument(std::to_string(options.processes) +
                            " processes need a place to meet; give all the same --dist-init-addr HOST:PORT, "
                            "an address of the machine of process 0");
  return options;
}

Result<std::unique_ptr<ProcessLinks>> join_processes(const EngineOptions& options,
                                                     const std::filesystem::path& folder,
                                                     EngineChoices& choices) {
  if (options.processes < 2) return std::unique_ptr<ProcessLinks>();
  Meeting meeting{.place = {.index = options.process, .count = options.processes}, .first = {}, .key = {}};
  NIBBLE_ASSIGN(meeting.first, LinkAddress::parse(options.first_process));
  if (!options.process_key_file.empty()) {
    NIBBLE_ASSIGN(meeting.key, LinkKey::from_file(options.process_key_file));
  } else if (!meeting.first.is_loopback()) {
    return invalid_argument("others may reach " + meeting.first.text() +
                            ", so the processes have to show each other a key; give all the same "
                            "--dist-key-file FILE (openssl rand -hex 32 makes one)");
  }
  NIBBLE_ASSIGN(const MeetingTerms terms, terms_of(options, folder, choices));
  NIBBLE_ASSIGN(MetProcesses met, meet(meeting, terms));
  const bool smaller = met.least != terms.least;
  take_least(met.least, choices);
  for (Choice& each : choices.plan.choices) {
    if (each.field != "processes") continue;
    each.why = "this is " + std::to_string(options.process) + ", with " +
               std::to_string(choices.plan.tensor_parallel / options.processes) + " of the ranks";
    if (smaller)
      each.why += "; " + grouped(choices.cache.page_count[full_pages]) +
                  " pages of keys and values are what the one with least room has";
  }
  return std::make_unique<ProcessLinks>(meeting.place, choices.plan.tensor_parallel, std::move(met));
}

}  // namespace nibble
