#include "runtime/cuda/step_inputs.h"

#include <algorithm>

#include "base/check.h"
#include "runtime/row_sampler.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

constexpr std::size_t alignment = 16;

// Page i of a sequence holds positions [i * page_size, ..). Those before the first one that is still held are
// left out, and the table begins as many entries earlier.
std::size_t first_page_held(std::span<const PageId> pages) {
  return static_cast<std::size_t>(
      std::find_if(pages.begin(), pages.end(), [](PageId page) { return page >= 0; }) - pages.begin());
}

std::size_t pages_for(int positions, int page_size) {
  return static_cast<std::size_t>((positions + page_size - 1) / page_size);
}

SampleCudaParams device_params(const SampleParams& params) {
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .seed = params.seed,
          .choice = params.choice,
          .position = params.position};
}

}  // namespace

StepLayout::StepLayout(const StepShape& shape, bool states) {
  std::size_t at = 0;
  const auto part = [&at](int count, std::size_t size) {
    const std::size_t begin = at;
    at = (at + static_cast<std::size_t>(count) * size + alignment - 1) / alignment * alignment;
    return begin;
  };
  row_limit = part(1, sizeof(std::int32_t));
  tokens = part(shape.rows, sizeof(std::int32_t));
  positions = part(shape.rows, sizeof(std::int32_t));
  for (std::size_t& slots : kv_slots) slots = part(shape.rows, sizeof(std::int32_t));
  for (std::size_t& rows : sequence_rows) rows = part(shape.sequences, sizeof(SequenceCuda));
  wanted_rows = part(shape.logit_rows, sizeof(std::int32_t));
  targets = part(shape.logit_rows, sizeof(std::int32_t));
  params = part(shape.logit_rows, sizeof(SampleCudaParams));
  state_rows = part(states ? shape.sequences : 0, sizeof(StateRowsCuda));
  row_sequences = part(states ? shape.rows : 0, sizeof(std::int32_t));
  borders = part(states ? most_borders(shape) : 0, sizeof(BorderState));
  page_table = at;
}

Result<StepInputs> StepInputs::allocate(const WorkerLimits& limits, const CudaModel& model,
                                        const SampledToken* chosen) {
  StepInputs inputs;
  inputs.page_size_ = limits.page_size;
  inputs.heads_ = model.heads();
  inputs.states_ = model.keeps_states();
  inputs.chosen_ = chosen;
  inputs.sampled_rows_.resize(static_cast<std::size_t>(limits.max_decode_rows()));
  const StepLayout layout(
      {.rows = limits.max_rows, .sequences = limits.max_decode_rows(), .logit_rows = limits.max_logit_rows},
      inputs.states_);
  const std::size_t entries = static_cast<std::size_t>(limits.max_decode_rows()) * page_groups *
                              (pages_for(limits.max_positions, limits.page_size) + 1);
  const std::size_t bytes = layout.page_table + entries * sizeof(std::int32_t);
  for (PinnedBuffer& host : inputs.host_) {
    NIBBLE_ASSIGN(host, PinnedBuffer::allocate(bytes));
  }
  NIBBLE_ASSIGN(inputs.device_, DeviceBuffer::allocate(bytes));
  inputs.runs_.reserve(static_cast<std::size_t>(limits.max_decode_rows()));
  return inputs;
}

