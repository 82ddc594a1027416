// A matrix's inputs in parts, so that what is prepared of one stays in a second-level cache while rows come
// and go: a prompt's would have to come from further away for each few rows.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"
#include "ops/linear/dot_kernels.h"

namespace nibble {

// Of 2,880 columns 720 KiB.
inline constexpr int most_inputs_of_part = 8 * input_group;

// Each part is prepared and multiplied as a matrix's inputs by itself. Parts are as alike as whole groups
// allow.
class InputParts {
 public:
  explicit InputParts(const DotInputs& inputs) : all_(inputs) {
    const int groups = (inputs.rows.count + input_group - 1) / input_group;
    const int least = (inputs.rows.count + most_inputs_of_part - 1) / most_inputs_of_part;
    if (groups == 0) return;
    groups_a_part_ = (groups + least - 1) / least;
    size_ = (groups + groups_a_part_ - 1) / groups_a_part_;
  }
  int size() const { return size_; }
  int groups_a_part() const { return groups_a_part_; }
  // Of all the inputs.
  int first_input(int part) const { return part * groups_a_part_ * input_group; }
  DotInputs operator[](int part) const {
    const int first = first_input(part);
    DotInputs inputs = all_;
    inputs.rows.count = std::min(groups_a_part_ * input_group, all_.rows.count - first);
    if (inputs.rows.slots != nullptr) {
      inputs.rows.slots += first;
    } else {
      inputs.rows.first += std::int64_t{first} * inputs.rows.cols;
    }
    inputs.prepared += prepared_bytes(inputs.rows.cols, first);
    return inputs;
  }

 private:
  DotInputs all_;
  int groups_a_part_ = 0, size_ = 0;
};

// multiply(begin, end) for runs of the ranges [from, to) of a matrix's rows, each at most about a beat's
// work.
template <class Multiply>
void for_each_run_of_ranges(WorkMeter& meter, int from, int to, const DotInputs& inputs,
                            const Multiply& multiply) {
  const std::int64_t of_range =
      std::int64_t{range_rows} * std::max(inputs.rows.count, 1) * std::max(inputs.rows.cols, 1);
  const int run = static_cast<int>(std::max<std::int64_t>(WorkMeter::products_a_beat / of_range, 1));
  for (int begin = from; begin < to; begin += run) {
    const int end = std::min(begin + run, to);
    multiply(begin, end);
    meter.add((end - begin) * of_range);
  }
}

}  // namespace nibble
