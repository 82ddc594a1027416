// Feeds a GPU from a checkpoint's files: threads read pieces into pinned memory, from where the GPU takes
// them at the speed of its link while the next piece is read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "models/cuda/weight_feed.h"
#include "runtime/cuda/cuda_handles.h"
#include "tensor/pinned_buffer.h"

namespace nibble {

class WeightUpload final : public WeightFeed {
 public:
  // Says how many bytes of how many have been read.
  using Progress = std::function<void(double done, double total)>;

  // Source and threads outlive it.
  static Result<WeightUpload> begin(const WeightSource& source, ThreadPool& threads, Progress progress = {});

  Status queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
               cudaStream_t stream) override;
  Result<DType> dtype_of(const ExpectedTensor& tensor) override;

 private:
  static constexpr std::size_t slot_bytes = std::size_t{32} << 20;
  static constexpr std::size_t slots = 4;

  struct Slot {
    PinnedBuffer memory;
    CudaEvent copied;  // when its last piece has left it
  };

  WeightUpload(const WeightSource& source, ThreadPool& threads, Progress progress)
      : source_(&source), threads_(&threads), progress_(std::move(progress)) {}
  Status queue_piece(std::span<const std::byte> from, std::byte* to, cudaStream_t stream);

  const WeightSource* source_;
  ThreadPool* threads_;
  Progress progress_;
  std::int64_t done_ = 0;  // bytes; what is read twice counts once more
  std::array<Slot, slots> slots_;
  std::size_t next_ = 0;
};

}  // namespace nibble
