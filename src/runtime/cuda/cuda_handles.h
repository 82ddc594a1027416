// Owners of what the CUDA runtime hands out as plain pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>

#include "tensor/cuda_check.h"

namespace nibble {

template <class Handle, auto destroy>
struct CudaHandle {
  struct Destroy {
    void operator()(std::remove_pointer_t<Handle>* handle) const { destroy(handle); }
  };
  using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
};

using CudaEvent = CudaHandle<cudaEvent_t, cudaEventDestroy>::Owner;
using CudaGraph = CudaHandle<cudaGraph_t, cudaGraphDestroy>::Owner;
using CudaGraphExec = CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy>::Owner;

class CudaStream {
 public:
  CudaStream() { cuda_check(cudaStreamCreate(&stream_)); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() { cudaStreamDestroy(stream_); }

  cudaStream_t get() const { return stream_; }
  void wait() const { cuda_check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

inline CudaEvent new_event() {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return CudaEvent(event);
}

}  // namespace nibble
