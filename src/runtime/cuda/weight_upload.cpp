#include "runtime/cuda/weight_upload.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace nibble {

Result<WeightUpload> WeightUpload::begin(const WeightSource& source, ThreadPool& threads,
                                         WeightUploadOptions options) {
  WeightUpload upload(source, threads, std::move(options));
  if (upload.options_.pieces == nullptr) {
    NIBBLE_ASSIGN(upload.own_, PinnedPieces::make(PinnedPieces::places_of_rank));
    upload.options_.pieces = upload.own_.get();
  }
  for (int i = 0; i < PinnedPieces::places_of_rank; ++i) upload.copied_.push_back(new_event());
  return upload;
}

WeightUpload::~WeightUpload() {
  if (copied_.empty() || own_ != nullptr) return;  // moved from, or nobody else waits for its copies
  std::vector<cudaEvent_t> events;
  for (const CudaEvent& event : copied_) events.push_back(event.get());
  options_.pieces->forget(events);
}

Status WeightUpload::queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
                           cudaStream_t stream) {
  constexpr std::size_t most = PinnedPieces::most_bytes;
  NIBBLE_ASSIGN(const ConstTensor stored, required_tensor(tensor, *source_));
  NIBBLE_CHECK(begin <= stored.bytes() && count <= stored.bytes() - begin);
  const std::span<const std::byte> wanted(stored.data + begin, count);
  for (std::size_t at = 0; at < count; at += most) {
    NIBBLE_RETURN_IF_ERROR(queue_piece(wanted.subspan(at, std::min(most, count - at)),
                                       static_cast<std::byte*>(to) + at, stream));
  }
  return {};
}

Result<DType> WeightUpload::dtype_of(const ExpectedTensor& tensor) {
  NIBBLE_ASSIGN(const ConstTensor stored, required_tensor(tensor, *source_));
  return stored.dtype;
}

Status WeightUpload::read(std::span<const std::byte> from, std::byte* to) {
  constexpr std::size_t part = std::size_t{256} << 10;
  std::mutex one_at_a_time;
  Status problem;
  threads_->parallel_for(
      static_cast<int>((from.size() + part - 1) / part), [&](int part_begin, int part_end) {
        const std::size_t first = static_cast<std::size_t>(part_begin) * part;
        const std::size_t past = std::min(static_cast<std::size_t>(part_end) * part, from.size());
        Status found = source_->read(from.subspan(first, past - first), to + first);
        if (found.ok()) return;
        const std::lock_guard lock(one_at_a_time);
        problem = std::move(found);
      });
  return problem;
}

Status WeightUpload::queue_piece(std::span<const std::byte> from, std::byte* to, cudaStream_t stream) {
  NIBBLE_ASSIGN(const PinnedPieces::Held held,
                options_.pieces->hold(from, [&](std::byte* pinned) { return read(from, pinned); }));
  const cudaEvent_t copied = copied_[next_].get();
  next_ = (next_ + 1) % copied_.size();
  cuda_check(cudaMemcpyAsync(to, held.data, from.size(), cudaMemcpyHostToDevice, stream));
  cuda_check(cudaEventRecord(copied, stream));
  options_.pieces->let_go(held, copied);
  done_ += static_cast<std::int64_t>(from.size());
  const std::int64_t total = source_->bytes();
  if (options_.progress)
    options_.progress(static_cast<double>(std::min(done_, total)), static_cast<double>(total));
  return {};
}

}  // namespace nibble