void StepInputs::fill(const Batch& batch, const StepShape& shape) {
  const StepLayout layout(shape, states_);
  const std::size_t rows = batch.tokens.size(), logit_rows = batch.logit_rows.size();
  const int sequences = static_cast<int>(shape.one_row_each ? rows : batch.sequences.size());
  NIBBLE_CHECK(rows <= static_cast<std::size_t>(shape.rows) && sequences <= shape.sequences &&
               logit_rows <= static_cast<std::size_t>(shape.logit_rows));
  newest_ = 1 - newest_;
  *host().at<std::int32_t>(layout.row_limit) = static_cast<std::int32_t>(rows);
  const auto padded = [](std::int32_t* part, std::size_t from, int to, std::int32_t value) {
    std::fill(part + from, part + to, value);
  };
  std::int32_t* const tokens = host().at<std::int32_t>(layout.tokens);
  fill_tokens(batch, tokens);
  padded(tokens, rows, shape.rows, 0);
  padded(host().at<std::int32_t>(layout.positions), rows, shape.rows, 0);
  for (const std::size_t slots : layout.kv_slots)
    padded(host().at<std::int32_t>(slots), rows, shape.rows, -1);

  page_entries_ = 0;
  runs_.clear();
  run_begin_ = run_splits_ = longest_ = 0;
  int filled = 0;
  for (const BatchSequence& sequence : batch.sequences) {
    const int count = shape.one_row_each ? sequence.row_count : 1;
    fill_sequence(sequence, filled, count, layout);
    filled += count;
  }
  for (const std::size_t part : layout.sequence_rows) {
    SequenceCuda* const all = host().at<SequenceCuda>(part);
    std::fill(all + sequences, all + shape.sequences, SequenceCuda{});
  }
  runs_.push_back(shape.sequences);
  if (states_) fill_states(batch, shape, layout);

  std::int32_t* const wanted = host().at<std::int32_t>(layout.wanted_rows);
  SampleCudaParams* const params = host().at<SampleCudaParams>(layout.params);
  std::int32_t* const targets = host().at<std::int32_t>(layout.targets);
  for (std::size_t i = 0; i < logit_rows; ++i) {
    wanted[i] = batch.logit_rows[i].row;
    targets[i] = batch.logit_rows[i].target;
  }
  padded(wanted, logit_rows, shape.logit_rows, 0);
  padded(targets, logit_rows, shape.logit_rows, -1);
  std::fill(params, params + shape.logit_rows, SampleCudaParams{.temperature = 0});
  for (const BatchSequence& sequence : batch.sequences) {
    for (int drafts = 0; sequence.samples && drafts <= sequence.draft_count; ++drafts)
      params[sequence.logit_row_behind(drafts)] = device_params(sample_params_of(sequence, drafts));
  }
  bytes_ = layout.page_table + page_entries_ * sizeof(std::int32_t);
  NIBBLE_CHECK(bytes_ <= host().size());
}

void StepInputs::fill_tokens(const Batch& batch, std::int32_t* tokens) {
  NIBBLE_CHECK(batch.sequences.size() <= sampled_rows_.size());
  std::copy(batch.tokens.begin(), batch.tokens.end(), tokens);
  for (const BatchSequence& sequence : batch.sequences) {
    if (sequence.awaits >= 0)
      tokens[sequence.row_begin] = -1 - sampled_rows_[static_cast<std::size_t>(sequence.awaits)];
  }
  for (std::size_t i = 0; i < batch.sequences.size(); ++i)
    sampled_rows_[i] = batch.sequences[i].logit_begin + batch.sequences[i].logit_count - 1;
}

void StepInputs::fill_sequence(const BatchSequence& sequence, int first, int count,
                               const StepLayout& layout) {
  std::int32_t* const positions = host().at<std::int32_t>(layout.positions);
  for (int i = 0; i < sequence.row_count; ++i)
    positions[sequence.row_begin + i] = sequence.first_position + i;
  const int past = sequence.first_position + sequence.row_count, rows_each = sequence.row_count / count;
  longest_ = std::max(longest_, past);
  for (std::size_t group = 0; group < page_groups; ++group) {
    const std::span<const PageId> pages = sequence.pages[group];
    SequenceCuda* const all = host().at<SequenceCuda>(layout.sequence_rows[group]) + first;
    const std::int32_t pages_at = pages.empty() ? 0 : fill_pages(pages, past, layout);
    for (int i = 0; i < count; ++i) {
      all[i] = {.row_begin = sequence.row_begin + i * rows_each,
                .row_count = rows_each,
                .first_position = sequence.first_position + i * rows_each,
                .pages_at = pages_at};
    }
    if (pages.empty()) continue;
    std::int32_t* const slots = host().at<std::int32_t>(layout.kv_slots[group]);
    for (int i = 0; i < sequence.row_count; ++i) {
      const int position = sequence.first_position + i;
      const PageId page = pages[static_cast<std::size_t>(position / page_size_)];
      slots[sequence.row_begin + i] = page < 0 ? -1 : page * page_size_ + position % page_size_;
    }
  }
  if (rows_each * heads_.a_key_head > attention_tile) return;
  for (int i = 0; i < count; ++i)
    add_run(first + i, attention_splits(sequence.first_position + (i + 1) * rows_each, heads_.dim));
}

