// change_logits (ops/sample/logit_changes.h) on a GPU, with the CPU's bits: copies of those rows of logits
// that a request wants changed. The rows themselves stay for log-probabilities; sample_cuda chooses from the
// copies (SampleCudaArgs::changed).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "ops/sample/logit_change_list.h"

namespace nibble {

// All pointers are to device memory.
struct ChangeLogitsCudaArgs {
  const float* logits = nullptr;  // [any, stride]
  int vocabulary = 0;
  int stride = 0;
  int rows = 0;                              // that are changed
  const std::int32_t* logit_rows = nullptr;  // [rows]: where among the logits each is
  const std::int32_t* starts = nullptr;      // [rows + 1]: of each row's changes
  const LogitChange* changes = nullptr;      // [starts[rows]], each row's as list_logit_changes makes them
  // Of each row its place among the masks (LogitChanges::mask), -1: none. Null: no row has one.
  const std::int32_t* mask_rows = nullptr;  // [rows]
  const std::uint32_t* masks = nullptr;     // [any, ceil(vocabulary / 32)]
  float* changed = nullptr;                 // [rows, stride]; past the vocabulary it is left alone
};

Status change_logits_cuda(const ChangeLogitsCudaArgs& args, cudaStream_t stream);

}  // namespace nibble
