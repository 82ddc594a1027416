// What the tests of a GPU's worker share: workers on a checkpoint, sequences on their way through one, and
// what they must have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "models/cuda/decoder_cuda.h"
#include "models/model.h"
#include "ops/cuda/device_test_util.h"
#include "plan/memory.h"
#include "runtime/cpu_worker.h"
#include "runtime/cuda/gpu_sampler.h"
#include "runtime/cuda/gpu_worker.h"
#include "runtime/cuda/weight_upload.h"

namespace nibble {

inline const std::filesystem::path root = NIBBLE_SOURCE_DIR;
inline const std::filesystem::path example = root / "tests/data/parity/example";
inline constexpr int page_size = 64;

struct Size {
  int rows, sequences, positions, pages;
};
inline constexpr Size small_size{160, 12, 512, 24};

inline WorkerLimits limits_of(const ModelConfig& config, bool graphs, const Size& size = small_size,
                              DType kv_dtype = DType::bf16) {
  return {.threads = 1,
          .max_rows = size.rows,
          .max_logit_rows = size.rows,
          .max_sequences = size.sequences,
          .max_snapshots = 2,
          .max_positions = size.positions,
          .activations = InputValues::bf16,
          .kv_dtype = kv_dtype,
          .page_size = page_size,
          .page_counts = {size.pages, page_window(config) > 0 ? size.pages : 0},
          .dots = choose_dot_kernels("auto").value().kernels,
          .attention = choose_attention_kernels("auto").value().kernels,
          .graphs = graphs};
}

// Steps of 8,192 rows and 128 sequences, on an H100 or H200.
inline void expect_a_step_to_take_what_is_planned(const ModelConfig& config, const ModelTraits& traits,
                                                  int positions) {
  constexpr int processors = 132, rows = 8192, sequences = 128;
  DeviceArena arena;
  CudaPlace alone{.part = whole_model(config)};
  DecoderCudaBlocks::lay_out(config, {.rows = rows, .logit_rows = sequences, .sequences = sequences}, alone,
                             processors, arena);
  WorkerLimits limits = limits_of(config, true, {rows, sequences, positions, 0});
  limits.max_logit_rows = sequences;
  const std::size_t taken =
      arena.used() + GpuSampler::device_bytes(limits, static_cast<int>(config.vocab_size));
  const double planned = static_cast<double>(workspace_bytes(traits, {.rows = rows,
                                                                      .logit_rows = sequences,
                                                                      .sequences = sequences,
                                                                      .positions = limits.max_positions,
                                                                      .on_gpu = true}));
  EXPECT_NEAR(planned / static_cast<double>(taken), 1.0, 0.01);
}

inline ModelConfig example_config() { return read_model_config(example).value(); }

template <class T>
T must(Result<T> result) {
  NIBBLE_CHECK(result.ok(), result.ok() ? "" : result.status().message());
  return std::move(result).value();
}

inline std::unique_ptr<Worker> gpu_worker_of(const std::filesystem::path& folder,
                                             const WorkerLimits& limits) {
  const WeightSource source = must(WeightSource::open(folder));
  ThreadPool threads(2);
  WeightUpload upload = must(WeightUpload::begin(source, threads));
  return must(GpuWorker::start(must(read_model_config(folder)), upload, limits));
}

inline std::unique_ptr<Worker> gpu_worker(bool graphs, const std::filesystem::path& folder = example,
                                          DType kv_dtype = DType::bf16,
                                          InputValues activations = InputValues::bf16) {
  WorkerLimits limits = limits_of(must(read_model_config(folder)), graphs, small_size, kv_dtype);
  limits.activations = activations;
  return gpu_worker_of(folder, limits);
}

inline std::unique_ptr<Worker> cpu_worker(const std::filesystem::path& folder = example,
                                          DType kv_dtype = DType::bf16,
                                          InputValues activations = InputValues::bf16) {
  const ModelConfig config = must(read_model_config(folder));
  std::unique_ptr<Model> model = must(bind_model(config, must(WeightSource::open(folder))));
  WorkerLimits limits = limits_of(config, false, small_size, kv_dtype);
  limits.activations = activations;
  return must(CpuWorker::start(std::move(model), limits, {}));
}

inline std::vector<TokenId> random_prompt(unsigned seed, std::size_t length, unsigned vocabulary = 448) {
  std::mt19937 random(seed);
  std::vector<TokenId> prompt(length);
  for (TokenId& id : prompt) id = static_cast<TokenId>(random() % vocabulary);
  return prompt;
}

// What a sequence gave: the log-probability of each token of its prompt, then its answer's.
struct Heard {
  std::vector<float> prompt_logprobs;
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<TokenLogprob> top;
  bool operator==(const Heard& other) const {
    return prompt_logprobs == other.prompt_logprobs && tokens == other.tokens && logprobs == other.logprobs;
  }
};

// A sequence on its way through a worker, with pages of its own.
struct Sequence {
  std::vector<TokenId> tokens;
  std::size_t prompt = 0, chunk = 0;  // tokens of the prompt, all and in one step
  SamplingParams sampling;
  std::vector<PageId> table;
  bool scores = true;           // whether the prompt's log-probabilities are asked for
  int owner = 0;                // where ranks have sequences of their own
  std::vector<TokenId> drafts;  // of what comes next, in the next step that only decodes it
  int state = -1;               // its slot; -1: that of its place, which is then the same in all steps

