// What ranks of another process have to know of a step: its rows, whose they are, which are drafts or tokens
// of the step before, where their keys, values and states lie, and which rows' logits are wanted. What is
// chosen from them is the first process's affair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/batch.h"

namespace nibble {

void write_step(const Batch& batch, std::vector<std::byte>& bytes);

// A step as it came, with what its batch points to.
class ReceivedStep {
 public:
  // `owners`: groups of ranks that have sequences of their own; 1: all ranks have all.
  explicit ReceivedStep(int owners) : owners_(owners) {}
  // The bytes of another process of the same program; what they cannot mean is refused.
  Status read(std::span<const std::byte> bytes);
  const Batch& batch() const { return batch_; }

 private:
  const int owners_;
  Batch batch_;
  std::vector<PageId> pages_;
  std::vector<StateSnapshot> snapshots_;
};

}  // namespace nibble