// Puts the pages of positions before `past` into the table; returns where page 0 would be.
std::int32_t StepInputs::fill_pages(std::span<const PageId> pages, int past, const StepLayout& layout) {
  const std::size_t first = first_page_held(pages), end = pages_for(past, page_size_);
  NIBBLE_CHECK(first < end && end <= pages.size(), "a sequence's pages hold all of its rows");
  std::int32_t* const table = host().at<std::int32_t>(layout.page_table);
  std::copy(pages.begin() + static_cast<std::ptrdiff_t>(first),
            pages.begin() + static_cast<std::ptrdiff_t>(end), table + page_entries_);
  const std::int32_t at = static_cast<std::int32_t>(page_entries_) - static_cast<std::int32_t>(first);
  page_entries_ += end - first;
  return at;
}

void StepInputs::fill_states(const Batch& batch, const StepShape& shape, const StepLayout& layout) {
  StateRowsCuda* const rows = host().at<StateRowsCuda>(layout.state_rows);
  std::int32_t* const row_sequences = host().at<std::int32_t>(layout.row_sequences);
  BorderState* const borders = host().at<BorderState>(layout.borders);
  std::fill(rows, rows + shape.sequences, StateRowsCuda{});
  std::fill(row_sequences, row_sequences + shape.rows, -1);
  std::int32_t passed = 0;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const BatchSequence& sequence = batch.sequences[i];
    rows[i] = {.row_begin = sequence.row_begin,
               .row_count = sequence.row_count,
               .first_position = sequence.first_position,
               .slot = sequence.state,
               .borders_at = passed,
               .borders = static_cast<std::int32_t>(sequence.snapshots.size())};
    std::fill_n(row_sequences + sequence.row_begin, sequence.row_count, static_cast<std::int32_t>(i));
    for (const StateSnapshot& snapshot : sequence.snapshots) {
      NIBBLE_CHECK(passed < StepLayout::most_borders(shape), "snapshots are taken at borders that rows pass");
      borders[passed++] = {.position = snapshot.position, .slot = snapshot.slot};
    }
  }
}

// Sequence `index` has so many splits: it ends the run before it where that has no room for them.
void StepInputs::add_run(int index, int splits) {
  if (run_splits_ + splits > CudaModel::attention_splits_room ||
      index - run_begin_ == attention_max_sequences) {
    runs_.push_back(index);
    run_begin_ = index;
    run_splits_ = 0;
  }
  run_splits_ += splits;
}

void StepInputs::copy(cudaStream_t stream) {
  cuda_check(cudaMemcpyAsync(device_.data(), host().data(), bytes_, cudaMemcpyHostToDevice, stream));
}

CudaForwardInput StepInputs::forward_input(const StepShape& shape) const {
  const StepLayout layout(shape, states_);
  const auto part = [&](std::size_t offset) {
    return reinterpret_cast<const std::int32_t*>(device_.data() + offset);
  };
  CudaForwardInput input{.rows = shape.rows,
                         .sequences = shape.sequences,
                         .logit_rows = shape.logit_rows,
                         .most_rows = shape.most_rows,
                         .one_row_each = shape.one_row_each,
                         .of_prompts = shape.of_prompts,
                         .row_limit = part(layout.row_limit),
                         .tokens = part(layout.tokens),
                         .chosen = chosen_,
                         .positions = part(layout.positions),
                         .attention_runs = runs_,
                         .later_clusters = later_clusters(),
                         .settled = !shape.checks_drafts,
                         .page_table = part(layout.page_table),
                         .wanted_rows = shape.one_row_each ? nullptr : part(layout.wanted_rows)};
  if (states_) {
    input.states.of_sequence = reinterpret_cast<const StateRowsCuda*>(device_.data() + layout.state_rows);
    input.states.sequence_of_row = part(layout.row_sequences);
    input.states.borders = reinterpret_cast<const BorderState*>(device_.data() + layout.borders);
  }
  for (std::size_t group = 0; group < page_groups; ++group) {
    input.kv_slots[group] = part(layout.kv_slots[group]);
    input.sequence_rows[group] =
        reinterpret_cast<const SequenceCuda*>(device_.data() + layout.sequence_rows[group]);
  }
  return input;
}

const SampleCudaParams* StepInputs::params(const StepShape& shape) const {
  return reinterpret_cast<const SampleCudaParams*>(device_.data() + StepLayout(shape, states_).params);
}

const std::int32_t* StepInputs::targets(const StepShape& shape) const {
  return reinterpret_cast<const std::int32_t*>(device_.data() + StepLayout(shape, states_).targets);
}

}  // namespace nibble