  std::size_t done = 0;
  Heard heard;
  std::vector<float> target_logprobs{std::vector<float>(2048)};
  std::vector<TokenLogprob> top;
  std::vector<int> target_ranks;         // [2048] where they are wanted
  std::vector<TokenLogprob> target_top;  // [2048][prompt_top_logprobs], likewise
  std::vector<TokenLogprob> behind_drafts{std::vector<TokenLogprob>(16)};
};

inline Sequence sequence_of(std::vector<TokenId> prompt, std::size_t chunk, std::vector<PageId> table,
                            SamplingParams sampling = {.temperature = 0}) {
  const std::size_t length = prompt.size();
  return {.tokens = std::move(prompt),
          .prompt = length,
          .chunk = chunk,
          .sampling = std::move(sampling),
          .table = std::move(table)};
}

// One step over all sequences: decode rows and chunks of prompts, mixed or of prompts alone.
inline Batch batch_of(const std::vector<Sequence*>& sequences) {
  Batch batch;
  batch.of_prompts = true;
  for (Sequence* sequence : sequences) {
    const std::size_t left = sequence->tokens.size() - sequence->done;
    const bool prefill = sequence->done < sequence->prompt;
    batch.of_prompts = batch.of_prompts && prefill;
    const std::size_t known = prefill ? std::min(left, sequence->chunk) : 1,
                      drafts = prefill ? 0 : sequence->drafts.size(), rows = known + drafts;
    BatchSequence planned{
        .owner = sequence->owner,
        .row_begin = static_cast<int>(batch.tokens.size()),
        .row_count = static_cast<int>(rows),
        .draft_count = static_cast<int>(drafts),
        .first_position = static_cast<int>(sequence->done),
        .pages = {sequence->table, sequence->table},
        .state = sequence->state >= 0 ? sequence->state : static_cast<int>(batch.sequences.size()),
        .sampling = &sequence->sampling,
        .prompt = std::span(sequence->tokens).first(sequence->prompt),
        .answer = std::span(sequence->tokens).subspan(sequence->prompt),
        .top = sequence->top,
        .behind_drafts = std::span(sequence->behind_drafts).first(drafts),
        .target_logprobs = sequence->target_logprobs,
        .target_ranks = sequence->target_ranks,
        .target_top = sequence->target_top,
        .logit_begin = static_cast<int>(batch.logit_rows.size()),
        .prefill = prefill,
        .samples = sequence->done + known == sequence->tokens.size()};
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t position = sequence->done + i;
      const int row = static_cast<int>(batch.tokens.size());
      batch.tokens.push_back(i < known ? sequence->tokens[position] : sequence->drafts[i - known]);
      const bool has_target = sequence->scores && position + 1 < sequence->prompt;
      const bool sampled = planned.samples && i + 1 >= known;
      if (has_target || sampled) {
        batch.logit_rows.push_back(
            {.row = row, .target = has_target ? sequence->tokens[position + 1] : TokenId{-1}});
        ++planned.logit_count;
      }
    }
    batch.sequences.push_back(planned);
  }
  return batch;
}

