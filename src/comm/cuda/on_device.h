// A device for the calling thread, and the one before again at the end.
#pragma once

#include <cuda_runtime_api.h>

#include "tensor/cuda_check.h"

namespace nibble {

class OnDevice {
 public:
  explicit OnDevice(int device) {
    cuda_check(cudaGetDevice(&before_));
    cuda_check(cudaSetDevice(device));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cuda_check(cudaSetDevice(before_)); }

 private:
  int before_ = 0;
};

}  // namespace nibble
