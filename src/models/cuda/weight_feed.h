// Where a model's weights come from on their way to a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/status.h"
#include "checkpoint/expected_tensors.h"

namespace nibble {

class WeightFeed {
 public:
  virtual ~WeightFeed() = default;
  // Queues bytes [begin, begin + count) of a tensor's rows to device memory at `to`. Refused where the tensor
  // is missing or of another dtype or shape.
  virtual Status queue(const ExpectedTensor& tensor, std::size_t begin, std::size_t count, void* to,
                       cudaStream_t stream) = 0;
  // Which of the types that a tensor may have it has.
  virtual Result<DType> dtype_of(const ExpectedTensor& tensor) { return tensor.dtype; }
};

}  // namespace nibble
