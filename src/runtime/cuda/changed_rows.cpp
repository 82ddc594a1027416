#include "runtime/cuda/changed_rows.h"

#include <algorithm>
#include <cstring>

#include "ops/sample/cuda/change_logits_cuda.h"
#include "plan/memory.h"
#include "runtime/row_sampler.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// More than this no list of these changes has.
std::size_t most_changes(const LogitChanges& changes, std::size_t vocabulary) {
  const std::size_t prompt = changes.prompt.size(), answer = changes.answer.size();
  std::size_t most = changes.bias.size() + changes.banned.size();
  if (changes.repetition_penalty != 1.0f) most += std::min(prompt + answer, vocabulary);
  if (changes.frequency_penalty != 0.0f) most += std::min(answer, vocabulary);
  if (changes.presence_penalty != 0.0f) most += std::min(answer, vocabulary);
  return most;
}

std::size_t room_of(const WorkerLimits& limits) {
  return static_cast<std::size_t>(logit_change_room(limits.max_sequences, limits.max_positions));
}

std::size_t most_rows_of(const WorkerLimits& limits) {
  return static_cast<std::size_t>(limits.max_decode_rows());
}

std::size_t changed_bytes(const WorkerLimits& limits, int vocabulary) {
  return most_rows_of(limits) * static_cast<std::size_t>(vocabulary) * sizeof(float);
}

}  // namespace

ChangedRows::Layout::Layout(const WorkerLimits& limits, int vocabulary, std::size_t room) {
  std::size_t at = 0;
  const auto part = [&at](std::size_t size) {
    const std::size_t begin = at;
    at = (at + size + 15) / 16 * 16;
    return begin;
  };
  const std::size_t most = most_rows_of(limits);
  of_logit_rows = part(static_cast<std::size_t>(limits.max_logit_rows) * sizeof(std::int32_t));
  logit_rows = part(most * sizeof(std::int32_t));
  starts = part((most + 1) * sizeof(std::int32_t));
  mask_rows = part(most * sizeof(std::int32_t));
  changes = part(room * sizeof(LogitChange));
  masks = part(most * token_mask_words(vocabulary) * sizeof(std::uint32_t));
  bytes = at;
}

ChangedRows::ChangedRows(const WorkerLimits& limits, int vocabulary)
    : vocabulary_(vocabulary),
      most_(most_rows_of(limits)),
      room_(room_of(limits)),
      layout_(limits, vocabulary, room_) {
  changes_.reserve(room_);
  counts_.resize(static_cast<std::size_t>(vocabulary));
}

std::size_t ChangedRows::device_bytes(const WorkerLimits& limits, int vocabulary) {
  return changed_bytes(limits, vocabulary) + Layout(limits, vocabulary, room_of(limits)).bytes;
}

Result<ChangedRows> ChangedRows::allocate(const WorkerLimits& limits, int vocabulary) {
  ChangedRows rows(limits, vocabulary);
  NIBBLE_ASSIGN(rows.changed_, DeviceBuffer::allocate(changed_bytes(limits, vocabulary)));
  NIBBLE_ASSIGN(rows.device_, DeviceBuffer::allocate(rows.layout_.bytes));
  NIBBLE_ASSIGN(rows.host_, PinnedBuffer::allocate(rows.layout_.bytes));
  return Result<ChangedRows>(std::move(rows));
}

void ChangedRows::begin(std::size_t logit_rows) {
  logit_rows_ = logit_rows;
  count_ = masked_ = 0;
  changes_.clear();
}

std::size_t ChangedRows::mask_bytes() const { return token_mask_words(vocabulary_) * sizeof(std::uint32_t); }

bool ChangedRows::add(const BatchSequence& sequence, int drafts) {
  const LogitChanges changes = logit_changes_of(sequence, drafts);
  if (count_ == most_ || changes_.size() + most_changes(changes, counts_.size()) > room_) return false;
  if (count_ == 0) {
    std::int32_t* const of_rows = host_.at<std::int32_t>(layout_.of_logit_rows);
    std::fill(of_rows, of_rows + logit_rows_, -1);
    *host_.at<std::int32_t>(layout_.starts) = 0;
  }
  list_logit_changes(changes, counts_, changes_);
  const int row = sequence.logit_row_behind(drafts);
  host_.at<std::int32_t>(layout_.of_logit_rows)[row] = static_cast<std::int32_t>(count_);
  host_.at<std::int32_t>(layout_.logit_rows)[count_] = row;
  host_.at<std::int32_t>(layout_.mask_rows)[count_] = -1;
  if (!changes.mask.empty()) {
    std::memcpy(host_.data() + layout_.masks + masked_ * mask_bytes(), changes.mask.data(), mask_bytes());
    host_.at<std::int32_t>(layout_.mask_rows)[count_] = static_cast<std::int32_t>(masked_++);
  }
  host_.at<std::int32_t>(layout_.starts)[++count_] = static_cast<std::int32_t>(changes_.size());
  return true;
}

Status ChangedRows::queue(const float* logits, cudaStream_t stream) {
  if (count_ == 0) return {};
  std::copy(changes_.begin(), changes_.end(), host_.at<LogitChange>(layout_.changes));
  cuda_check(cudaMemcpyAsync(device_.data(), host_.data(),
                             layout_.changes + changes_.size() * sizeof(LogitChange), cudaMemcpyHostToDevice,
                             stream));
  if (masked_ > 0) {
    cuda_check(cudaMemcpyAsync(device_.data() + layout_.masks, host_.data() + layout_.masks,
                               masked_ * mask_bytes(), cudaMemcpyHostToDevice, stream));
  }
  const auto part = [this](std::size_t offset) {
    return reinterpret_cast<const std::int32_t*>(device_.data() + offset);
  };
  return change_logits_cuda(
      {.logits = logits,
       .vocabulary = vocabulary_,
       .stride = vocabulary_,
       .rows = static_cast<int>(count_),
       .logit_rows = part(layout_.logit_rows),
       .starts = part(layout_.starts),
       .changes = reinterpret_cast<const LogitChange*>(device_.data() + layout_.changes),
       .mask_rows = part(layout_.mask_rows),
       .masks = reinterpret_cast<const std::uint32_t*>(device_.data() + layout_.masks),
       .changed = changed_.as<float>()},
      stream);
}

const std::int32_t* ChangedRows::of_logit_rows() {
  if (count_ == 0) return nullptr;
  return reinterpret_cast<const std::int32_t*>(device_.data() + layout_.of_logit_rows);
}

}  // namespace nibble
