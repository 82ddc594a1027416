// Feeds a GPU from a checkpoint's files: threads read pieces into pinned memory, from where the GPU takes
// them at the speed of its link while the next piece is read. Ranks may share what they read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "models/cuda/weight_feed.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/pinned_pieces.h"

namespace nibble {

// Where ranks share what they read, and who hears how many bytes of how many have been.
struct WeightUploadOptions {
  PinnedPieces* pieces = nullptr;  // null: this rank is alone
  std::function<void(double done, double total)> progress;
};

class WeightUpload final : public WeightFeed {
 public:
  // Source, threads and pieces outlive it.
  static Result<WeightUpload> begin(const WeightSource& source, ThreadPool& threads,
                                    WeightUploadOptions options = {});
  WeightUpload(WeightUpload&&) = default;
  ~WeightUpload() override;

  Status queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
               cudaStream_t stream) override;
  Result<DType> dtype_of(const ExpectedTensor& tensor) override;

 private:
  WeightUpload(const WeightSource& source, ThreadPool& threads, WeightUploadOptions options)
      : source_(&source), threads_(&threads), options_(std::move(options)) {}
  Status read(std::span<const std::byte> from, std::byte* to);
  Status queue_piece(std::span<const std::byte> from, std::byte* to, cudaStream_t stream);

  const WeightSource* source_;
  ThreadPool* threads_;
  WeightUploadOptions options_;
  std::int64_t done_ = 0;  // bytes; what is read twice counts once more
  std::unique_ptr<PinnedPieces> own_;
  std::vector<CudaEvent> copied_;  // one for each copy that may be under way, in turn
  std::size_t next_ = 0;
};

}  // namespace nibble