inline void step(Worker& worker, const std::vector<Sequence*>& sequences) {
  const Batch batch = batch_of(sequences);
  std::vector<StepResult> results(sequences.size());
  const Status status = worker.run(batch, results);
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    const BatchSequence& planned = batch.sequences[i];
    const int scored = planned.logit_count - (planned.samples ? 1 + planned.draft_count : 0);
    for (int j = 0; j < scored; ++j)
      sequence.heard.prompt_logprobs.push_back(sequence.target_logprobs[static_cast<std::size_t>(j)]);
    sequence.done += static_cast<std::size_t>(planned.row_count - planned.draft_count + results[i].accepted);
    ASSERT_TRUE(results[i].finite);
    if (!planned.samples) continue;
    std::vector<TokenLogprob> chosen = {{results[i].token, results[i].logprob}};
    chosen.insert(chosen.end(), planned.behind_drafts.begin(),
                  planned.behind_drafts.begin() + results[i].accepted);
    for (const TokenLogprob& each : chosen) {
      sequence.tokens.push_back(each.id);
      sequence.heard.tokens.push_back(each.id);
      sequence.heard.logprobs.push_back(each.logprob);
    }
    sequence.heard.top = sequence.top;
  }
}

inline Heard run_alone(Worker& worker, Sequence sequence, std::size_t answer) {
  while (sequence.heard.tokens.size() < answer) step(worker, {&sequence});
  return sequence.heard;
}

// How far log-probabilities may be apart.
struct Apart {
  double most, mean;
  bool same_answer = false;  // whether all of the answer's tokens must be the same, not its first alone
};

inline void expect_the_cpus_answer(const std::filesystem::path& folder, DType kv_dtype,
                                   const Apart& allowed) {
  const std::unique_ptr<Worker> gpu = gpu_worker(false, folder, kv_dtype), cpu = cpu_worker(folder, kv_dtype);
  const std::vector<TokenId> prompt = random_prompt(1, 90);
  const Heard found = run_alone(*gpu, sequence_of(prompt, 64, {3, 7}), 6);
  const Heard expected = run_alone(*cpu, sequence_of(prompt, 64, {3, 7}), 6);
  ASSERT_EQ(found.prompt_logprobs.size(), 89u);
  double most = 0, sum = 0;
  for (std::size_t i = 0; i < 89; ++i) {
    const double apart = std::fabs(double{found.prompt_logprobs[i]} - double{expected.prompt_logprobs[i]});
    most = std::max(most, apart);
    sum += apart;
  }
  EXPECT_LT(most, allowed.most);
  EXPECT_LT(sum / 89, allowed.mean);
  EXPECT_EQ(found.tokens[0], expected.tokens[0]);
  if (allowed.same_answer) {
    EXPECT_EQ(found.tokens, expected.tokens);
  }
}

inline void expect_the_same_bits_in_chunks_in_company_and_in_graphs(const std::filesystem::path& folder,
                                                                    DType kv_dtype) {
  const std::unique_ptr<Worker> eager = gpu_worker(false, folder, kv_dtype),
                                graphs = gpu_worker(true, folder, kv_dtype);
  const std::size_t length = small_cases ? 66 : 150;  // in two pages, or three
  const std::vector<TokenId> prompt = random_prompt(2, length);
  const SamplingParams drawn{.temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .seed = 5};
  const Heard alone = run_alone(*eager, sequence_of(prompt, length, {0, 1, 2}, drawn), 5);
  ASSERT_EQ(alone.prompt_logprobs.size(), length - 1);
  for (Worker* worker : {eager.get(), graphs.get()}) {
    for (const std::size_t chunk : {1, 16, 64, 33}) {
      if (small_cases && (chunk < 64 || kv_dtype != DType::bf16) && worker == eager.get()) continue;
      if (small_cases && chunk == 1) continue;
      EXPECT_TRUE(run_alone(*worker, sequence_of(prompt, chunk, {5, 2, 3}, drawn), 5) == alone) << chunk;
    }
    // Among others: prompts of other lengths, some of them decoding already.
    std::vector<Sequence> company;
    for (int i = 0; i < 4; ++i) {
      company.push_back(
          sequence_of(random_prompt(10 + static_cast<unsigned>(i), 3 + 9 * static_cast<std::size_t>(i)), 20,
                      {6 + 2 * i, 7 + 2 * i}));
      company.back().scores = false;
    }
    Sequence own = sequence_of(prompt, 25, {20, 21, 22}, drawn);
    while (own.heard.tokens.size() < 5)
      step(*worker, {&company[0], &company[1], &own, &company[2], &company[3]});
    EXPECT_TRUE(own.heard == alone);
  }
}

}  // namespace nibble
