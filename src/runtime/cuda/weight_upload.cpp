#include "runtime/cuda/weight_upload.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace nibble {

Result<WeightUpload> WeightUpload::begin(const WeightSource& source, ThreadPool& threads, Progress progress) {
  WeightUpload upload(source, threads, std::move(progress));
  for (Slot& slot : upload.slots_) {
    NIBBLE_ASSIGN(slot.memory, PinnedBuffer::allocate(slot_bytes));
    slot.copied = new_event();
  }
  return upload;
}

Status WeightUpload::queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
                           cudaStream_t stream) {
  NIBBLE_ASSIGN(const ConstTensor stored, required_tensor(tensor, *source_));
  NIBBLE_CHECK(begin <= stored.bytes() && count <= stored.bytes() - begin);
  const std::span<const std::byte> wanted(stored.data + begin, count);
  for (std::size_t at = 0; at < count; at += slot_bytes) {
    NIBBLE_RETURN_IF_ERROR(queue_piece(wanted.subspan(at, std::min(slot_bytes, count - at)),
                                       static_cast<std::byte*>(to) + at, stream));
  }
  return {};
}

Result<DType> WeightUpload::dtype_of(const ExpectedTensor& tensor) {
  NIBBLE_ASSIGN(const ConstTensor stored, required_tensor(tensor, *source_));
  return stored.dtype;
}

Status WeightUpload::queue_piece(std::span<const std::byte> from, std::byte* to, cudaStream_t stream) {
  constexpr std::size_t part = std::size_t{256} << 10;
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots;
  cuda_check(cudaEventSynchronize(slot.copied.get()));
  std::byte* const pinned = slot.memory.data();
  std::mutex one_at_a_time;
  Status problem;
  threads_->parallel_for(
      static_cast<int>((from.size() + part - 1) / part), [&](int part_begin, int part_end) {
        const std::size_t first = static_cast<std::size_t>(part_begin) * part;
        const std::size_t past = std::min(static_cast<std::size_t>(part_end) * part, from.size());
        Status read = source_->read(from.subspan(first, past - first), pinned + first);
        if (read.ok()) return;
        const std::lock_guard lock(one_at_a_time);
        problem = std::move(read);
      });
  NIBBLE_RETURN_IF_ERROR(problem);
  cuda_check(cudaMemcpyAsync(to, pinned, from.size(), cudaMemcpyHostToDevice, stream));
  cuda_check(cudaEventRecord(slot.copied.get(), stream));
  done_ += static_cast<std::int64_t>(from.size());
  const std::int64_t total = source_->bytes();
  if (progress_) progress_(static_cast<double>(std::min(done_, total)), static_cast<double>(total));
  return {};
}

}  // namespace nibble
